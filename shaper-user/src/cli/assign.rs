//! `shaper assign`: move running processes into a class.

use clap::Args;

use super::{class::ClassArg, config::ConfigArgs, membership};

/// Move running processes into a class. Sockets they have already made stay as they are.
#[derive(Debug, Args)]
pub struct AssignArgs {
    /// interactive, default or bulk
    #[arg(long)]
    class: ClassArg,
    /// The tenant: a child cgroup of the class cgroup, made if absent
    #[arg(long)]
    account: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
    #[arg(required = true, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pids: Vec<u32>,
}

/// Moves the processes.
///
/// # Errors
/// At the first process that cannot be moved, after naming those that were.
pub fn run(args: &AssignArgs) -> anyhow::Result<()> {
    let config = args.config.load()?;
    let cgroup =
        membership::cgroup_of(&config.settings, args.class.into(), args.account.as_deref())?;
    for pid in &args.pids {
        membership::join(&cgroup, *pid)?;
        println!("{pid} is in {}", cgroup.display());
    }
    eprintln!("Connections they have already open stay as they are; new sockets are governed.");
    Ok(())
}
