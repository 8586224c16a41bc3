//! Many clients in one process group: `src/bin/crowd.rs`.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::client::{self, Client};
use crate::clock::Moment;
use crate::gateway::Gateway;
use crate::process::Finished;
use crate::tools;

/// What each client of a crowd does, over and over.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Habit {
    /// A whole call, with a patience of 200 ms for the connect in every second worker. Workers are killed at random.
    Call,
    /// Connects without waiting and keeps what it has, up to `hold` sockets, closing the oldest.
    Rush,
    /// Connects, waits for that, and resets.
    Flap,
    /// Connects, sends nothing, and keeps the connection until the end.
    Silent,
    /// Sends a request one byte at a time.
    Trickle,
}

/// A crowd to be.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Crowd {
    pub habit: Habit,
    /// Taken in turn: each address has its own 28,000 ports.
    pub addresses: Vec<SocketAddr>,
    pub label: String,
    /// Connects in all.
    pub connects: u64,
    pub workers: u64,
    /// How many workers are killed, at random; others take their places.
    pub kills: u64,
    /// The most sockets that one worker keeps.
    pub hold: usize,
    /// How long a worker stays after its last connect, with what it keeps.
    pub stay: Duration,
}

impl Crowd {
    /// One worker that keeps nothing and is not killed.
    pub fn new(habit: Habit, addresses: &[SocketAddr], label: &str, connects: u64) -> Self {
        Self {
            habit,
            addresses: addresses.to_vec(),
            label: label.to_owned(),
            connects,
            workers: 1,
            kills: 0,
            hold: 0,
            stay: Duration::ZERO,
        }
    }

    /// The crowd as a client of the tests.
    pub fn client(&self) -> Result<Client<Report>> {
        let mut command = Command::new(tools::crowd()?);
        command.arg(serde_json::to_string(self)?);
        Ok(Client::new(format!("crowd {}", self.label), command))
    }
}

impl client::Report for Report {
    fn read(finished: &Finished) -> Result<Self> {
        // What broke, for the test's output.
        print!("{}", finished.stderr);
        client::parse(finished)
    }
}

/// A call that ended with ECONNRESET.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Reset {
    /// The client's port.
    pub port: u16,
    /// When it heard of it, in nanoseconds of `CLOCK_MONOTONIC`.
    pub at_ns: u64,
}

/// What a crowd counted.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Report {
    pub attempts: u64,
    pub answered: u64,
    pub refused: u64,
    pub expired: u64,
    pub gave_up: u64,
    /// Any other end.
    pub broken: u64,
    /// Those of them that were ECONNRESET.
    pub resets: Vec<Reset>,
    pub killed: u64,
    /// Of whole calls that were answered, in microseconds.
    pub median_us: u64,
}

/// Asserts that no call of these crowds, which are gone, ended in another way than shaper's or the gateway's.
///
/// Before Linux 6.19 the kernel itself may reset a client whose gateway is on the same host (`inet_ehash_insert` in
/// docs/kernel-facts.md): no more of them than that are let pass. It leaves a trace, which is printed: the gateway's half of
/// the connection is made, and waits for a first byte until the client's port is used again.
pub fn assert_no_other_error(reports: &[Report], gateway: &Gateway) {
    /// Measured: ten in 3,800,000; at most four in 480,000, on a busy machine.
    const CONNECTS_PER_RESET: u64 = 50_000;
    let sum = |count: fn(&Report) -> u64| reports.iter().map(count).sum::<u64>();
    let resets: Vec<_> = reports.iter().flat_map(|report| &report.resets).collect();
    let count = resets.len() as u64;
    assert_eq!(sum(|report| report.broken), count, "another error");
    for reset in resets {
        let at = Moment::from(reset.at_ns);
        let halves = gateway.unheard_from(reset.port).into_iter();
        let before: Vec<_> = halves.map(|half| at.since(half)).collect();
        println!("{reset:?}: such halves of a connection were accepted before it by {before:?}");
    }
    assert!(count <= 1 + sum(|report| report.attempts) / CONNECTS_PER_RESET);
}
