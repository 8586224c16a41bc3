//! Cgroups made for one scenario. A socket belongs to the cgroup its process is in when the socket is
//! created, so a client is placed before it executes.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use crate::clock::poll_until;

/// Where cgroup v2 is mounted. On a hybrid host that is not `/sys/fs/cgroup`, so the mount table is asked.
///
/// # Errors
/// If it is not mounted.
pub fn cgroup2_mount() -> Result<PathBuf> {
    let table = fs::read_to_string("/proc/self/mounts").context("cannot read the mount table")?;
    cgroup2_mounts(&table)
        .next()
        .ok_or_else(|| anyhow!("cgroup v2 is not mounted: `mount -t cgroup2 none /sys/fs/cgroup`"))
}

/// Every cgroup v2 mount point in a mount table of the form of `/proc/self/mounts`.
pub fn cgroup2_mounts(table: &str) -> impl Iterator<Item = PathBuf> {
    table.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let point = fields.next()?;
        (fields.next()? == "cgroup2").then(|| PathBuf::from(point))
    })
}

/// A cgroup subtree of one scenario: gone, members and all, when dropped.
#[derive(Debug)]
pub struct CgroupTree {
    name: String,
    path: PathBuf,
}

impl CgroupTree {
    pub fn create() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "shaper-test-{}-{}",
            process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let path = cgroup2_mount()?.join(&name);
        fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self { name, path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A cgroup in the tree, created if it is not there. `name` may have several levels.
    pub fn group(&self, name: &str) -> Result<Cgroup> {
        let path = self.path.join(name);
        fs::create_dir_all(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Cgroup {
            relative: format!("{}/{name}", self.name),
            path,
        })
    }
}

impl Drop for CgroupTree {
    fn drop(&mut self) {
        const PATIENCE: Duration = Duration::from_secs(5);
        // Kills every member at every depth (5.14 and later). A killed member leaves a moment later, so removal
        // is tried until it works.
        let _ = fs::write(self.path.join("cgroup.kill"), "1");
        let removed = poll_until(PATIENCE, || remove_deepest_first(&self.path).ok());
        if removed.is_none() {
            eprintln!("cgroup {} is left behind", self.path.display());
        }
    }
}

fn remove_deepest_first(path: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_deepest_first(&entry.path())?;
        }
    }
    match fs::remove_dir(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// One cgroup of a [`CgroupTree`].
#[derive(Clone, Debug)]
pub struct Cgroup {
    relative: String,
    path: PathBuf,
}

impl Cgroup {
    /// One that somebody else keeps, by its path below the cgroup2 mount.
    pub fn existing(relative: &str) -> Result<Self> {
        Ok(Self {
            relative: relative.to_owned(),
            path: cgroup2_mount()?.join(relative),
        })
    }

    /// The path below the cgroup2 mount, as a configuration file spells it.
    pub fn relative(&self) -> &str {
        &self.relative
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes `command` run in this cgroup from its first instruction.
    pub fn contain(&self, command: &mut Command) -> Result<()> {
        let procs = self.path.join("cgroup.procs");
        let file: File = OpenOptions::new()
            .write(true)
            .open(&procs)
            .with_context(|| format!("cannot open {}", procs.display()))?;
        // SAFETY: between fork and exec the closure makes one write(2) on a descriptor opened before, which is
        // async-signal-safe. "0" stands for the writing process.
        unsafe {
            command.pre_exec(move || (&file).write_all(b"0"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup2_is_found_on_hybrid_and_on_pure_hosts() {
        let hybrid = "cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
                      cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        let pure = "cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n";
        let none = "proc /proc proc rw 0 0\n";
        let found = |table| cgroup2_mounts(table).collect::<Vec<_>>();
        assert_eq!(found(hybrid), [Path::new("/sys/fs/cgroup/unified")]);
        assert_eq!(found(pure), [Path::new("/sys/fs/cgroup")]);
        assert!(found(none).is_empty());
    }
}
