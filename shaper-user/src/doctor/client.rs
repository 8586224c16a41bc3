//! The client that is held, refused and ended: this binary again, as `shaper doctor-client`, because a cgroup holds
//! processes, not threads.

use std::{
    fmt,
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    os::{
        fd::{AsFd, AsRawFd},
        unix::process::CommandExt,
    },
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    sched::{CloneFlags, setns},
};
use serde::{Deserialize, Serialize};

use super::{cgroup::ScratchCgroup, netns::Ground};

/// The subcommand that runs [`connect_and_tell`].
pub const SUBCOMMAND: &str = "doctor-client";

/// How a connect ended: the line that the client prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Connected {
        /// How often the socket would have sent its SYN again (`TCP_SYNCNT`).
        syn_retries: u32,
    },
    Failed {
        errno: i32,
    },
}

impl fmt::Display for Outcome {
    /// As the end of a sentence about the connect.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected { .. } => f.write_str("was connected"),
            Self::Failed { errno } => {
                write!(f, "failed: {}", io::Error::from_raw_os_error(*errno))
            }
        }
    }
}

/// The client's side: connects, says how that ended, and keeps the connection until its standard input ends. So it
/// outlives nobody: with the examination its standard input goes, and with the attached programs the hold.
///
/// # Errors
/// When standard output or input is not there.
pub fn connect_and_tell(to: SocketAddr) -> io::Result<()> {
    let connected = TcpStream::connect(to);
    let outcome = match &connected {
        Ok(stream) => Outcome::Connected {
            syn_retries: syn_retries(stream)?,
        },
        Err(error) => Outcome::Failed {
            errno: error.raw_os_error().unwrap_or(0),
        },
    };
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, &outcome)?;
    writeln!(out)?;
    out.flush()?;
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}

fn syn_retries(stream: &TcpStream) -> io::Result<u32> {
    let mut value: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: `value` has room for `length` bytes.
    let result = unsafe {
        libc::getsockopt(
            stream.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_SYNCNT,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    Errno::result(result)?;
    Ok(value.unsigned_abs())
}

/// A running client; killed when dropped.
#[derive(Debug)]
pub struct Client {
    child: Child,
    stdin: Option<ChildStdin>,
    outcome: Receiver<Outcome>,
}

impl Client {
    /// Starts a client in the cgroup and on the ground that connects to `to`.
    ///
    /// # Errors
    /// When it cannot be started there.
    pub fn start(cgroup: &ScratchCgroup, ground: &Ground, to: SocketAddr) -> io::Result<Self> {
        let procs = cgroup.procs().try_clone()?;
        let netns = ground.netns().map(|netns| netns.try_clone()).transpose()?;
        // Not by name: this very binary, also when the file has been replaced.
        let mut command = Command::new("/proc/self/exe");
        command
            .args([SUBCOMMAND, &to.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit());
        let enter = move || {
            // "0" stands for the writer (Documentation/admin-guide/cgroup-v2.rst).
            (&procs).write_all(b"0")?;
            if let Some(netns) = &netns {
                setns(netns, CloneFlags::CLONE_NEWNET)?;
            }
            Ok(())
        };
        // SAFETY: between fork and exec this makes two plain system calls on descriptors opened before.
        unsafe { command.pre_exec(enter) };
        let mut child = command.spawn()?;
        let stdin = child.stdin.take();
        let stdout = child.stdout.take();
        let (sender, outcome) = mpsc::sync_channel(1);
        let client = Self {
            child,
            stdin,
            outcome,
        };
        let stdout = stdout.ok_or(io::ErrorKind::BrokenPipe)?;
        // Ends with the client's standard output, so with the client at the latest.
        thread::spawn(move || {
            let mut line = String::new();
            if BufReader::new(stdout).read_line(&mut line).is_ok()
                && let Ok(outcome) = serde_json::from_str(&line)
            {
                // Nobody waits for it any more: nothing lost.
                let _ = sender.send(outcome);
            }
        });
        Ok(client)
    }

    /// How the connect ended. `None`: it has not, within `patience`.
    pub fn outcome(&self, patience: Duration) -> Option<Outcome> {
        self.outcome.recv_timeout(patience).ok()
    }

    /// Makes the client close its connection and end.
    pub fn leave(&mut self) {
        self.stdin = None;
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Both fail only if it has been waited for, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    #[test]
    fn an_outcome_survives_the_way_to_the_examination() {
        for outcome in [
            Outcome::Connected { syn_retries: 127 },
            Outcome::Failed { errno: 103 },
        ] {
            let line = serde_json::to_string(&outcome).unwrap();
            assert_eq!(serde_json::from_str::<Outcome>(&line).unwrap(), outcome);
        }
    }

    #[test]
    fn the_retries_of_a_fresh_connection_are_the_hosts_default() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let default = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_syn_retries").unwrap();
        assert_eq!(
            syn_retries(&stream).unwrap(),
            default.trim().parse::<u32>().unwrap()
        );
    }
}
