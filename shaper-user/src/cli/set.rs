//! `shaper set`: change a lane without touching its file.

use clap::Args;

use super::ControllerArgs;
use crate::handle::Setting;

/// Change a setting of a lane while the controller runs
///
/// KEY is any key of the lane's file but `endpoints`, dotted if it is in a table. `KEY=default` means: as if the file did
/// not have the key. The value is checked as if it stood in the file, which stays as it is.
///
/// The change is in force at once: it applies to what starts from now on, and nothing in flight is taken back. It lasts
/// until the controller restarts or the meaning of this lane's file changes, for then the file holds again; reading
/// unchanged files again, or changed files of other lanes, leaves it in place.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shaper set reasoning max_inflight=4
  shaper set reasoning queue_timeout=90s class.bulk.max_inflight=2
  shaper set reasoning account.overrides.acme=20
  shaper set reasoning max_inflight=default")]
pub struct SetArgs {
    /// The lane's name
    lane: String,
    /// What to change, one after the other
    #[arg(required = true, value_name = "KEY=VALUE")]
    settings: Vec<Setting>,
    #[command(flatten)]
    controller: ControllerArgs,
}

/// Changes the settings, in order.
///
/// # Errors
/// At the first that the controller refuses, after those before it are in force.
pub fn run(args: &SetArgs) -> anyhow::Result<()> {
    let mut client = args.controller.connect()?;
    for setting in &args.settings {
        client.set(&args.lane, setting.clone())?;
        println!("{}: {} = {}", args.lane, setting.key, setting.value);
    }
    Ok(())
}
