//! The binary `shaper`.

use std::process::ExitCode;

use clap::Parser;
use shaper_user::cli::Cli;

fn main() -> ExitCode {
    Cli::parse().run().unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
