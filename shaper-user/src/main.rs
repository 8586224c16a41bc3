//! The binary `shaper`.

use std::process::ExitCode;

use clap::Parser;
use shaper_user::{
    cli::{Cli, print},
    config::ConfigErrors,
};

fn main() -> ExitCode {
    Cli::parse().run().unwrap_or_else(|error| {
        match error.downcast_ref::<ConfigErrors>() {
            // Each of them says of itself that it is one.
            Some(errors) => print::note(errors),
            None => print::note(format_args!("error: {error:#}")),
        }
        ExitCode::FAILURE
    })
}
