//! A client as an agent's is: calls one after another on a connection that is kept alive, with timeouts, and with
//! retries that back off.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::client::{Client, Report};
use crate::clock::Moment;
use crate::process::Finished;
use crate::tools;

/// What a caller is to do.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Orders {
    pub url: String,
    /// Ends up in the gateway's log.
    pub label: String,
    /// Calls, one after another.
    pub calls: u32,
    /// Time between an answer and the next call: the agent runs its tools.
    pub think: Duration,
    /// For the connect, and again for the answer, as the vendors' SDKs have it.
    pub timeout: Duration,
    /// Further attempts at a call that failed.
    pub retries: u32,
    /// Before the first retry; doubled for each further one, and up to a quarter less by chance.
    pub backoff: Duration,
    /// Of that chance.
    pub seed: u64,
}

/// One call with all its attempts.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Call {
    pub started: Moment,
    /// When it was answered, or given up.
    pub ended: Moment,
    pub attempts: u32,
    /// Attempts that ended with a timeout of the client's own.
    pub timeouts: u32,
    pub answered: bool,
}

/// A process of its own with `ureq`, a common HTTP library, as it comes.
///
/// # Errors
/// If the running test does not lie in a cargo build directory.
pub fn caller(orders: &Orders) -> Result<Client<Vec<Call>>> {
    let mut command = Command::new(tools::caller()?);
    command.arg(serde_json::to_string(orders).context("cannot write orders")?);
    Ok(Client::new(format!("caller {}", orders.label), command))
}

impl Report for Vec<Call> {
    fn read(finished: &Finished) -> Result<Self> {
        serde_json::from_str(&finished.stdout).with_context(|| {
            format!(
                "unexpected report of a caller: {}{}",
                finished.stdout, finished.stderr
            )
        })
    }
}
