//! `cargo xtask miri`: the shared crate and the policy in Miri, an interpreter that finds undefined behaviour.

use anyhow::Result;

use crate::{command, nightly};

/// Runs their tests. Miri is some hundred times slower than the machine, so properties are tried on a few cases only.
///
/// # Errors
/// A test fails, does something undefined, or Miri is not installed.
pub fn run() -> Result<()> {
    nightly::require(
        "miri",
        "rustup component add --toolchain nightly miri rust-src",
    )?;
    for (package, filter) in [("shaper-common", ""), ("shaper-user", "policy::")] {
        let mut miri = nightly::cargo()?;
        miri.args(["miri", "test", "--locked", "--lib"]);
        miri.args(["--target-dir", "target/miri", "--package", package]);
        miri.args(["--", filter]);
        // Proptest asks for the environment and the working directory.
        miri.env("MIRIFLAGS", "-Zmiri-disable-isolation");
        miri.env("PROPTEST_CASES", "4");
        command::run(&mut miri)?;
    }
    Ok(())
}
