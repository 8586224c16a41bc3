//! The model clients of the end-to-end tests that are not written in Rust: their sources and pinned dependencies lie in
//! `tests/clients`, what is installed for them in `target/test-clients`.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    slice,
};

use anyhow::{Context, Result};

use crate::{command, workspace};

/// Installs what is missing or has changed.
///
/// # Errors
/// A package registry cannot be reached, or an installation fails.
pub fn install() -> Result<()> {
    python()?;
    node()?;
    go()
}

/// A virtual environment with the SDKs.
fn python() -> Result<()> {
    let requirements = source("python/requirements.txt");
    let environment = installed("python");
    unless_installed(&environment, slice::from_ref(&requirements), || {
        let mut create = Command::new("python3");
        command::run(create.args(["-m", "venv", "--clear"]).arg(&environment))?;
        let mut pip = Command::new(environment.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps"]);
        command::run(pip.arg("--requirement").arg(&requirements))
    })
}

/// A `node_modules` with the SDKs.
fn node() -> Result<()> {
    let manifests = ["node/package.json", "node/package-lock.json"].map(source);
    let directory = installed("node");
    unless_installed(&directory, &manifests, || {
        for manifest in &manifests {
            let name = manifest.file_name().context("a manifest has a name")?;
            fs::copy(manifest, directory.join(name))
                .with_context(|| manifest.display().to_string())?;
        }
        let mut npm = Command::new("npm");
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]);
        command::run(npm.current_dir(&directory))
    })
}

/// The Go client, which needs the standard library alone. The compiler knows by itself what has changed.
fn go() -> Result<()> {
    let directory = installed("go");
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(directory.join("call"));
    build
        .env("CGO_ENABLED", "0")
        .env("GOCACHE", directory.join("cache"))
        .env("GOFLAGS", "-mod=readonly")
        .env("GOPROXY", "off");
    command::run(build.current_dir(source("go")))
}

fn source(name: &str) -> PathBuf {
    workspace::root().join("tests/clients").join(name)
}

fn installed(name: &str) -> PathBuf {
    workspace::root().join("target/test-clients").join(name)
}

/// Fills `directory` by `install`, unless it is complete already and of the present state of `sources`: a copy of them,
/// written last, tells.
fn unless_installed(
    directory: &Path,
    sources: &[PathBuf],
    install: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let mut wanted = String::new();
    for source in sources {
        wanted += &fs::read_to_string(source).with_context(|| source.display().to_string())?;
    }
    let stamp = directory.join("installed");
    if fs::read_to_string(&stamp).is_ok_and(|present| present == wanted) {
        return Ok(());
    }
    fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    install().with_context(|| format!("cannot fill {}", directory.display()))?;
    fs::write(&stamp, wanted).with_context(|| stamp.display().to_string())
}
