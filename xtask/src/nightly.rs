//! Rustup's nightly compiler, for what the stable one does not do: fuzzing, sanitizers, Miri.

use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::command::read;

/// A cargo command of the nightly toolchain, in the top of the workspace.
///
/// # Errors
/// There is no nightly toolchain; the error says how to install one.
pub fn cargo() -> Result<Command> {
    read(&mut rustup("rustc", &["--version"]))
        .context("a nightly compiler is needed: `rustup toolchain install nightly` installs one")?;
    let mut command = rustup("cargo", &[]);
    command.current_dir(crate::workspace::root());
    Ok(command)
}

/// The platform that nightly builds for unless told otherwise.
///
/// # Errors
/// There is no nightly toolchain.
pub fn host() -> Result<String> {
    let version = read(&mut rustup("rustc", &["-vV"]))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` has no line `host: `")?.to_owned())
}

/// Refuses to go on without cargo's subcommand `name`, which `install` installs.
///
/// # Errors
/// It is not there.
pub fn require(name: &str, install: &str) -> Result<()> {
    if let Err(error) = read(cargo()?.args([name, "--version"])) {
        bail!("cargo {name} is not installed for nightly: `{install}` installs it ({error:#})");
    }
    Ok(())
}

fn rustup(program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", program]).args(arguments);
    // Cargo names the compiler of the toolchain that runs this task.
    command.env_remove("RUSTC").env_remove("RUSTDOC");
    command
}
