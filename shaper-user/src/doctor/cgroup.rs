//! cgroup v2, and a cgroup that lasts as long as the examination.

use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
    process, thread,
    time::Duration,
};

use super::report::{Finding, Probe};
use crate::kernel::{CgroupId, CgroupRoot, id_of};

/// The id of the root of the whole hierarchy (`cgroup_root`'s kernfs root inode). In a cgroup namespace the mount
/// shows another.
const TRUE_ROOT: CgroupId = CgroupId(1);

/// Looks for the mount.
pub fn find() -> (Option<CgroupRoot>, Finding) {
    let root = match CgroupRoot::find() {
        Ok(root) => root,
        Err(_) => {
            let finding = Probe::Cgroup2.missing(
                "no cgroup2 file system is mounted",
                "mount -t cgroup2 none /sys/fs/cgroup/unified (hybrid hosts), or boot with \
                 systemd.unified_cgroup_hierarchy=1",
            );
            return (None, finding);
        }
    };
    let path = root.path().display().to_string();
    let finding = match id_of(root.path()) {
        Ok(TRUE_ROOT) => Probe::Cgroup2.ok(path),
        Ok(_) => Probe::Cgroup2.degraded(
            format!(
                "{path} is a part of the hierarchy only: nothing outside of it can be governed"
            ),
            "run shaper in the host's cgroup namespace (--cgroupns=host for a container)",
        ),
        Err(error) => {
            Probe::Cgroup2.missing(error.to_string(), "remount it where this process may look")
        }
    };
    (Some(root), finding)
}

/// An empty cgroup, gone when dropped.
#[derive(Debug)]
pub struct ScratchCgroup {
    path: PathBuf,
    /// `cgroup.procs`, to move children in.
    procs: File,
}

/// Followed by the process id of the examination.
const PREFIX: &str = "shaper-doctor-";

impl ScratchCgroup {
    /// Makes the cgroup. Removes what examinations that were killed have left.
    ///
    /// # Errors
    /// Not permitted, or mounted read-only.
    pub fn create(root: &CgroupRoot) -> io::Result<Self> {
        remove_abandoned(root);
        let path = root.join(&format!("{PREFIX}{}", process::id()));
        fs::create_dir(&path)?;
        match OpenOptions::new()
            .write(true)
            .open(path.join("cgroup.procs"))
        {
            Ok(procs) => Ok(Self { path, procs }),
            Err(error) => {
                remove(&path);
                Err(error)
            }
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writing "0" to this moves the writer in.
    pub fn procs(&self) -> &File {
        &self.procs
    }
}

impl Drop for ScratchCgroup {
    fn drop(&mut self) {
        remove(&self.path);
    }
}

/// A process leaves its cgroup a moment after it could be waited for, so removal is tried for a while.
fn remove(path: &Path) {
    const PAUSE: Duration = Duration::from_millis(5);
    const TRIES: u32 = 200;
    for _ in 0..TRIES {
        match fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => thread::sleep(PAUSE),
            _ => return,
        }
    }
    eprintln!("the cgroup {} is left behind; rmdir it", path.display());
}

fn remove_abandoned(root: &CgroupRoot) {
    let entries = fs::read_dir(root.path()).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| is_abandoned(&entry.file_name())) {
        // Busy: a client of it still runs, and ends by itself soon.
        let _ = fs::remove_dir(entry.path());
    }
}

fn is_abandoned(name: &OsStr) -> bool {
    name.to_str()
        .and_then(|name| name.strip_prefix(PREFIX))
        .and_then(|pid| pid.parse::<u32>().ok())
        .is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cgroups_of_examinations_that_have_ended_are_abandoned() {
        // Beyond the largest `pid_max`.
        assert!(is_abandoned(OsStr::new("shaper-doctor-4194305")));
        let own = format!("{PREFIX}{}", process::id());
        for name in [own.as_str(), "shaper", "shaper-doctor-", "shaper-doctor-x"] {
            assert!(!is_abandoned(OsStr::new(name)), "{name}");
        }
    }
}
