//! Room for thousands of sockets in one process.

use std::fs;

use anyhow::{Context, Result};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Lets this process, and what it starts from now on, open as many files as the kernel allows any process
/// (`fs.nr_open`), or as whoever started it may have. Returns how many that are.
///
/// # Errors
/// The bounds cannot be read.
pub fn raise() -> Result<usize> {
    const BOUND: &str = "/proc/sys/fs/nr_open";
    let text = fs::read_to_string(BOUND).context(BOUND)?;
    let bound: u64 = text.trim().parse().context(BOUND)?;
    // More than one's hard limit takes CAP_SYS_RESOURCE, which root in a container may not have.
    let allowed = match setrlimit(Resource::RLIMIT_NOFILE, bound, bound) {
        Ok(()) => bound,
        Err(_) => {
            let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).context("RLIMIT_NOFILE")?;
            setrlimit(Resource::RLIMIT_NOFILE, hard, hard).context("RLIMIT_NOFILE")?;
            hard
        }
    };
    Ok(usize::try_from(allowed).unwrap_or(usize::MAX))
}
