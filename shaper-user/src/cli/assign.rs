//! `shaper assign`: move running processes into a class.

use clap::Args;

use super::{class::ClassArg, config::ConfigArgs, governed::Governed, membership::Place, print};
use crate::paths::Instance;

/// Move running processes into a class
///
/// What they start from now on is in the class too. Sockets that they have made already stay as they are: a socket
/// belongs to the cgroup in which it was created. Warns if no controller governs the cgroup; --config has to be that of the
/// controller.
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
    /// Name of the controller that is meant to govern them, where a host has several
    #[arg(long, value_name = "NAME", default_value_t)]
    instance: Instance,
    /// The processes
    #[arg(required = true, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pids: Vec<u32>,
}

/// Moves the processes, then tells of it.
///
/// # Errors
/// At the first process that cannot be moved, after naming those that were; when standard output cannot be written to.
pub fn run(args: &AssignArgs) -> anyhow::Result<()> {
    let config = args.config.load()?;
    let place = Place::of(&config.settings, args.class.into(), args.account.as_deref())?;
    let mut moved = String::new();
    let taken = place.take(&args.pids, |pid| moved += &format!("{pid} is in {place}\n"));
    let printed = print::out(moved);
    taken?;
    const OPEN: &str = "Connections they have already open stay as they are";
    match Governed::look(place.cgroup(), &args.instance) {
        Governed::By(governor) if governor == args.instance => {
            print::note(format_args!("{OPEN}; new sockets are governed."));
        }
        Governed::By(governor) => print::note(format_args!(
            "{OPEN}; new sockets are governed, by instance {governor}."
        )),
        Governed::No(why) => print::note(format_args!("warning: {why}")),
        Governed::Unknown(why) => print::note(format_args!(
            "{OPEN}; whether new sockets are governed cannot be told: {why}"
        )),
    }
    printed
}
