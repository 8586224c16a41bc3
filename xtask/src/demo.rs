//! `cargo xtask demo`: a lane at work, without a gateway to spare.

use std::os::unix::process::CommandExt;

use anyhow::{Context, Result, ensure};

use crate::{
    build_ebpf,
    command::{cargo, find_program, privileged, show},
    executables, workspace,
};

/// Tells the demonstration where the controller is.
const BINARY: &str = "SHAPER_BIN";

/// Builds what is missing and becomes the demonstration (`tests/src/bin/demo.rs`).
///
/// # Errors
/// There is no curl, a failed build, no way to become root, or a program that cannot be started.
pub fn run() -> Result<()> {
    ensure!(
        find_program("curl").is_some(),
        "the demonstration's clients are `curl`, and there is none: install it (Debian: apt-get install curl)"
    );
    build_ebpf::ensure_current()?;
    let mut build = cargo();
    build.current_dir(workspace::root());
    build.args([
        "build",
        "--locked",
        "--package",
        "shaper-user",
        "--package",
        "shaper-tests",
        "--bins",
    ]);
    let executables = executables::build(&mut build)?;
    let demo = &executables::program(&executables, "shaper-demo")?.path;
    let shaper = &executables::program(&executables, "shaper")?.path;

    let mut demo_as_root =
        privileged(demo, &[BINARY]).context("the demonstration loads kernel programs")?;
    demo_as_root.env(BINARY, shaper);
    show(&demo_as_root);
    Err(demo_as_root.exec()).with_context(|| format!("cannot start {}", demo.display()))
}
