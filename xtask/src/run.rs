//! `cargo xtask run`: the controller in the foreground.

use std::os::unix::process::CommandExt;

use anyhow::{Context, Result};

use crate::{
    build_ebpf,
    command::{cargo, privileged, show},
    executables, workspace,
};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Build for speed, as the package does: it takes several times as long
    #[arg(long)]
    release: bool,
    /// Arguments for `shaper run`
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Builds what is missing and becomes `shaper run`.
///
/// # Errors
/// A failed build, no way to become root, or a program that cannot be started.
pub fn run(args: &Args) -> Result<()> {
    build_ebpf::ensure_current()?;
    // A first look must not wait for the optimiser, and this profile shares its crates with xtask itself.
    let profile = if args.release { "release" } else { "dev" };
    let mut build = cargo();
    build.current_dir(workspace::root());
    build.args(["build", "--locked", "--profile", profile]);
    build.args(["--package", "shaper-user", "--bin", "shaper"]);
    let executables = executables::build(&mut build)?;
    let shaper = &executables::program(&executables, "shaper")?.path;

    let mut controller = privileged(shaper, &["SHAPER_LOG"]).context("loading kernel programs")?;
    // Also where there is no terminal: nothing is to stay of a trial. Arguments may say otherwise.
    controller
        .args(["run", "--detach-on-exit"])
        .args(&args.arguments);
    show(&controller);
    Err(controller.exec()).with_context(|| format!("cannot start {}", shaper.display()))
}
