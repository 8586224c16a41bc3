//! Chromium without a window, driven through the pipe of its debugging protocol.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use nix::fcntl::OFlag;
use nix::libc;
use nix::unistd::pipe2;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tempfile::TempDir;

/// How long the browser may take for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the browser expects the pipe's ends.
const COMMANDS: RawFd = 3;
const ANSWERS: RawFd = 4;

/// A browser with one page; killed when dropped.
pub struct Browser {
    child: Child,
    commands: File,
    messages: Receiver<Value>,
    session: String,
    next: u64,
    /// What the page has complained of: exceptions, failed loads, violations of its policy.
    complaints: Vec<String>,
    _profile: TempDir,
}

impl Browser {
    /// Starts a browser of its own, with an empty profile, on an empty page.
    ///
    /// # Errors
    /// If there is no Chromium: the package `chromium`, which `cargo xtask setup` installs.
    pub fn start() -> Result<Self> {
        let profile = tempfile::tempdir().context("cannot make a directory")?;
        let (browser_reads, commands) = pipe2(OFlag::O_CLOEXEC)?;
        let (answers, browser_writes) = pipe2(OFlag::O_CLOEXEC)?;
        let mut command = Command::new("chromium");
        command
            .args(["--headless", "--no-sandbox", "--disable-gpu"])
            .args(["--disable-dev-shm-usage", "--disable-quic"])
            .args(["--no-first-run", "--disable-background-networking"])
            .args(["--disable-component-update", "--disable-sync"])
            .args(["--no-proxy-server", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg("about:blank")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        give(&mut command, browser_reads, browser_writes);
        let child = command
            .spawn()
            .context("cannot start chromium: run `cargo xtask setup`, which installs it")?;
        // The browser's ends are its own from here: else its end would not be seen.
        drop(command);
        let mut browser = Self {
            child,
            commands: File::from(commands),
            messages: read(File::from(answers)),
            session: String::new(),
            next: 0,
            complaints: Vec::new(),
            _profile: profile,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}))?;
        let attached = browser.call(
            "Target.attachToTarget",
            json!({"targetId": target["targetId"], "flatten": true}),
        )?;
        browser.session = attached["sessionId"]
            .as_str()
            .context("chromium gave no session")?
            .to_owned();
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}))?;
        }
        Ok(browser)
    }

    /// Goes to a page.
    pub fn open(&mut self, url: &str) -> Result<()> {
        let gone = self.call("Page.navigate", json!({"url": url}))?;
        match gone.get("errorText").and_then(Value::as_str) {
            Some(error) => bail!("cannot open {url}: {error}"),
            None => Ok(()),
        }
    }

    /// The value of an expression in the page, promises waited for.
    pub fn evaluate<T: DeserializeOwned>(&mut self, expression: &str) -> Result<T> {
        let answer = self.call(
            "Runtime.evaluate",
            json!({"expression": expression, "returnByValue": true, "awaitPromise": true}),
        )?;
        if let Some(exception) = answer.get("exceptionDetails") {
            bail!("{expression}: {exception}");
        }
        let value = answer["result"]["value"].clone();
        serde_json::from_value(value).with_context(|| format!("unexpected value of {expression}"))
    }

    /// Waits until an expression is true in the page.
    ///
    /// # Errors
    /// If it is not in time; the message shows the page's text.
    pub fn wait_for(&mut self, expression: &str) -> Result<()> {
        let begun = Instant::now();
        while !self.evaluate::<bool>(&format!("Boolean({expression})"))? {
            if begun.elapsed() > PATIENCE {
                let text: String = self.evaluate("document.body.innerText")?;
                bail!("{expression} did not come true; the page:\n{text}");
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// As a window of this many pixels shows it, in the dark or not.
    pub fn emulate(&mut self, width: u32, height: u32, scheme: &str) -> Result<()> {
        self.call(
            "Emulation.setDeviceMetricsOverride",
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}),
        )?;
        self.call(
            "Emulation.setEmulatedMedia",
            json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]}),
        )?;
        Ok(())
    }

    /// What the page has complained of until now.
    pub fn complaints(&mut self) -> Result<&[String]> {
        // An answer comes after everything that was said before it.
        self.evaluate::<bool>("true")?;
        Ok(&self.complaints)
    }

    fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        self.next += 1;
        let id = self.next;
        let mut message = json!({"id": id, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let mut bytes = serde_json::to_vec(&message)?;
        bytes.push(0);
        self.commands
            .write_all(&bytes)
            .with_context(|| format!("cannot tell chromium {method}"))?;
        loop {
            let mut message = self
                .messages
                .recv_timeout(PATIENCE)
                .map_err(|error| anyhow!("chromium does not answer {method}: {error}"))?;
            if message["id"] != id {
                self.note(&message);
            } else if let Some(error) = message.get("error") {
                bail!("{method}: {error}");
            } else {
                return Ok(message["result"].take());
            }
        }
    }

    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        let complaint = match event["method"].as_str() {
            Some("Runtime.exceptionThrown") => &params["exceptionDetails"],
            Some("Log.entryAdded") if params["entry"]["level"] == "error" => &params["entry"],
            Some("Runtime.consoleAPICalled") if params["type"] == "error" => params,
            _ => return,
        };
        self.complaints.push(complaint.to_string());
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // The whole family: the browser's helpers are processes of their own. Fails only if they have ended.
        let _ = nix::sys::signal::killpg(
            nix::unistd::Pid::from_raw(self.child.id().cast_signed()),
            nix::sys::signal::Signal::SIGKILL,
        );
        let _ = self.child.wait();
    }
}

/// Lets the command have the two descriptors under the numbers that the browser expects.
fn give(command: &mut Command, reads: OwnedFd, writes: OwnedFd) {
    // SAFETY: fcntl(2) and dup2(2) are all that runs between fork and exec, and both are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            // Out of the way first: either may have the other's number.
            let aside = |fd: &OwnedFd| {
                nix::errno::Errno::result(libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 10))
            };
            let (reads, writes) = (aside(&reads)?, aside(&writes)?);
            nix::errno::Errno::result(libc::dup2(reads, COMMANDS))?;
            nix::errno::Errno::result(libc::dup2(writes, ANSWERS))?;
            Ok(())
        });
    }
}

/// Reads the browser's messages, which end with a zero each, until it ends.
fn read(answers: File) -> Receiver<Value> {
    let (sender, messages) = mpsc::channel();
    thread::spawn(move || {
        let mut answers = BufReader::new(answers);
        let mut bytes = Vec::new();
        while matches!(answers.read_until(0, &mut bytes), Ok(1..)) {
            bytes.pop();
            if let Ok(message) = serde_json::from_slice(&bytes)
                && sender.send(message).is_err()
            {
                return;
            }
            bytes.clear();
        }
    });
    messages
}
