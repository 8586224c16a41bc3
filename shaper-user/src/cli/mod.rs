//! The command line: one file per subcommand.

mod assign;
pub mod check;
mod class;
pub mod config;
mod detach;
pub mod doctor;
mod exec;
mod follow;
mod governed;
mod log;
mod membership;
mod pause;
pub mod print;
mod run;
mod set;
mod simulate;
mod stats;
pub mod status;
mod top;

use std::{io, path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

use crate::{
    control::{Client, ClientError},
    paths::Instance,
};

/// A host-level traffic shaper for LLM gateways
///
/// Caps how many requests from this host are in flight at each gateway, lets important work go first, and makes the rest
/// wait where an operator can see them. `shaper run` does it; everything else prepares, watches or steers it.
#[derive(Debug, Parser)]
#[command(name = "shaper", version, after_help = ENVIRONMENT)]
pub struct Cli {
    #[command(subcommand)]
    command: Subcommands,
}

/// What the environment changes.
const ENVIRONMENT: &str = "\
Environment:
  SHAPER_LOG  what the controller logs: error, warn, info (the default), debug or trace
  NO_COLOR    no colours, if it is set";

/// In the order in which an operator comes to need them, which is the order of `shaper help`.
#[derive(Debug, Subcommand)]
enum Subcommands {
    Run(run::RunArgs),
    Detach(detach::DetachArgs),
    Check(check::CheckArgs),
    Doctor(doctor::DoctorArgs),
    #[command(name = crate::doctor::CLIENT_SUBCOMMAND, hide = true)]
    DoctorClient(doctor::ClientArgs),
    Exec(exec::ExecArgs),
    Assign(assign::AssignArgs),
    Status(status::StatusArgs),
    Top(top::TopArgs),
    Stats(stats::StatsArgs),
    Pause(pause::PauseArgs),
    Resume(pause::ResumeArgs),
    Set(set::SetArgs),
    Simulate(simulate::SimulateArgs),
}

impl Cli {
    /// Runs the command.
    ///
    /// # Errors
    /// What the command says; the caller prints it and exits with 1.
    pub fn run(&self) -> anyhow::Result<ExitCode> {
        match &self.command {
            Subcommands::Run(args) => run::run(args)?,
            Subcommands::Detach(args) => detach::run(args)?,
            Subcommands::Check(args) => {
                let verdict = check::run(args, &mut io::stdout(), &mut io::stderr())?;
                return Ok(verdict.into());
            }
            Subcommands::Exec(args) => exec::run(args)?,
            Subcommands::Assign(args) => assign::run(args)?,
            Subcommands::Status(args) => status::run(args)?,
            Subcommands::Top(args) => top::run(args)?,
            Subcommands::Doctor(args) => return doctor::run(args),
            Subcommands::DoctorClient(args) => doctor::run_client(args)?,
            Subcommands::Pause(args) => pause::pause(args)?,
            Subcommands::Resume(args) => pause::resume(args)?,
            Subcommands::Set(args) => set::run(args)?,
            Subcommands::Stats(args) => stats::run(args)?,
            Subcommands::Simulate(args) => simulate::run(args)?,
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Which controller a command talks to.
#[derive(Clone, Debug, clap::Args)]
pub struct ControllerArgs {
    /// Control socket of the controller [default: /run/shaper/NAME.sock]
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,

    /// Name of the controller, where a host has several
    #[arg(long, value_name = "NAME", default_value_t)]
    pub instance: Instance,
}

impl ControllerArgs {
    /// The control socket: as named, or the instance's own.
    pub fn socket(&self) -> PathBuf {
        self.control
            .clone()
            .unwrap_or_else(|| self.instance.control_socket())
    }

    /// Connects to the controller.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect(&self) -> Result<Client, ClientError> {
        Client::connect(&self.socket())
    }
}
