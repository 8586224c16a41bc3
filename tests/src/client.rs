//! Unmodified clients as child processes: `curl`, Python, and a raw TCP client for exact times.

use std::ffi::{OsStr, OsString};
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use nix::unistd::Pid;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::cgroup::Cgroup;
use crate::clock::Moment;
use crate::name_server::NameServer;
use crate::netns::Netns;
use crate::process::{Finished, Process};
use crate::tools;

/// What a client tells when it has ended.
pub trait Report: Sized {
    /// # Errors
    /// If the client ended in a way that tells nothing, such as by a signal or an exception.
    fn read(finished: &Finished) -> Result<Self>;
}

/// A client to be started; `R` is what it will report.
#[derive(Debug)]
pub struct Client<R> {
    name: String,
    command: Command,
    report: PhantomData<fn() -> R>,
}

impl<R: Report> Client<R> {
    pub(crate) fn new(name: impl Into<String>, command: Command) -> Self {
        Self {
            name: name.into(),
            command,
            report: PhantomData,
        }
    }

    /// One more argument.
    #[must_use]
    pub fn argument(mut self, argument: impl AsRef<str>) -> Self {
        self.command.arg(argument.as_ref());
        self
    }

    /// Runs the client as the user `nobody`. Not by [`Command::uid`], which would come before the ways into namespace and
    /// cgroup.
    #[must_use]
    pub fn as_nobody(self) -> Self {
        let words = [
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
        ];
        self.under(words.map(str::to_owned))
    }

    /// Has another command start the client: the first of the words, with the others before the client's own.
    #[must_use]
    pub fn under(mut self, words: impl IntoIterator<Item = String>) -> Self {
        let own = std::iter::once(self.command.get_program()).chain(self.command.get_args());
        let words = words.into_iter().map(OsString::from);
        let mut words = words.chain(own.map(OsStr::to_owned));
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words);
        self.command = command;
        self
    }

    /// Starts the client in the cgroup of the test.
    pub fn spawn(mut self) -> Result<Running<R>> {
        Ok(Running {
            process: Process::spawn(self.name, &mut self.command)?,
            report: PhantomData,
        })
    }

    /// Lets the client live in a network namespace.
    pub fn in_netns(mut self, netns: &Netns) -> Result<Self> {
        netns.contain(&mut self.command)?;
        Ok(self)
    }

    /// Lets the client ask this name server and no other.
    #[must_use]
    pub fn asking(mut self, server: &NameServer) -> Self {
        server.contain(&mut self.command);
        self
    }

    /// Starts the client as a member of a cgroup.
    pub fn spawn_in(mut self, cgroup: &Cgroup) -> Result<Running<R>> {
        cgroup.contain(&mut self.command)?;
        self.spawn()
    }
}

/// A client at work; killed when dropped.
#[derive(Debug)]
pub struct Running<R> {
    process: Process,
    report: PhantomData<fn() -> R>,
}

impl<R: Report> Running<R> {
    pub fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// True as long as the client has not ended.
    pub fn still_runs(&mut self) -> Result<bool> {
        Ok(self.process.ended()?.is_none())
    }

    /// What the client has said until now.
    pub fn said(&self) -> String {
        self.process.said()
    }

    /// SIGKILL.
    pub fn kill9(self) -> Result<()> {
        self.process.kill9()
    }

    /// Waits for the client's end and reads its report.
    pub fn finish(self, timeout: Duration) -> Result<R> {
        R::read(&self.process.finish(timeout)?)
    }
}

/// Waits for all of them, in order, each at most `timeout`.
pub fn finish_all<R: Report>(
    clients: impl IntoIterator<Item = Running<R>>,
    timeout: Duration,
) -> Result<Vec<R>> {
    clients
        .into_iter()
        .map(|client| client.finish(timeout))
        .collect()
}

/// `curl` posting a prompt of a few hundred bytes, the shape of a model call. The label ends up in the gateway's log.
pub fn curl(url: &str, label: &str) -> Client<CurlReport> {
    // A request longer than any `wake_bytes`, so that nobody takes it for part of a handshake.
    let prompt = format!(r#"{{"prompt": "{}"}}"#, "word ".repeat(100));
    let mut command = Command::new("curl");
    command
        // Without the user's own settings and proxies, which would lead elsewhere.
        .args(["-q", "--noproxy", "*"])
        .args(["--silent", "--verbose", "--output", "/dev/null"])
        .args(["--write-out", "%{json}"])
        .args(["--header", &format!("X-Label: {label}")])
        .args(["--header", "Content-Type: application/json"])
        .args(["--data-raw", &prompt, url]);
    Client::new(format!("curl {label}"), command)
}

/// What `curl --write-out %{json}` and its log tell.
#[derive(Clone, Debug)]
pub struct CurlReport {
    pub outcome: CurlOutcome,
    /// From the start until `connect()` had succeeded; zero if it never did.
    pub connect: Duration,
    pub total: Duration,
}

#[derive(Clone, Debug, Eq, PartialEq)]
pub enum CurlOutcome {
    /// An HTTP answer with this status.
    Answered(u16),
    /// Exit code 7: `connect()` failed. The reason is the C library's text for the errno, such as
    /// `Connection refused`.
    ConnectFailed { reason: String },
    /// Any other end, in curl's words.
    Failed { exit_code: i32, message: String },
}

impl CurlOutcome {
    pub fn answered() -> Self {
        Self::Answered(200)
    }

    /// ECONNREFUSED from `connect()`.
    pub fn refused() -> Self {
        Self::ConnectFailed {
            reason: "Connection refused".to_owned(),
        }
    }
}

impl Report for CurlReport {
    fn read(finished: &Finished) -> Result<Self> {
        /// `CURLE_COULDNT_CONNECT`.
        const COULD_NOT_CONNECT: i32 = 7;

        #[derive(Deserialize)]
        struct WriteOut {
            http_code: u16,
            errormsg: Option<String>,
            time_connect: f64,
            time_total: f64,
        }
        let exit_code = finished.exit_code()?;
        let told: WriteOut = parse(finished)?;
        let outcome = match exit_code {
            0 => CurlOutcome::Answered(told.http_code),
            COULD_NOT_CONNECT => CurlOutcome::ConnectFailed {
                reason: connect_error(&finished.stderr).with_context(|| {
                    format!(
                        "curl does not say why connect() failed:\n{}",
                        finished.stderr
                    )
                })?,
            },
            _ => CurlOutcome::Failed {
                exit_code,
                message: told.errormsg.unwrap_or_default(),
            },
        };
        Ok(Self {
            outcome,
            connect: Duration::from_secs_f64(told.time_connect),
            total: Duration::from_secs_f64(told.time_total),
        })
    }
}

/// The reason in the verbose log: `connect to 127.0.0.1 port 80 failed: Connection refused`, or, when `connect()`
/// itself returned the error, `Immediate connect fail for 127.0.0.1: Connection refused`.
fn connect_error(log: &str) -> Option<String> {
    log.lines()
        .filter(|line| line.contains(" failed: ") || line.contains("connect fail for "))
        .find_map(|line| Some(line.rsplit_once(": ")?.1.trim().to_owned()))
}

/// A raw TCP client in Rust that calls once and reports exact times.
pub fn probe(gateway: SocketAddr, label: &str) -> Result<Client<ProbeReport>> {
    let mut command = Command::new(tools::probe()?);
    command.args([&gateway.to_string(), label]);
    Ok(Client::new(format!("probe {label}"), command))
}

/// So many of them in each cgroup.
pub fn probes(
    gateway: SocketAddr,
    counts: &[(&Cgroup, usize)],
) -> Result<Vec<Running<ProbeReport>>> {
    counts
        .iter()
        .flat_map(|(cgroup, count)| std::iter::repeat_n(cgroup, *count))
        .map(|cgroup| probe(gateway, "client")?.spawn_in(cgroup))
        .collect()
}

/// As [`probe`], but the client connects through io_uring.
pub fn uring(gateway: SocketAddr, label: &str) -> Result<Client<ProbeReport>> {
    Ok(probe(gateway, label)?.argument("uring"))
}

/// What the raw TCP client reports.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
pub enum ProbeReport {
    Answered(ProbeTimes),
    Failed {
        started: Moment,
        failed: Moment,
        errno: i32,
    },
}

/// When a call of the raw TCP client made its steps.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct ProbeTimes {
    /// Just before `connect()`.
    pub started: Moment,
    /// Just after it.
    pub connected: Moment,
    /// When the gateway had closed.
    pub answered: Moment,
    /// Of the whole answer.
    pub bytes: usize,
}

impl ProbeReport {
    /// The times of a call that was answered.
    ///
    /// # Errors
    /// If it was not.
    pub fn answered(self) -> Result<ProbeTimes> {
        match self {
            Self::Answered(times) => Ok(times),
            Self::Failed {
                started,
                failed,
                errno,
            } => bail!(
                "the call failed after {:?} with {}",
                failed.since(started),
                nix::errno::Errno::from_raw(errno)
            ),
        }
    }
}

impl Report for ProbeReport {
    fn read(finished: &Finished) -> Result<Self> {
        parse(finished)
    }
}

/// A Python program that prints one JSON document of the form of `R` when it is done.
pub fn python<R: DeserializeOwned>(name: &str, program: &str) -> Client<PythonReport<R>> {
    let mut command = Command::new("python3");
    command.args(["-c", program]);
    Client::new(format!("python {name}"), command)
}

/// What a Python program printed.
#[derive(Clone, Debug)]
pub struct PythonReport<R>(pub R);

impl<R: DeserializeOwned> Report for PythonReport<R> {
    fn read(finished: &Finished) -> Result<Self> {
        ensure!(
            finished.status.success(),
            "the program failed:\n{}",
            finished.stderr
        );
        parse(finished).map(Self)
    }
}

/// The JSON document that a client printed.
pub(crate) fn parse<R: DeserializeOwned>(finished: &Finished) -> Result<R> {
    serde_json::from_str(&finished.stdout).with_context(|| {
        format!(
            "the client ended with {} and printed no report; it said:\n{}{}",
            finished.status, finished.stdout, finished.stderr
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_of_a_failed_connect_is_found_in_every_wording_of_curl() {
        for log in [
            "* connect to 127.0.0.1 port 1 failed: Connection refused\n\
             * Failed to connect to 127.0.0.1 port 1 after 2 ms: Couldn't connect to server",
            "* connect to 127.0.0.1 port 1 from 127.0.0.1 port 40962 failed: Connection refused",
            "*   Trying [::1]:1...\n* Immediate connect fail for ::1: Connection refused",
        ] {
            assert_eq!(
                connect_error(log).as_deref(),
                Some("Connection refused"),
                "{log}"
            );
        }
    }
}
