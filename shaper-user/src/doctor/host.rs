//! What can be seen without privileges: the kernel and its settings.

use std::{fmt, fs, io, path::Path};

use nix::sys::statfs::{BPF_FS_MAGIC, statfs};

use super::report::{Finding, Probe};

/// A kernel version, as far as features depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    major: u32,
    minor: u32,
}

/// `bpf_set_retval` in connect and sendmsg programs, the youngest thing that the programs use.
const NEEDED: Version = Version { major: 6, minor: 1 };

/// From this version on the memory of maps counts against the memory cgroup, not against RLIMIT_MEMLOCK.
const MEMCG_ACCOUNTING: Version = Version {
    major: 5,
    minor: 11,
};

/// A bound on what all maps take, for kernels that count it as locked memory.
const MAPS_BYTES: u64 = 64 << 20;

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl Version {
    /// The version in a release such as `6.18.44-1-cloud-amd64`.
    fn of(release: &str) -> Option<Self> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        Some(Self {
            major: numbers.next()?.parse().ok()?,
            minor: numbers.next()?.parse().ok()?,
        })
    }
}

/// One finding for each setting.
pub fn examine() -> Vec<Finding> {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_default();
    let limits = read("/proc/self/limits").unwrap_or_default();
    vec![
        kernel(&release),
        btf(Path::new("/sys/kernel/btf/vmlinux").exists()),
        jit(read("/proc/sys/net/core/bpf_jit_enable").as_deref()),
        memlock(Version::of(&release), locked_memory_limit(&limits)),
        bpffs(),
    ]
}

fn read(path: &str) -> io::Result<String> {
    fs::read_to_string(path).map(|text| text.trim().to_owned())
}

fn kernel(release: &str) -> Finding {
    match Version::of(release) {
        Some(version) if version >= NEEDED => Probe::Kernel.ok(format!("Linux {release}")),
        Some(_) => Probe::Kernel.degraded(
            format!(
                "Linux {release} is older than {NEEDED}; only if its maker has added what is tried below will it do"
            ),
            format!("boot Linux {NEEDED} or newer"),
        ),
        None => Probe::Kernel.untried(&format!("the kernel calls itself {release:?}")),
    }
}

fn btf(present: bool) -> Finding {
    if present {
        return Probe::Btf.ok("/sys/kernel/btf/vmlinux");
    }
    Probe::Btf.degraded(
        "the kernel does not describe its types: programs may fail to load, and bpftool cannot show them",
        "use a kernel built with CONFIG_DEBUG_INFO_BTF=y",
    )
}

fn jit(setting: Result<&str, &io::Error>) -> Finding {
    match setting {
        Ok("0") => Probe::Jit.degraded(
            "off: programs are interpreted, each packet of a governed cgroup costs several times as much",
            "sysctl net.core.bpf_jit_enable=1",
        ),
        Ok(_) => Probe::Jit.ok("on"),
        Err(error) => {
            Probe::Jit.untried(&format!("cannot read net.core.bpf_jit_enable: {error}"))
        }
    }
}

/// A bound on locked memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LockedMemory {
    Unlimited,
    Bytes(u64),
}

/// The soft limit in a text of the form of `/proc/self/limits`.
fn locked_memory_limit(limits: &str) -> Option<LockedMemory> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max locked memory"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(LockedMemory::Unlimited),
        bytes => bytes.parse().ok().map(LockedMemory::Bytes),
    }
}

fn memlock(version: Option<Version>, limit: Option<LockedMemory>) -> Finding {
    if version.is_some_and(|version| version >= MEMCG_ACCOUNTING) {
        return Probe::Memlock.ok(format!(
            "no matter: maps count against the memory cgroup since Linux {MEMCG_ACCOUNTING}"
        ));
    }
    match limit {
        None => Probe::Memlock.untried("/proc/self/limits has no such line"),
        Some(LockedMemory::Unlimited) => Probe::Memlock.ok("unlimited"),
        Some(LockedMemory::Bytes(bytes)) if bytes >= MAPS_BYTES => {
            Probe::Memlock.ok(format!("{bytes} bytes"))
        }
        Some(LockedMemory::Bytes(bytes)) => Probe::Memlock.degraded(
            format!("{bytes} bytes: the maps may not fit"),
            "ulimit -l unlimited, or LimitMEMLOCK=infinity in the service",
        ),
    }
}

/// Where bpffs belongs (Documentation/filesystems/bpf).
const BPF_FS: &str = "/sys/fs/bpf";

fn bpffs() -> Finding {
    match statfs(BPF_FS) {
        Ok(found) if found.filesystem_type() == BPF_FS_MAGIC => Probe::BpfFs.ok(BPF_FS),
        _ => Probe::BpfFs.degraded(
            format!("not mounted at {BPF_FS}: maps cannot be pinned, so a restart starts afresh"),
            format!("mount -t bpf bpf {BPF_FS}"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::report::Verdict;

    #[test]
    fn distributions_releases_are_read() {
        for (release, version) in [
            ("6.18.44-fc", Some((6, 18))),
            ("5.14.0-427.el9.x86_64", Some((5, 14))),
            ("6.9-rc1", Some((6, 9))),
            ("plan9", None),
            ("", None),
        ] {
            let expected = version.map(|(major, minor)| Version { major, minor });
            assert_eq!(Version::of(release), expected, "{release}");
        }
    }

    #[test]
    fn an_old_kernel_is_left_to_the_probes_below() {
        assert_eq!(kernel("6.1.0-18-amd64").verdict, Verdict::Ok);
        let old = kernel("5.14.0-427.el9.x86_64");
        assert_eq!(old.verdict, Verdict::Degraded);
        assert_eq!(old.remedy.as_deref(), Some("boot Linux 6.1 or newer"));
        assert_eq!(kernel("?").verdict, Verdict::Untried);
    }

    #[test]
    fn locked_memory_matters_to_old_kernels_only() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units     \n\
                      Max locked memory         65536                unlimited            bytes     \n";
        let limit = locked_memory_limit(limits);
        assert_eq!(limit, Some(LockedMemory::Bytes(65536)));
        let old = Version {
            major: 5,
            minor: 10,
        };
        assert_eq!(memlock(Some(old), limit).verdict, Verdict::Degraded);
        assert_eq!(
            memlock(Some(old), Some(LockedMemory::Unlimited)).verdict,
            Verdict::Ok
        );
        assert_eq!(memlock(Some(NEEDED), limit).verdict, Verdict::Ok);
    }

    #[test]
    fn an_interpreter_costs_speed_and_nothing_else() {
        assert_eq!(jit(Ok("0")).verdict, Verdict::Degraded);
        assert_eq!(jit(Ok("1")).verdict, Verdict::Ok);
        let hidden = io::Error::from(io::ErrorKind::PermissionDenied);
        assert_eq!(jit(Err(&hidden)).verdict, Verdict::Untried);
    }
}
