//! Why the kernel side could not be set up. Each says what to do about it.

use std::{io, path::PathBuf};

use thiserror::Error;

use super::capabilities::Capability;

#[derive(Debug, Error)]
pub enum KernelError {
    #[error(
        "no cgroup2 file system is mounted\n  shaper finds processes by their cgroup v2; mount it with\n    \
         mount -t cgroup2 none /sys/fs/cgroup/unified   (hybrid hosts)\n  or boot with systemd.unified_cgroup_hierarchy=1"
    )]
    NoCgroup2,

    #[error("{}: cannot {action} the cgroup: {source}", path.display())]
    Cgroup {
        path: PathBuf,
        action: &'static str,
        source: io::Error,
    },

    #[error(
        "not permitted: shaper lacks {}\n  run it as root (`cargo xtask run` uses sudo), or grant these capabilities",
        names(missing)
    )]
    NotPermitted { missing: Vec<Capability> },

    #[error(
        "the kernel refused the program {program}: {}\n  `shaper doctor` shows what this kernel lacks",
        last_words(cause)
    )]
    Load {
        program: &'static str,
        /// With the verifier's log, if it was the verifier.
        cause: String,
    },

    #[error("cannot attach {program} to {}: {cause}", cgroup.display())]
    Attach {
        program: &'static str,
        cgroup: PathBuf,
        cause: String,
    },

    #[error("cannot set up the BPF object: {0}")]
    Object(String),

    #[error("cannot use the BPF map {map}: {cause}")]
    Map { map: String, cause: String },

    #[error(
        "cannot {action} the bpf file system, which keeps shaper's maps and programs while no controller runs: {source}\n  \
         mount it with\n    mount -t bpf bpf /sys/fs/bpf\n  or run with --detach-on-exit, which needs none"
    )]
    Bpffs {
        action: &'static str,
        source: io::Error,
    },

    #[error("{}: cannot {action} what an earlier controller left pinned: {source}", path.display())]
    Pin {
        path: PathBuf,
        action: &'static str,
        source: io::Error,
    },

    #[error(
        "{} is governed by {by} already: two would hold the same connections. Give the classes of this one other \
         cgroups, or end that one with `shaper detach --instance NAME`",
        cgroup.display()
    )]
    Governed { cgroup: PathBuf, by: String },
}

/// The end of a verifier's log, which can have thousands of lines: the reason stands there.
pub fn last_words(log: &str) -> String {
    const LINES: usize = 12;
    let last: Vec<_> = log
        .lines()
        .rev()
        .filter(|line| !line.trim().is_empty())
        .take(LINES)
        .collect();
    last.into_iter().rev().collect::<Vec<_>>().join("\n    ")
}

fn names(capabilities: &[Capability]) -> String {
    let names: Vec<_> = capabilities
        .iter()
        .map(|capability| capability.name())
        .collect();
    names.join(", ")
}
