//! Building with cargo and learning which executables came out.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::command::show;

/// An executable that cargo has built.
#[derive(Debug)]
pub struct Executable {
    /// The target's name: `shaper`, or `holding` for `tests/holding.rs`.
    pub name: String,
    pub path: PathBuf,
    /// The directory of its package.
    pub package: PathBuf,
    /// Whether it is a test harness.
    pub is_test: bool,
}

/// Runs `cargo`, a build command, and gives the executables it built or found up to date.
///
/// # Errors
/// The build fails.
pub fn build(cargo: &mut Command) -> Result<Vec<Executable>> {
    cargo
        .arg("--message-format=json-render-diagnostics")
        .stdout(Stdio::piped());
    show(cargo);
    let mut child = cargo.spawn().context("cannot start cargo")?;
    let stdout = child
        .stdout
        .take()
        .context("cargo has no standard output")?;
    let mut executables = Vec::new();
    for line in BufReader::new(stdout).lines() {
        let message = serde_json::from_str::<Message>(&line?).context("message from cargo")?;
        executables.extend(message.into_executable());
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("the build failed: {status}");
    }
    Ok(executables)
}

/// The program `name` among `executables`.
///
/// # Errors
/// It is not there.
pub fn program<'a>(executables: &'a [Executable], name: &str) -> Result<&'a Executable> {
    let is_it = |executable: &&Executable| executable.name == name && !executable.is_test;
    executables
        .iter()
        .find(is_it)
        .with_context(|| format!("cargo has built no program `{name}`"))
}

/// What matters here of cargo's messages ("External tools" in its book); other messages lack these fields.
#[derive(Deserialize)]
struct Message {
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

impl Message {
    fn into_executable(self) -> Option<Executable> {
        let target = self.target?;
        // Cargo calls the profile of benchmarks one of tests too.
        let is_bench = target.kind.iter().any(|kind| kind == "bench");
        Some(Executable {
            name: target.name,
            path: self.executable?,
            package: self.manifest_path?.parent()?.to_owned(),
            is_test: self.profile?.test && !is_bench,
        })
    }
}
