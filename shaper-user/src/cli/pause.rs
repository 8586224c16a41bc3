//! `shaper pause` and `shaper resume`: hold a lane for a while.

use std::time::Duration;

use clap::Args;

use super::ControllerArgs;
use crate::format;

/// The longest pause: longer than any outage that somebody means to end by hand.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Start nothing in a lane for a while. What is in flight goes on; what comes waits in line.
///
/// The longer of two pauses holds. When it is over, what waits starts little by little.
#[derive(Debug, Args)]
pub struct PauseArgs {
    /// The lane's name
    lane: String,
    /// How long, as in 30s, 5m or 1h30m; at most a day
    #[arg(long = "for", value_name = "DURATION", value_parser = length)]
    length: Duration,
    #[command(flatten)]
    controller: ControllerArgs,
}

/// End a lane's pause, whoever began it.
#[derive(Debug, Args)]
pub struct ResumeArgs {
    /// The lane's name
    lane: String,
    #[command(flatten)]
    controller: ControllerArgs,
}

/// Pauses the lane.
///
/// # Errors
/// When no controller answers, or it has no such lane.
pub fn pause(args: &PauseArgs) -> anyhow::Result<()> {
    args.controller.connect()?.pause(&args.lane, args.length)?;
    println!(
        "{} is paused for {}",
        args.lane,
        format::duration(args.length)
    );
    Ok(())
}

/// Resumes the lane.
///
/// # Errors
/// When no controller answers, or it has no such lane.
pub fn resume(args: &ResumeArgs) -> anyhow::Result<()> {
    args.controller.connect()?.resume(&args.lane)?;
    println!("{} is not paused", args.lane);
    Ok(())
}

fn length(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(length) if length < Duration::from_millis(1) => {
            Err("a pause lasts a millisecond or more; `shaper resume` ends one".to_owned())
        }
        Ok(length) if length > LONGEST => {
            Err("a pause lasts at most a day; to hold a lane for good, change its file".to_owned())
        }
        Ok(length) => Ok(length),
        Err(error) => Err(format!("{error}; write it as in 30s, 5m or 1h30m")),
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
