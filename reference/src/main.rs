//! Writes the reference pages: `cargo xtask docs`.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::Parser;

/// Write the reference pages of the book
#[derive(Debug, Parser)]
struct Args {
    /// Write nothing; say which pages are not as they should be, and exit with 1 if any is
    #[arg(long)]
    check: bool,
    /// The top of the workspace
    workspace: PathBuf,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if !args.check {
        for path in shaper_reference::renew(&args.workspace)? {
            eprintln!("renewed {}", path.display());
        }
        return Ok(ExitCode::SUCCESS);
    }
    let stale = shaper_reference::stale(&args.workspace)?;
    for (path, _) in &stale {
        eprintln!(
            "{} is not what the program knows: run `cargo xtask docs`",
            path.display()
        );
    }
    Ok(if stale.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
