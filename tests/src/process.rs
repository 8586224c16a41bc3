//! A child process with a bound on its life: its output is drained as it comes, its end is waited for with a
//! timeout, and it is killed when the value that stands for it goes.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::clock::poll_until;

/// A running child.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    stdout: Drain,
    stderr: Drain,
}

/// How a child ended and what it had said.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    /// The exit code, or an error that names the signal and shows what the child said.
    pub fn exit_code(&self) -> Result<i32> {
        self.status.code().with_context(|| {
            format!(
                "ended by signal {:?}; it said:\n{}{}",
                self.status.signal(),
                self.stdout,
                self.stderr
            )
        })
    }
}

impl Process {
    /// Starts `command` with its output captured. `name` is for messages.
    pub fn spawn(name: impl Into<String>, command: &mut Command) -> Result<Self> {
        let name = name.into();
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {name} ({:?})", command.get_program()))?;
        let stdout = Drain::start(child.stdout.take().expect("stdout is piped"));
        let stderr = Drain::start(child.stderr.take().expect("stderr is piped"));
        Ok(Self {
            name,
            child,
            stdout,
            stderr,
        })
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// What the child has said until now, standard output first.
    pub fn said(&self) -> String {
        self.stdout.text() + &self.stderr.text()
    }

    /// The exit status if the child has ended.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child
            .try_wait()
            .with_context(|| format!("cannot wait for {}", self.name))
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill(self.pid(), signal).with_context(|| format!("cannot send {signal} to {}", self.name))
    }

    /// SIGKILL, and the wait for the end that follows.
    pub fn kill9(mut self) -> Result<()> {
        self.child
            .kill()
            .and_then(|()| self.child.wait())
            .with_context(|| format!("cannot kill {}", self.name))?;
        Ok(())
    }

    /// Waits for the child's own end.
    ///
    /// # Errors
    /// If it still runs after `timeout`; the message shows what it said. It is killed then.
    pub fn finish(mut self, timeout: Duration) -> Result<Finished> {
        let Some(status) = poll_until(timeout, || self.ended().transpose()) else {
            bail!(
                "{} still runs after {timeout:?}; it said:\n{}",
                self.name,
                self.said()
            );
        };
        Ok(Finished {
            status: status?,
            stdout: self.stdout.finish(),
            stderr: self.stderr.finish(),
        })
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if the child has been waited for, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads a pipe to its end on a thread of its own, so that a talkative child never blocks on it.
#[derive(Debug)]
struct Drain {
    text: Arc<Mutex<String>>,
    reader: Option<JoinHandle<()>>,
}

impl Drain {
    fn start(pipe: impl Read + Send + 'static) -> Self {
        let text = Arc::new(Mutex::new(String::new()));
        let sink = Arc::clone(&text);
        let reader = thread::spawn(move || {
            let mut lines = BufReader::new(pipe);
            let mut line = Vec::new();
            while matches!(lines.read_until(b'\n', &mut line), Ok(1..)) {
                let said = String::from_utf8_lossy(&line);
                sink.lock().expect("the drain's lock").push_str(&said);
                line.clear();
            }
        });
        Self {
            text,
            reader: Some(reader),
        }
    }

    fn text(&self) -> String {
        self.text.lock().expect("the drain's lock").clone()
    }

    /// What was said up to the end of the pipe. A grandchild that keeps the pipe open is not waited for.
    fn finish(&mut self) -> String {
        const GRACE: Duration = Duration::from_secs(1);
        if let Some(reader) = self.reader.take() {
            let at_end = poll_until(GRACE, || reader.is_finished().then_some(()));
            if at_end.is_some() {
                reader.join().expect("the drain does not panic");
            }
        }
        self.text()
    }
}
