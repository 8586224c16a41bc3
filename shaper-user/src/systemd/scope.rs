//! Putting processes into a slice: in a scope of their own, made by systemd (systemd.scope(5)). Its tree has one writer,
//! itself; who writes into it otherwise is undone by the next change.

use std::{
    fs, io,
    path::Path,
    process::{self, Command},
    thread,
    time::{Duration, Instant, SystemTime},
};

use super::slice::Slice;

/// systemd's own client of its bus: one call does not take a library.
const BUSCTL: &str = "busctl";
const PREFIX: &str = "shaper-";
const SCOPE: &str = ".scope";

/// How long systemd may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why the processes are where they were.
#[derive(Debug, thiserror::Error)]
pub enum ScopeError {
    #[error("cannot start {BUSCTL}, which asks systemd: {0}; it is a part of systemd")]
    NoClient(io::Error),
    #[error(
        "systemd makes no scope in {slice}: {said}\n  root may ask it, and it listens on the system bus (package dbus)"
    )]
    Refused { slice: String, said: String },
    #[error(
        "systemd has not moved process {pid} into {scope} within 10 s: see `systemctl status {scope}`"
    )]
    NotMoved { pid: u32, scope: String },
}

/// Whether a cgroup of this name is a scope that [`start`] made.
pub fn is_ours(name: &str) -> bool {
    name.starts_with(PREFIX) && name.ends_with(SCOPE)
}

/// Has systemd move the processes into a new scope in `slice`, which it makes if absent, and waits until they are there. The
/// scope goes when they have ended. Returns its name.
///
/// # Errors
/// [`ScopeError`].
pub fn start(slice: &Slice, pids: &[u32]) -> Result<String, ScopeError> {
    let scope = fresh_name();
    let output = Command::new(BUSCTL)
        .args(call(&scope, slice, pids))
        .output()
        .map_err(ScopeError::NoClient)?;
    if !output.status.success() {
        return Err(ScopeError::Refused {
            slice: slice.name().to_owned(),
            said: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        });
    }
    let deadline = Instant::now() + PATIENCE;
    for pid in pids {
        while !is_in(*pid, &scope) {
            if Instant::now() > deadline {
                return Err(ScopeError::NotMoved { pid: *pid, scope });
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
    Ok(scope)
}

/// Unique among all scopes of this boot: no two processes have one id at one time.
fn fresh_name() -> String {
    let time = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    format!("{PREFIX}{}-{}{SCOPE}", process::id(), time.as_millis())
}

/// `StartTransientUnit` of org.freedesktop.systemd1(5), in busctl's words: each type before its value.
fn call(scope: &str, slice: &Slice, pids: &[u32]) -> Vec<String> {
    let mut words: Vec<String> = [
        "--system",
        "--quiet",
        "call",
        "org.freedesktop.systemd1",
        "/org/freedesktop/systemd1",
        "org.freedesktop.systemd1.Manager",
        "StartTransientUnit",
        "ssa(sv)a(sa(sv))",
        scope,
        "fail",
        "4",
        "Description",
        "s",
        "In a class of shaper",
        "Slice",
        "s",
        slice.name(),
        "CollectMode",
        "s",
        "inactive-or-failed",
        "PIDs",
        "au",
    ]
    .map(str::to_owned)
    .to_vec();
    words.push(pids.len().to_string());
    words.extend(pids.iter().map(ToString::to_string));
    // No auxiliary units.
    words.push("0".to_owned());
    words
}

/// Whether the process is in the scope now; one that has ended is where it should be.
fn is_in(pid: u32, scope: &str) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/cgroup")) {
        Ok(cgroups) => cgroups
            .lines()
            .any(|line| line.starts_with("0::") && Path::new(line).ends_with(scope)),
        Err(_) => true,
    }
}

#[cfg(test)]
mod tests {
    use shaper_common::Class;

    use super::*;

    #[test]
    fn systemd_is_asked_in_the_words_of_its_client() {
        let words = call("shaper-1-2.scope", &Slice::of_class(Class::Bulk), &[7, 8]);
        assert_eq!(
            words[7..].join(" "),
            "ssa(sv)a(sa(sv)) shaper-1-2.scope fail 4 Description s In a class of shaper Slice s shaper-bulk.slice \
             CollectMode s inactive-or-failed PIDs au 2 7 8 0"
        );
    }

    #[test]
    fn a_process_is_found_where_it_is() {
        assert!(!is_in(process::id(), "shaper-1-2.scope"));
        assert!(
            is_ours(&fresh_name()) && !is_ours("docker-1.scope") && !is_ours("shaper-bulk.slice")
        );
    }
}
