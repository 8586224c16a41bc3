//! The benchmarks behind `cargo xtask bench`: shaper beside what people would use instead, on this machine.
//!
//! Each benchmark makes its own cgroups and network namespaces, measures its columns in turn, A B C A B C, so that
//! whatever else the machine does hits all of them alike, and tells medians with their spread. Everything it starts is
//! gone when it ends.

mod connect;
mod gateway;
mod handover;
mod haproxy;
mod incident;
mod interpreter;
mod machine;
mod memory;
mod nfqueue;
mod order;
mod page;
mod plot;
mod policy;
mod programs;
mod progress;
mod report;
mod spread;
mod suite;
mod transfer;
mod venue;
mod worker;

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::suite::{Benchmark, Plan};

#[derive(Parser)]
#[command(name = "shaper-bench", about = "What `cargo xtask bench` runs")]
struct Cli {
    #[command(subcommand)]
    role: Role,
}

#[derive(Subcommand)]
enum Role {
    /// Measure, print tables, keep the figures
    Run {
        /// Only this one
        benchmark: Option<Benchmark>,
        /// Keep the figures here, as JSON
        #[arg(long)]
        results: PathBuf,
        /// Renew the tables of this page
        #[arg(long)]
        page: Option<PathBuf>,
        /// Draw the incident there, as an SVG
        #[arg(long)]
        plot: Option<PathBuf>,
    },
    /// A client: takes orders from standard input
    #[command(hide = true)]
    Worker,
    /// Accept every packet of a netfilter queue
    #[command(hide = true)]
    Verdicts { queue: u16 },
}

fn main() -> ExitCode {
    match perform(Cli::parse().role) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn perform(role: Role) -> Result<()> {
    match role {
        Role::Run {
            benchmark,
            results,
            page,
            plot,
        } => suite::run(&Plan {
            benchmark,
            results,
            page,
            plot,
        }),
        Role::Worker => worker::serve(),
        Role::Verdicts { queue } => nfqueue::accept_all(queue),
    }
}
