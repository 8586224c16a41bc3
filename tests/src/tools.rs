//! Where the executables are that scenarios start.

use std::env;
use std::path::PathBuf;

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

/// Test executables lie in `target/PROFILE/deps`, binaries in `target/PROFILE`.
fn beside_the_test(name: &str) -> Result<PathBuf> {
    let test = env::current_exe().context("cannot find the running test's own path")?;
    let profile = test
        .ancestors()
        .nth(2)
        .with_context(|| format!("{} does not lie in a cargo build directory", test.display()))?;
    Ok(profile.join(name))
}
