//! `cargo xtask bench`: shaper measured beside what people would use instead.

use std::os::unix::process::CommandExt;

use anyhow::{Context, Result};

use crate::{
    build_ebpf,
    command::{cargo, privileged, show},
    executables, workspace,
};

/// The page that a full run renews, and the figures it keeps, relative to the workspace.
const PAGE: &str = "docs/benchmarks.md";
const RESULTS: &str = "target/bench/results.json";
const PLOT: &str = "docs/incident.svg";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only one: connect, transfer, handover, memory, policy, programs or incident. All renew the tables of
    /// docs/benchmarks.md, one only with --page
    benchmark: Option<String>,
    /// Renew the page's tables with the latest figures of every benchmark
    #[arg(long)]
    page: bool,
    /// Draw the incident anew, as docs/incident.svg
    #[arg(long)]
    plot: bool,
}

/// Builds everything for speed and becomes the benchmarks (`tests/src/bin/bench`).
///
/// # Errors
/// A failed build, no way to become root, or a program that cannot be started.
pub fn run(args: &Args) -> Result<()> {
    /// Tell the benchmarks where the programs under test are.
    const ENVIRONMENT: [&str; 3] = ["SHAPER_BIN", "SHAPER_POLICY_BENCH", "PATH"];
    build_ebpf::ensure_current()?;
    let mut build = cargo();
    build.current_dir(workspace::root());
    build.args(["build", "--locked", "--release"]);
    build.args([
        "--package",
        "shaper-user",
        "--bin",
        "shaper",
        "--bench",
        "policy",
    ]);
    build.args(["--package", "shaper-tests", "--bin", "shaper-bench"]);
    build.args(["--bin", "shaper-test-caller"]);
    let executables = executables::build(&mut build)?;
    let built = |name| executables::program(&executables, name).map(|program| &program.path);

    let mut bench = privileged(built("shaper-bench")?, &ENVIRONMENT)
        .context("the benchmarks load kernel programs")?;
    bench.env("SHAPER_BIN", built("shaper")?);
    bench.env("SHAPER_POLICY_BENCH", built("policy")?);
    bench.arg("run").args(&args.benchmark);
    bench.arg("--results").arg(workspace::root().join(RESULTS));
    if args.page || args.benchmark.is_none() {
        bench.arg("--page").arg(workspace::root().join(PAGE));
    }
    if args.plot {
        bench.arg("--plot").arg(workspace::root().join(PLOT));
    }
    show(&bench);
    Err(bench.exec()).context("cannot start the benchmarks")
}
