//! The commands, one file each.

pub mod status;

use std::path::PathBuf;

use crate::{
    control::{Client, ClientError},
    paths::Instance,
};

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
//! The subcommands of `shaper`, one file each.
pub mod check;
