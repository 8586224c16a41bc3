//! Running other programs: shown before they start, an error when they fail, with privileges where needed.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

/// The cargo that runs this task.
pub fn cargo() -> Command {
    Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Prints `command`, runs it and waits.
///
/// # Errors
/// It cannot be started or does not succeed.
pub fn run(command: &mut Command) -> Result<()> {
    show(command);
    let status = command
        .status()
        .with_context(|| format!("cannot start {}", program(command)))?;
    if !status.success() {
        bail!("{} failed: {status}", program(command));
    }
    Ok(())
}

/// Runs `command` and gives its trimmed standard output.
///
/// # Errors
/// It cannot be started, does not succeed, or prints something else than UTF-8.
pub fn read(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("cannot start {}", program(command)))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{} failed: {}: {}",
            program(command),
            output.status,
            stderr.trim()
        );
    }
    let stdout = String::from_utf8(output.stdout)
        .with_context(|| format!("output of {}", program(command)))?;
    Ok(stdout.trim().to_owned())
}

/// Prints `command` the way a shell user would type it.
pub fn show(command: &Command) {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    eprintln!(
        "+ {}",
        words
            .map(OsStr::to_string_lossy)
            .collect::<Vec<_>>()
            .join(" ")
    );
}

/// `program` as root: as it is when this process is root, by sudo otherwise. Through sudo, only the environment
/// variables in `environment` reach it.
///
/// # Errors
/// This process is not root and there is no sudo.
pub fn privileged(program: impl AsRef<OsStr>, environment: &[&str]) -> Result<Command> {
    let program = program.as_ref();
    if is_root()? {
        return Ok(Command::new(program));
    }
    if find_program("sudo").is_none() {
        bail!(
            "{} needs root, and there is no sudo: run this as root",
            program.display()
        );
    }
    let mut command = Command::new("sudo");
    if !environment.is_empty() {
        command.arg(format!("--preserve-env={}", environment.join(",")));
    }
    command.arg(program);
    Ok(command)
}

/// The first file named `name` in the directories of `PATH`.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
}

/// Whether this process is root.
///
/// # Errors
/// `/proc` cannot be read.
pub fn is_root() -> Result<bool> {
    let status = fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
    let uids = status
        .lines()
        .find_map(|line| line.strip_prefix("Uid:"))
        .context("/proc/self/status has no Uid")?;
    // Real, effective, saved, file system: the effective one decides.
    Ok(uids.split_whitespace().nth(1) == Some("0"))
}

fn program(command: &Command) -> String {
    Path::new(command.get_program()).display().to_string()
}
