//! A systemd of a scenario's own: process 1 of a PID namespace, over a copy of this system that nobody else sees, in a cgroup
//! of the scenario. Nothing is simulated but the reboot.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::cgroup::Cgroup;
use crate::clock::poll_until;
use crate::process::{Finished, Process};
use crate::tools;

const PATIENCE: Duration = Duration::from_secs(30);

/// What boots: the system bus, and nothing else. Targets that services of this system would come with are empty.
const UNITS: &[(&str, &str)] = &[
    (
        "test.target",
        "[Unit]\nDefaultDependencies=no\nWants=dbus.socket dbus.service\nAfter=dbus.socket dbus.service\n",
    ),
    ("sysinit.target", "[Unit]\nDefaultDependencies=no\n"),
    ("basic.target", "[Unit]\nDefaultDependencies=no\n"),
];
/// What others would bring along.
const MASKED: &[&str] = &["systemd-journald.socket", "systemd-tmpfiles-setup.service"];

/// A running systemd; killed with all its services when dropped.
#[derive(Debug)]
pub struct Systemd {
    _unshare: Process,
    init: Pid,
    directory: TempDir,
    cgroup: Cgroup,
}

impl Systemd {
    /// Boots with these further files, by their paths below the root.
    ///
    /// # Errors
    /// If systemd or the bus does not come up.
    pub fn boot(cgroup: &Cgroup, files: &[(&str, String)]) -> Result<Self> {
        let directory = tempfile::tempdir().context("cannot make a directory")?;
        let root = directory.path().join("root");
        let units = root.join("etc/systemd/system");
        fs::create_dir_all(&units)?;
        fs::create_dir(directory.path().join("out"))?;
        for (name, text) in UNITS {
            fs::write(units.join(name), text)?;
        }
        for name in MASKED {
            std::os::unix::fs::symlink("/dev/null", units.join(name))?;
        }
        for (path, text) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().context("a path without a directory")?)?;
            fs::write(path, text)?;
        }

        let shaper = tools::shaper()?;
        let programs = tools::probe()?;
        let programs = programs.parent().context("a path without a directory")?;
        let mut unshare = Command::new("unshare");
        unshare.args([
            "--fork",
            "--kill-child",
            "--pid",
            "--mount",
            "--uts",
            "--ipc",
        ]);
        unshare.arg("sh");
        unshare.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd/boot.sh"));
        unshare.args([directory.path(), &shaper, programs]);
        cgroup.contain(&mut unshare)?;
        let unshare = Process::spawn("systemd", &mut unshare)?;
        let init = poll_until(PATIENCE, || child_of(unshare.pid()))
            .with_context(|| format!("no process 1: {}", unshare.said()))?;
        let systemd = Self {
            init,
            directory,
            cgroup: cgroup.clone(),
            _unshare: unshare,
        };
        systemd.wait_for_the_bus()?;
        Ok(systemd)
    }

    fn wait_for_the_bus(&self) -> Result<()> {
        let mut last = None;
        let answers = poll_until(PATIENCE, || {
            let asked = self.run(["busctl", "--system", "status", "org.freedesktop.systemd1"]);
            let answers = matches!(&asked, Ok(finished) if finished.status.success());
            last = Some(asked);
            answers.then_some(())
        });
        answers.with_context(|| format!("systemd is not on the bus: {last:?}"))
    }

    /// `words`, as they run inside.
    pub fn inside<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Vec<String> {
        let init = self.init.to_string();
        let enter = ["nsenter", "--target", &init, "--mount", "--pid", "--"];
        let enter = enter.map(str::to_owned);
        enter
            .into_iter()
            .chain(words.into_iter().map(str::to_owned))
            .collect()
    }

    /// Runs a command inside.
    pub fn run<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Result<Finished> {
        let words = self.inside(words);
        let mut command = Command::new(&words[0]);
        Process::spawn(words.join(" "), command.args(&words[1..]))?.finish(PATIENCE)
    }

    /// Runs a command inside that has to succeed, and returns what it printed.
    pub fn done<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Result<String> {
        let words: Vec<_> = words.into_iter().collect();
        let finished = self.run(words.iter().copied())?;
        ensure!(
            finished.status.success(),
            "{} failed with {}: {}{}",
            words.join(" "),
            finished.status,
            finished.stdout,
            finished.stderr
        );
        Ok(finished.stdout)
    }

    /// The text of a file that something inside has written to `/run/out`.
    pub fn out(&self, name: impl AsRef<OsStr>) -> String {
        let path = self.directory.path().join("out").join(name.as_ref());
        fs::read_to_string(path).unwrap_or_default()
    }

    /// The cgroup at the top of its tree.
    pub fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }
}

/// The first child of a process: what `unshare` or `nsenter` has started.
pub fn child_of(parent: Pid) -> Option<Pid> {
    let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).ok()?;
    let child = children.split_whitespace().next()?.parse().ok()?;
    Some(Pid::from_raw(child))
}
