//! `shaper assign`: move running processes into a class.

use clap::Args;

use super::{class::ClassArg, config::ConfigArgs, membership::Place};

/// Move running processes into a class
///
/// What they start from now on is in the class too. Sockets that they have made already stay as they are: a socket
/// belongs to the cgroup in which it was created.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shaper assign --class interactive 4711
  sudo shaper assign --class bulk $$    # this shell, and all that it starts")]
pub struct AssignArgs {
    /// The priority
    #[arg(long)]
    class: ClassArg,
    /// The tenant: a child of the class's cgroup or slice, made if absent
    #[arg(long, value_name = "NAME")]
    account: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
    /// The processes
    #[arg(required = true, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pids: Vec<u32>,
}

/// Moves the processes.
///
/// # Errors
/// At the first process that cannot be moved, after naming those that were.
pub fn run(args: &AssignArgs) -> anyhow::Result<()> {
    let config = args.config.load()?;
    let place = Place::of(&config.settings, args.class.into(), args.account.as_deref())?;
    place.take(&args.pids, |pid| println!("{pid} is in {place}"))?;
    eprintln!("Connections they have already open stay as they are; new sockets are governed.");
    Ok(())
}
