//! The bpf file system: where it is mounted, and mounting it.

use std::{
    io,
    path::{Path, PathBuf},
};

use nix::mount::{MsFlags, mount};
use tracing::info;

use super::{KernelError, mounts};

/// Where it belongs (bpffs, Linux 4.4).
const USUAL: &str = "/sys/fs/bpf";

/// The mount, if there is one: at the usual place, or else any.
///
/// # Errors
/// [`KernelError::Bpffs`]: the mount table cannot be read.
pub fn find() -> Result<Option<PathBuf>, KernelError> {
    let table = mounts::table().map_err(|source| error("find", source))?;
    let all: Vec<_> = mounts::of_kind(&table, "bpf").collect();
    let usual = all.iter().find(|mount| mount.as_path() == Path::new(USUAL));
    Ok(usual.or(all.first()).cloned())
}

/// The mount; made at the usual place if there is none there. It stays: other programs may use it from then on. One
/// elsewhere may be somebody's for a while only: it serves where none can be made.
///
/// # Errors
/// [`KernelError::Bpffs`], with what to do.
pub fn find_or_mount() -> Result<PathBuf, KernelError> {
    let found = find()?;
    match found {
        Some(mount) if mount == Path::new(USUAL) => Ok(mount),
        Some(elsewhere) => Ok(make().unwrap_or(elsewhere)),
        None => make(),
    }
}

fn make() -> Result<PathBuf, KernelError> {
    // As systemd does it.
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount(Some("bpf"), USUAL, Some("bpf"), flags, Some("mode=700"))
        .map_err(|errno| error("mount", errno.into()))?;
    info!("mounted the bpf file system at {USUAL}");
    Ok(USUAL.into())
}

fn error(action: &'static str, source: io::Error) -> KernelError {
    KernelError::Bpffs { action, source }
}
