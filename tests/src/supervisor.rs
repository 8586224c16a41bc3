//! A supervisor that listens for news, as systemd does for a service of `Type=notify`.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

use crate::clock::poll_until;

/// The socket behind `NOTIFY_SOCKET`.
#[derive(Debug)]
pub struct Supervisor {
    socket: UnixDatagram,
    directory: TempDir,
}

impl Supervisor {
    pub fn new() -> Result<Self> {
        let directory = tempfile::tempdir().context("cannot make a directory")?;
        let socket = UnixDatagram::bind(directory.path().join("notify"))
            .context("cannot make a notification socket")?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, directory })
    }

    /// The value of `NOTIFY_SOCKET`.
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("notify")
    }

    /// Waits for news that begins with `first`, skipping others, and returns its lines.
    ///
    /// # Errors
    /// If it does not come within ten seconds; the message shows what came instead.
    pub fn wait_for(&self, first: &str) -> Result<Vec<String>> {
        const PATIENCE: Duration = Duration::from_secs(10);
        let mut skipped = Vec::new();
        poll_until(PATIENCE, || {
            let mut buffer = [0; 4096];
            let length = self.socket.recv(&mut buffer).ok()?;
            let news = String::from_utf8_lossy(&buffer[..length]).into_owned();
            let lines: Vec<String> = news.lines().map(str::to_owned).collect();
            if lines.first().is_some_and(|line| line == first) {
                return Some(lines);
            }
            skipped.push(news);
            None
        })
        .with_context(|| format!("{first} did not come; what came was {skipped:?}"))
    }
}
