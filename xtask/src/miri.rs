//! `cargo xtask miri`: the shared crate and the policy in Miri, an interpreter that finds undefined behaviour.

use anyhow::Result;

use crate::{command, nightly};

/// Tests of statistics and of costs, which would take hours there and exercise nothing that others do not.
const TOO_LONG: [&str; 4] = [
    "policy::tests::cost",
    "answers_of_different_length_are_no_slowdown",
    "what_is_slow_is_not_learnt_until_it_has_lasted",
    "memory_does_not_grow_with_the_load",
];

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
        for test in TOO_LONG {
            miri.args(["--skip", test]);
        }
        // Proptest asks for the environment and the working directory.
        miri.env("MIRIFLAGS", "-Zmiri-disable-isolation");
        miri.env("PROPTEST_CASES", "4");
        command::run(&mut miri)?;
    }
    Ok(())
}
