//! Everything that a controller can leave on a host, listed, to be compared before and after.

use std::collections::BTreeSet;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::cgroup::cgroup2_mount;
use crate::clock::poll_until;
use crate::kernel_state::bpftool;

/// Where the control files of all instances are.
const CONTROL_FILES: &str = "/run/shaper";

/// The kernel's objects by kind, cgroups, pins and control files.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct HostListing(BTreeSet<String>);

#[derive(Debug, Deserialize)]
struct Object {
    id: u32,
    #[serde(default)]
    name: String,
    #[serde(rename = "type")]
    kind: String,
}

impl HostListing {
    pub fn now() -> Result<Self> {
        let mut all = BTreeSet::new();
        for what in ["prog", "map", "link"] {
            let objects: Vec<Object> = bpftool(&[what, "show"])?;
            all.extend(
                objects
                    .into_iter()
                    // The service manager loads firewalls of its own at any time.
                    .filter(|object| !object.name.starts_with("sd_"))
                    .map(|Object { id, name, kind }| format!("{what} {id} {kind} {name}")),
            );
        }
        for directory in [cgroup2_mount()?, "/sys/fs/bpf".into(), CONTROL_FILES.into()] {
            walk(&directory, &mut all)
                .with_context(|| format!("cannot list {}", directory.display()))?;
        }
        Ok(Self(all))
    }

    /// As soon as nothing changes any more: what came before may be going still.
    ///
    /// # Errors
    /// If something changes all the time.
    pub fn at_rest() -> Result<Self> {
        const PATIENCE: Duration = Duration::from_secs(20);
        /// Longer than the kernel takes to free what nobody uses.
        const REST: Duration = Duration::from_secs(1);
        let mut before = Self::now()?;
        poll_until(PATIENCE, || {
            sleep(REST);
            let now = Self::now();
            match &now {
                Ok(now) if *now != before => {
                    before = now.clone();
                    None
                }
                _ => Some(now),
            }
        })
        .context("the host's programs, maps, cgroups or pins change all the time")?
    }

    /// Waits until nothing more is there than was, and nothing less. The kernel frees objects a moment after their last
    /// user has gone.
    ///
    /// # Errors
    /// If that is not so after a few seconds; the message lists the differences.
    pub fn ensure_unchanged(&self) -> Result<()> {
        const PATIENCE: Duration = Duration::from_secs(5);
        let mut now = Self::now()?;
        poll_until(PATIENCE, || {
            if self.more(&now).is_empty() && self.less(&now).is_empty() {
                return Some(Ok(()));
            }
            Self::now().map(|again| now = again).err().map(Err)
        })
        .unwrap_or(Ok(()))?;
        let (more, less) = (self.more(&now), self.less(&now));
        ensure!(
            more.is_empty() && less.is_empty(),
            "left behind: {more:#?}; gone: {less:#?}"
        );
        Ok(())
    }

    /// What is there `now` and was not.
    fn more<'a>(&'a self, now: &'a Self) -> Vec<&'a String> {
        now.0.difference(&self.0).collect()
    }

    /// What was there and is not there `now`. The directory of the control files goes with the last one, whoever made it.
    fn less<'a>(&'a self, now: &'a Self) -> Vec<&'a String> {
        let gone = self.0.difference(&now.0);
        gone.filter(|entry| *entry != CONTROL_FILES).collect()
    }

    /// The paths that have `part` in them.
    pub fn with(&self, part: &str) -> Vec<&String> {
        self.0.iter().filter(|entry| entry.contains(part)).collect()
    }
}

/// Directories and, outside of the cgroup tree with its thousands of settings, files.
fn walk(directory: &Path, all: &mut BTreeSet<String>) -> Result<()> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    all.insert(directory.display().to_string());
    let is_cgroup = directory.join("cgroup.procs").exists();
    for entry in entries {
        let entry = entry?;
        let path: PathBuf = entry.path();
        if entry.file_type()?.is_dir() {
            walk(&path, all)?;
        } else if !is_cgroup {
            all.insert(path.display().to_string());
        }
    }
    Ok(())
}
