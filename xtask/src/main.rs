//! What a developer runs: `cargo xtask --help`.

mod bench;
mod build_ebpf;
mod command;
mod demo;
mod docs;
mod executables;
mod fuzz;
mod kernel_object;
mod miri;
mod nightly;
mod package;
mod promtool;
mod reproducible;
mod run;
mod sanitize;
mod setup;
mod strip;
mod test;
mod test_clients;
mod test_report;
mod toolchain;
mod vm;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Build what is missing and start the controller in the foreground (with sudo if needed)
    Run(run::Args),
    /// Run every test, the end-to-end ones included, and sum them up
    Test(test::Args),
    /// Show a lane at work: a stub gateway and twenty-one unmodified clients, live; ends by itself
    Demo,
    /// Measure shaper beside what people would use instead, and renew the tables of docs/benchmarks.md
    Bench(bench::Args),
    /// Renew the reference pages in docs/ from what the program knows, and build the book
    Docs(docs::Args),
    /// Let libFuzzer invent configurations, requests, packets and the like (nightly compiler, cargo-fuzz)
    Fuzz(fuzz::Args),
    /// Run the libraries' tests under AddressSanitizer and LeakSanitizer (nightly compiler)
    Sanitize(sanitize::Args),
    /// Run the tests of the shared crate and of the policy in Miri (nightly compiler with the component miri)
    Miri,
    /// Build the kernel object from source and refresh the checked-in one
    BuildEbpf(build_ebpf::Args),
    /// Build the Debian package, below target/package
    Package(package::Args),
    /// Install what building the kernel object and running the tests need
    Setup(setup::Args),
}

fn main() -> ExitCode {
    let result = if reproducible::is_compiler_wrapper() {
        reproducible::compile()
    } else {
        Cli::parse().command.run()
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Command {
    fn run(&self) -> Result<()> {
        match self {
            Self::Run(args) => run::run(args),
            Self::Test(args) => test::run(args),
            Self::Demo => demo::run(),
            Self::Bench(args) => bench::run(args),
            Self::Docs(args) => docs::run(args),
            Self::Fuzz(args) => fuzz::run(args),
            Self::Sanitize(args) => sanitize::run(args),
            Self::Miri => miri::run(),
            Self::BuildEbpf(args) => build_ebpf::run(args),
            Self::Package(args) => package::run(args),
            Self::Setup(args) => setup::run(args),
        }
    }
}
