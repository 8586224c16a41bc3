//! `cargo xtask fuzz`: libFuzzer invents inputs for what reads input from outside.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::{command, nightly, workspace};

/// The version of `cargo-fuzz` that is known to work.
const CARGO_FUZZ: &str = "0.13.2";

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only this target, a file in fuzz/fuzz_targets; else all, one after the other
    target: Option<String>,
    /// How long each target is fuzzed, in seconds, after the kept corpus has been run
    #[arg(long, default_value_t = 60)]
    seconds: u32,
}

/// Fuzzes with the kept corpus (`fuzz/corpus`) to begin with. What is found on the way goes to `target/fuzz/found`, an input
/// that fails to `fuzz/artifacts`.
///
/// # Errors
/// A target fails on some input, or fuzzing is not possible here.
pub fn run(args: &Args) -> Result<()> {
    let install = format!("cargo install cargo-fuzz --locked --version {CARGO_FUZZ}");
    nightly::require("fuzz", &install)?;
    let known = targets()?;
    let chosen = match &args.target {
        None => known,
        Some(target) if known.contains(target) => vec![target.clone()],
        Some(target) => bail!(
            "there is no target {target}: choose one of {}",
            known.join(", ")
        ),
    };
    for target in chosen {
        fuzz(&target, args.seconds)?;
    }
    Ok(())
}

fn targets() -> Result<Vec<String>> {
    let directory = workspace::root().join("fuzz/fuzz_targets");
    let mut targets = Vec::new();
    for entry in fs::read_dir(&directory).with_context(|| directory.display().to_string())? {
        let path = entry?.path();
        targets.extend(path.file_stem().map(|stem| stem.display().to_string()));
    }
    targets.sort();
    Ok(targets)
}

fn fuzz(target: &str, seconds: u32) -> Result<()> {
    let found = workspace::root().join("target/fuzz/found").join(target);
    fs::create_dir_all(&found).with_context(|| found.display().to_string())?;
    let mut fuzz = nightly::cargo()?;
    fuzz.args(["fuzz", "run", "--target-dir", "target/fuzz", target]);
    // libFuzzer writes what is new to the first directory only.
    fuzz.arg(&found).arg(format!("fuzz/corpus/{target}"));
    fuzz.arg("--").arg(format!("-max_total_time={seconds}"));
    // No input takes seconds, nor much memory.
    fuzz.args(["-timeout=10", "-rss_limit_mb=1024", "-print_final_stats=1"]);
    command::run(&mut fuzz).with_context(|| {
        format!(
            "target {target}: mend what fails on the input in fuzz/artifacts/{target}, then keep that input in \
             fuzz/corpus/{target}"
        )
    })
}
