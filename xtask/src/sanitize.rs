//! `cargo xtask sanitize`: the libraries' tests under AddressSanitizer and LeakSanitizer.

use anyhow::Result;

use crate::{command, nightly};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Run only the tests whose name contains this
    filter: Option<String>,
}

/// Runs the tests of the shared crate and of the controller, policy included. The standard library is not instrumented,
/// which would take its source; what these crates do to memory is.
///
/// # Errors
/// A test fails, memory is misused or leaked, or there is no nightly compiler.
pub fn run(args: &Args) -> Result<()> {
    let mut test = nightly::cargo()?;
    test.args([
        "test",
        "--locked",
        "--lib",
        "--target-dir",
        "target/sanitize",
    ]);
    // With a target, build scripts and macros, which run in the compiler, are not instrumented.
    test.arg("--target").arg(nightly::host()?);
    test.args(["--package", "shaper-common", "--package", "shaper-user"]);
    test.args(&args.filter);
    test.env("RUSTFLAGS", "-Zsanitizer=address");
    test.env(
        "ASAN_OPTIONS",
        "detect_leaks=1:detect_stack_use_after_return=1",
    );
    command::run(&mut test)
}
