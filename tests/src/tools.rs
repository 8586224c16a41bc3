//! Where the executables are that scenarios start.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// The controller's binary: `$SHAPER_BIN`, or `shaper` in the build directory of the running test.
///
/// # Errors
/// If the file is not there.
pub fn shaper() -> Result<PathBuf> {
    let path = match env::var_os("SHAPER_BIN") {
        Some(path) => PathBuf::from(path),
        None => beside_the_test("shaper")?,
    };
    ensure!(
        path.is_file(),
        "no controller at {}: build it with `cargo build -p shaper-user`, or name it in SHAPER_BIN",
        path.display()
    );
    Ok(path)
}

/// The raw TCP client of `src/bin/probe.rs`, which cargo builds along with the tests.
///
/// # Errors
/// If the running test does not lie in a cargo build directory.
pub fn probe() -> Result<PathBuf> {
    beside_the_test("shaper-test-probe")
}

/// The client with timeouts and retries of `src/bin/caller.rs`, which cargo builds along with the tests.
///
/// # Errors
/// If the running test does not lie in a cargo build directory.
pub fn caller() -> Result<PathBuf> {
    beside_the_test("shaper-test-caller")
}

/// The crowd of `src/bin/crowd.rs`, which cargo builds along with the tests.
///
/// # Errors
/// If the running test does not lie in a cargo build directory.
pub fn crowd() -> Result<PathBuf> {
    beside_the_test("shaper-test-crowd")
}

/// The reqwest client of `src/bin/reqwest.rs`, which cargo builds along with the tests.
///
/// # Errors
/// If the running test does not lie in a cargo build directory.
pub fn reqwest() -> Result<PathBuf> {
    beside_the_test("shaper-test-reqwest")
}

/// A file below `tests/clients`, the sources of the clients in other languages.
pub fn client_source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("clients")
        .join(name)
}

/// A file below `target/test-clients`, where `cargo xtask setup` installs what those clients need.
///
/// # Errors
/// If the file is not there.
pub fn installed_client(name: &str) -> Result<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../target/test-clients")
        .join(name);
    ensure!(
        path.exists(),
        "{} is missing: run `cargo xtask setup`, which installs the clients of the end-to-end tests",
        path.display()
    );
    Ok(path)
}

/// Prometheus's tool for checking rules: one that is installed, or what `cargo xtask setup` has unpacked.
///
/// # Errors
/// If there is none.
pub fn promtool() -> Result<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let installed = env::split_paths(&path).map(|directory| directory.join("promtool"));
    match installed.into_iter().find(|candidate| candidate.is_file()) {
        Some(found) => Ok(found),
        None => installed_client("promtool/promtool"),
    }
}

/// Test executables lie in `target/PROFILE/deps`, binaries in `target/PROFILE`.
fn beside_the_test(name: &str) -> Result<PathBuf> {
    let itself = env::current_exe().context("cannot find the running program's own path")?;
    let mut directories = itself.ancestors().skip(1);
    let profile = directories
        .find(|directory| !directory.ends_with("deps"))
        .with_context(|| {
            format!(
                "{} does not lie in a cargo build directory",
                itself.display()
            )
        })?;
    Ok(profile.join(name))
}
