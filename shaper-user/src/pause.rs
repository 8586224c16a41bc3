//! How long an operator may pause a lane.

use std::time::Duration;

/// The longest pause: longer than any outage that somebody means to end by hand.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Reads how long a pause is to be.
///
/// # Errors
/// In words, with what would be right.
pub fn length(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(length) if length < Duration::from_millis(1) => {
            Err("a pause lasts a millisecond or more; `shaper resume` ends one".to_owned())
        }
        Ok(length) if length > LONGEST => {
            Err("a pause lasts at most a day; to hold a lane for good, change its file".to_owned())
        }
        Ok(length) => Ok(length),
        Err(error) => Err(format!("write it as in 30s, 5m or 1h30m: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_has_a_length_that_makes_sense() {
        assert_eq!(length("1m30s"), Ok(Duration::from_secs(90)));
        assert_eq!(length("500ms"), Ok(Duration::from_millis(500)));
        for (text, remedy) in [
            ("30", "30s"),
            ("0s", "shaper resume"),
            ("2d", "at most a day"),
            ("soon", "30s"),
        ] {
            let error = length(text).unwrap_err();
            assert!(error.contains(remedy), "{text}: {error}");
        }
    }
}
