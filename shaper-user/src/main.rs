//! The binary `shaper`.

use std::process::ExitCode;

use clap::Parser;
use shaper_user::{cli::Cli, config::ConfigErrors};

fn main() -> ExitCode {
    Cli::parse().run().unwrap_or_else(|error| {
        match error.downcast_ref::<ConfigErrors>() {
            // Each of them says of itself that it is one.
            Some(errors) => eprintln!("{errors}"),
            None => eprintln!("error: {error:#}"),
        }
        ExitCode::FAILURE
    })
}
