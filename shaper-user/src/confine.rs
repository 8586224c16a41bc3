//! Giving up what the controller does not need once its programs are loaded.
//!
//! What stays is much (entering namespaces takes CAP_SYS_ADMIN), so a system call filter takes away what could be done
//! with it. Both belong to a thread and are inherited by those it starts: this is for a process that has only one.

mod seccomp;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use caps::{CapSet, CapsHashSet, errors::CapsError};
use nix::{
    fcntl::AtFlags,
    sys::prctl,
    unistd::{AccessFlags, faccessat},
};
use tracing::{debug, info, warn};

use crate::{
    config::{self, Origin},
    kernel::Capability,
};

/// The files that the controller goes on using.
#[derive(Debug)]
pub struct Files<'a> {
    /// Read again on every reload.
    pub config: &'a Origin,
    /// Written, now or later; a directory is made if it is absent.
    pub written: Vec<PathBuf>,
}

/// Why something could not be given up.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    #[error(
        "cannot give up the capabilities that only the start needs: {0}; is a security module in the way? See the \
         kernel's log"
    )]
    Capabilities(#[from] CapsError),
    #[error("cannot forbid new privileges: {0}; is a system call filter in the way?")]
    NewPrivileges(io::Error),
}

/// Keeps the capabilities in [`Capability::RUNNING`], those that `files` cannot do without, and nothing else; forbids new
/// privileges and the system calls that a controller never makes.
///
/// # Errors
/// [`ConfineError`]. A kernel that has no system call filters is no error but a warning.
pub fn confine(files: &Files<'_>) -> Result<(), ConfineError> {
    let held = caps::read(None, CapSet::Permitted)?;
    let running = Capability::RUNNING.map(Capability::of_the_kernel);
    let mut kept: CapsHashSet = running
        .into_iter()
        .filter(|capability| held.contains(capability))
        .collect();
    caps::clear(None, CapSet::Ambient)?;
    caps::clear(None, CapSet::Inheritable)?;

    // From here on files are seen as they will be.
    let may_drop = held.contains(&caps::Capability::CAP_SETPCAP);
    let meanwhile = may_drop.then_some(caps::Capability::CAP_SETPCAP);
    let effective: CapsHashSet = kept.iter().copied().chain(meanwhile).collect();
    caps::set(None, CapSet::Effective, &effective)?;
    let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (capability, path) in out_of_reach(files) {
        if held.contains(&capability) {
            kept.insert(capability);
            let paths = reasons.entry(capability.to_string()).or_default();
            paths.push(path);
        }
    }
    for (capability, paths) in reasons {
        info!(
            "keeping {capability} beyond the start: root needs it for {}",
            paths.join(", ")
        );
    }
    // Who lacks CAP_SETPCAP cannot; programs it starts get no privileges all the same (below).
    if may_drop {
        for capability in caps::runtime::thread_all_supported().difference(&kept) {
            caps::drop(None, CapSet::Bounding, *capability)?;
        }
    }
    let beyond: CapsHashSet = effective.difference(&kept).copied().collect();
    for capability in beyond {
        caps::drop(None, CapSet::Effective, capability)?;
    }
    caps::set(None, CapSet::Permitted, &kept)?;
    caps::set(None, CapSet::Effective, &kept)?;
    prctl::set_no_new_privs().map_err(|errno| ConfineError::NewPrivileges(errno.into()))?;

    if let Err(error) = seccomp::install() {
        warn!(%error, "no system call filter: the controller could make calls it never needs");
    }
    debug!(?kept, "privileges given up");
    Ok(())
}

/// What root needs for files of others, and for which of `files`.
fn out_of_reach(files: &Files<'_>) -> Vec<(caps::Capability, String)> {
    let dir = match files.config {
        Origin::Directory(dir) => Some(dir.as_path()),
        Origin::Embedded => None,
    };
    let mut needed = Vec::new();
    // As a reload does it: each file counts, and so does each directory above.
    if config::load(dir).is_err() {
        let path = files.config.to_string();
        needed.push((caps::Capability::CAP_DAC_READ_SEARCH, path));
    }
    for path in files.written.iter().filter(|path| !writable(path)) {
        let path = path.display().to_string();
        needed.push((caps::Capability::CAP_DAC_OVERRIDE, path));
    }
    needed
}

/// Whether a file or directory can be written or, if it is absent, made.
fn writable(path: &Path) -> bool {
    let there = path.ancestors().find(|path| path.exists());
    let Some(there) = there else {
        // A relative path with nothing of it there: made in the working directory.
        return writable(Path::new("."));
    };
    if there != path && !there.is_dir() {
        return false;
    }
    let mut access = AccessFlags::W_OK;
    access.set(AccessFlags::X_OK, there.is_dir());
    faccessat(nix::fcntl::AT_FDCWD, there, access, AtFlags::AT_EACCESS).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_is_judged_by_what_it_would_be_made_in() {
        let dir = tempfile::tempdir().unwrap();
        assert!(writable(&dir.path().join("a/b/c")));
        assert!(!writable(Path::new("/proc/version/x")));
    }
}
