//! Pauses as operators ask for them: how long one may be, and what has become of it.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{format, policy::PausedBy};

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

/// The pause that a lane is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InForce {
    /// When it ends.
    pub until: Timestamp,
    /// Who began it.
    pub by: PausedBy,
}

impl InForce {
    /// What the wish to pause `lane` for the time of `asked` has led to, at the time `now`. The longer of two pauses holds.
    pub fn told(&self, lane: &str, asked: Duration, now: Timestamp) -> String {
        let left = self.until.duration_since(now);
        let left: Duration = left.try_into().unwrap_or_default();
        if left <= asked {
            return format!("{lane} is paused for {}", format::duration(asked));
        }
        let by = match self.by {
            PausedBy::Operator => "by an operator",
            PausedBy::Gateway => "by the gateway (Retry-After)",
        };
        format!(
            "{lane} is paused for {} more already, {by}; `shaper resume {lane}` first, to shorten it",
            format::duration(left)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_that_was_not_begun_is_not_confirmed() {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let told = |left, by| {
            let until = now + Duration::from_millis(left);
            InForce { until, by }.told("reasoning", Duration::from_secs(30), now)
        };
        // The answer takes a moment.
        for left in [30_000, 29_990, 0] {
            assert_eq!(
                told(left, PausedBy::Operator),
                "reasoning is paused for 30s"
            );
        }
        for (by, who) in [
            (PausedBy::Operator, "by an operator"),
            (PausedBy::Gateway, "by the gateway (Retry-After)"),
        ] {
            assert_eq!(
                told(3_598_700, by),
                format!(
                    "reasoning is paused for 59m58s more already, {who}; `shaper resume reasoning` first, to shorten it"
                )
            );
        }
    }

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
