//! `shaper pause` and `shaper resume`: hold a lane for a while.

use std::time::Duration;

use clap::Args;
use jiff::Timestamp;

use super::{ControllerArgs, print};
use crate::pause;

/// Start nothing in a lane for a while
///
/// What is in flight goes on; what comes waits in line. The longer of two pauses holds, and is told; `shaper resume` ends
/// it, whoever began it. When it is over, what waits starts little by little.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shaper pause reasoning --for 30s
  shaper pause reasoning --for 1h30m")]
pub struct PauseArgs {
    /// The lane's name
    lane: String,
    /// How long, as in 30s, 5m or 1h30m; at most a day
    #[arg(long = "for", value_name = "DURATION", value_parser = pause::length)]
    length: Duration,
    #[command(flatten)]
    controller: ControllerArgs,
}

/// End a lane's pause, whoever began it
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shaper resume reasoning")]
pub struct ResumeArgs {
    /// The lane's name
    lane: String,
    #[command(flatten)]
    controller: ControllerArgs,
}

/// Pauses the lane.
///
/// # Errors
/// When no controller answers, it has no such lane, or standard output cannot be written to.
pub fn pause(args: &PauseArgs) -> anyhow::Result<()> {
    let pause = args.controller.connect()?.pause(&args.lane, args.length)?;
    let told = pause.told(&args.lane, args.length, Timestamp::now());
    print::out(format_args!("{told}\n"))
}

/// Resumes the lane.
///
/// # Errors
/// When no controller answers, it has no such lane, or standard output cannot be written to.
pub fn resume(args: &ResumeArgs) -> anyhow::Result<()> {
    args.controller.connect()?.resume(&args.lane)?;
    print::out(format_args!("{} is not paused\n", args.lane))
}
