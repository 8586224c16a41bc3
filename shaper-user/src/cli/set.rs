//! `shaper set`: change a lane without touching its file.

use clap::Args;

use super::{ControllerArgs, print};
use crate::config::Setting;

/// Change settings of a lane while the controller runs
///
/// KEY is any key of the lane's file but `endpoints`, dotted if it is in a table. `KEY=default` means: as if the file did
/// not have the key. The values are checked as if they stood in the file, which stays as it is: all of them take effect, or
/// none if one is wrong. Their order does not matter. `shaper status` shows what was set.
///
/// The change is in force at once: it applies to what starts from now on, and nothing in flight is taken back. It lasts
/// until the controller restarts or the meaning of this lane's file changes, for then the file holds again; reading
/// unchanged files again, or changed files of other lanes, leaves it in place.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shaper set reasoning max_inflight=4
  shaper set reasoning queue_timeout=90s class.bulk.max_inflight=2
  shaper set watched max_inflight=6 max_queue=64 queue_timeout=300s    # a lane that only observes so far
  shaper set reasoning account.overrides.acme=20
  shaper set reasoning max_inflight=default")]
pub struct SetArgs {
    /// The lane's name
    lane: String,
    /// What to change, all at once
    #[arg(required = true, value_name = "KEY=VALUE")]
    settings: Vec<Setting>,
    #[command(flatten)]
    controller: ControllerArgs,
}

/// Changes the settings.
///
/// # Errors
/// When the controller refuses them, and nothing has changed then; when standard output cannot be written to.
pub fn run(args: &SetArgs) -> anyhow::Result<()> {
    let mut client = args.controller.connect()?;
    let warnings = client.set(&args.lane, &args.settings)?;
    for warning in warnings {
        print::note(format_args!("warning: {warning}"));
    }
    let settings = args.settings.iter();
    let done: String = settings
        .map(|setting| format!("{}: {setting}\n", args.lane))
        .collect();
    print::out(done)
}
