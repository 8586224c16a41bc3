//! HAProxy in TCP mode, as a sidecar that lets a number of connections through and queues the rest.

use std::{
    fs,
    net::{SocketAddr, TcpStream},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use nix::unistd::Pid;
use shaper_tests::{clock::poll_until, netns::Netns, process::Process};
use tempfile::TempDir;

use crate::worker::die_with_parent;

/// A frontend and the server behind it.
pub struct Forward {
    pub from: SocketAddr,
    pub to: SocketAddr,
    /// Connections that are let through at once.
    pub limit: usize,
}

/// A running HAProxy; killed when dropped.
pub struct Haproxy {
    process: Process,
    _directory: TempDir,
}

impl Haproxy {
    /// Starts it, in a namespace if there is one for it, and waits until it listens.
    ///
    /// # Errors
    /// It is not installed, or does not start; the message has its own words.
    pub fn start(netns: Option<&Netns>, forwards: &[Forward]) -> Result<Self> {
        let directory = tempfile::tempdir().context("cannot make a directory")?;
        let config = directory.path().join("haproxy.cfg");
        fs::write(&config, configuration(forwards)).context("cannot write a configuration")?;
        let mut command = Command::new("haproxy");
        // In the foreground.
        command.arg("-db").arg("-f").arg(&config);
        if let Some(netns) = netns {
            netns.contain(&mut command)?;
        }
        die_with_parent(&mut command);
        let mut process = Process::spawn("haproxy", &mut command)
            .context("HAProxy is one of the columns: `cargo xtask setup --bench` installs it")?;
        const PATIENCE: Duration = Duration::from_secs(5);
        for forward in forwards {
            let listens = || TcpStream::connect(forward.from).is_ok();
            let listens = poll_until(PATIENCE, || match process.ended() {
                Ok(None) => {
                    let listens = netns.map_or_else(|| Ok(listens()), |netns| netns.run(listens));
                    listens.is_ok_and(|listens| listens).then_some(true)
                }
                _ => Some(false),
            });
            if listens != Some(true) {
                bail!(
                    "HAProxy does not listen on {}; it said:\n{}",
                    forward.from,
                    process.said()
                );
            }
        }
        Ok(Self {
            process,
            _directory: directory,
        })
    }

    pub fn pid(&self) -> Pid {
        self.process.pid()
    }
}

fn configuration(forwards: &[Forward]) -> String {
    // One thread: with several, versions before 3.1 can forget a queue whose turn has come when the server's `maxconn` is
    // low (haproxy/haproxy#2711), and nobody in it is ever served.
    let mut text = "global\n  nbthread 1\n  maxconn 60000\n  no strict-limits\n\
                    defaults\n  mode tcp\n  timeout connect 10s\n  timeout client 10m\n  timeout server 10m\n  \
                    timeout queue 10m\n"
        .to_owned();
    for (number, Forward { from, to, limit }) in forwards.iter().enumerate() {
        text += &format!(
            "listen forward{number}\n  bind {from} backlog 20000\n  maxconn 60000\n  server gateway {to} maxconn {limit}\n"
        );
    }
    text
}
