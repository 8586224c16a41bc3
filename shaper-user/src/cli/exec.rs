//! `shaper exec`: run a command in a class.

use std::{ffi::OsString, os::unix::process::CommandExt, process::Command};

use anyhow::{Context, anyhow};
use clap::Args;

use super::{class::ClassArg, config::ConfigArgs, governed::Governed, membership::Place, print};
use crate::paths::Instance;

/// Run a command in a class
///
/// Joins the cgroup of the class (where systemd runs the host: a scope in its slice), then becomes the command: signals,
/// exit code and terminal are the command's own, and all that it starts is in the class too. Warns if no controller governs
/// the cgroup, and runs the command all the same; --config has to be that of the controller.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shaper exec --class bulk -- ./nightly-review.sh
  shaper exec --class bulk --account acme -- ./agent --all")]
pub struct ExecArgs {
    /// The priority
    #[arg(long)]
    class: ClassArg,
    /// The tenant: a child of the class's cgroup or slice, made if absent
    #[arg(long, value_name = "NAME")]
    account: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
    /// Name of the controller that is meant to govern it, where a host has several
    #[arg(long, value_name = "NAME", default_value_t)]
    instance: Instance,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Joins the class and becomes the command.
///
/// # Errors
/// When the cgroup cannot be joined or the command cannot be run.
pub fn run(args: &ExecArgs) -> anyhow::Result<()> {
    let config = args.config.load()?;
    let place = Place::of(&config.settings, args.class.into(), args.account.as_deref())?;
    place.take(&[std::process::id()], |_| ())?;
    // Whoever may not look is not told so each time.
    if let Governed::No(why) = Governed::look(place.cgroup(), &args.instance) {
        print::note(format_args!("warning: {why}"));
    }
    let (program, arguments) = args
        .command
        .split_first()
        .ok_or_else(|| anyhow!("no command given"))?;
    // Replaces this process, so signals, exit code and terminal are the command's own.
    let error = Command::new(program).args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {}", program.display()))
}
