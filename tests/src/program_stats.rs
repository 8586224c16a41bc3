//! What the kernel says its programs cost: runs and nanoseconds, counted while [`Statistics`] are on; and a program that
//! does nothing, to tell what a run costs at the least.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::ops::Sub;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};
use nix::libc;
use nix::unistd::Pid;

use crate::cgroup::Cgroup;
use crate::kernel_state::{Program, bpftool};

/// The kernel counts runs and their time while this lives (`BPF_ENABLE_STATS`, Linux 5.8).
#[derive(Debug)]
pub struct Statistics {
    _enabled: OwnedFd,
}

impl Statistics {
    /// # Errors
    /// Without CAP_SYS_ADMIN.
    pub fn enable() -> Result<Self> {
        const BPF_ENABLE_STATS: i32 = 32;
        /// `BPF_STATS_RUN_TIME`.
        #[repr(C)]
        struct RunTime(u32);
        let enabled = bpf(BPF_ENABLE_STATS, &RunTime(0)).context("cannot enable BPF statistics")?;
        Ok(Self { _enabled: enabled })
    }
}

/// What one program has cost until now.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Cost {
    pub runs: u64,
    /// Nanoseconds of all runs together.
    pub nanos: u64,
    /// Instructions that the verifier followed when it was loaded (Linux 5.16; 0 before): a measure of its paths.
    pub verified: u64,
}

/// How large one program is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Size {
    /// Of its instructions after the verifier's changes, before the kernel's compiler.
    pub bytes: u64,
    /// As [`Cost::verified`].
    pub verified: u64,
}

impl Cost {
    /// Nanoseconds a run; `None` without one.
    pub fn per_run(self) -> Option<f64> {
        (self.runs > 0).then(|| self.nanos as f64 / self.runs as f64)
    }

    fn read(fdinfo: &str) -> Option<(u32, Self)> {
        let field = |name: &str| {
            let line = fdinfo.lines().find_map(|line| line.strip_prefix(name))?;
            line.strip_prefix(':')?.trim().parse::<u64>().ok()
        };
        let cost = Self {
            runs: field("run_cnt")?,
            nanos: field("run_time_ns")?,
            verified: field("verified_insns").unwrap_or(0),
        };
        Some((u32::try_from(field("prog_id")?).ok()?, cost))
    }
}

impl Sub for Cost {
    type Output = Self;

    /// What was added since `earlier`.
    fn sub(self, earlier: Self) -> Self {
        Self {
            runs: self.runs.saturating_sub(earlier.runs),
            nanos: self.nanos.saturating_sub(earlier.nanos),
            verified: self.verified,
        }
    }
}

/// The programs that a process has loaded.
#[derive(Clone, Debug)]
pub struct Programs {
    process: Pid,
    loaded: BTreeMap<u32, Program>,
}

impl Programs {
    pub fn of(process: Pid) -> Result<Self> {
        let loaded: Vec<Program> = bpftool(&["prog", "show"])?;
        let loaded = loaded.into_iter().map(|program| (program.id, program));
        Ok(Self {
            process,
            loaded: loaded.collect(),
        })
    }

    /// What each has cost until now, by name. The kernel keeps 15 characters of a name.
    pub fn costs(&self) -> Result<BTreeMap<String, Cost>> {
        let costs = self.told()?.into_iter();
        Ok(costs
            .map(|(program, cost)| (program.name.clone(), cost))
            .collect())
    }

    /// How large each is, by name.
    pub fn sizes(&self) -> Result<BTreeMap<String, Size>> {
        let size = |(program, cost): (&Program, Cost)| {
            let size = Size {
                bytes: program.bytes_xlated,
                verified: cost.verified,
            };
            (program.name.clone(), size)
        };
        Ok(self.told()?.into_iter().map(size).collect())
    }

    fn told(&self) -> Result<Vec<(&Program, Cost)>> {
        let directory = format!("/proc/{}/fdinfo", self.process);
        let files = fs::read_dir(&directory).with_context(|| format!("cannot read {directory}"))?;
        // A file may have been closed since.
        let told = files
            .flatten()
            .filter_map(|file| fs::read_to_string(file.path()).ok());
        let costs = told.filter_map(|fdinfo| {
            let (id, cost) = Cost::read(&fdinfo)?;
            Some((self.loaded.get(&id)?, cost))
        });
        Ok(costs.collect())
    }
}

/// A packet program that lets every packet pass and does nothing else, attached to the packets that reach a cgroup's
/// sockets; gone when dropped.
#[derive(Debug)]
pub struct EmptyProgram {
    program: OwnedFd,
    _link: OwnedFd,
}

impl EmptyProgram {
    /// # Errors
    /// Without the privileges to load and attach it.
    pub fn attach(cgroup: &Cgroup) -> Result<Self> {
        const BPF_PROG_LOAD: i32 = 5;
        const BPF_LINK_CREATE: i32 = 28;
        const BPF_PROG_TYPE_CGROUP_SKB: u32 = 8;
        const BPF_CGROUP_INET_INGRESS: u32 = 0;
        /// `r0 = 1; exit`, as the instruction set writes them (RFC 9669).
        const INSTRUCTIONS: [u64; 2] = [0x0000_0001_0000_00b7, 0x95];

        /// The first fields of `union bpf_attr` for `BPF_PROG_LOAD`; the kernel takes the rest for zero.
        #[repr(C)]
        struct Load {
            kind: u32,
            instruction_count: u32,
            instructions: u64,
            license: u64,
            log: [u32; 4],
            kernel_version: u32,
            flags: u32,
            name: [u8; 16],
            ifindex: u32,
            expected_attach_type: u32,
        }
        /// The same for `BPF_LINK_CREATE`.
        #[repr(C)]
        struct Link {
            program: u32,
            target: u32,
            attach_type: u32,
            flags: u32,
        }

        let load = Load {
            kind: BPF_PROG_TYPE_CGROUP_SKB,
            instruction_count: INSTRUCTIONS.len() as u32,
            instructions: INSTRUCTIONS.as_ptr() as u64,
            license: c"GPL".as_ptr() as u64,
            log: [0; 4],
            kernel_version: 0,
            flags: 0,
            name: *b"shaper_nothing\0\0",
            ifindex: 0,
            expected_attach_type: BPF_CGROUP_INET_INGRESS,
        };
        let program = bpf(BPF_PROG_LOAD, &load).context("cannot load an empty program")?;
        let directory = File::open(cgroup.path()).context("cannot open a cgroup")?;
        let link = Link {
            program: program.as_raw_fd() as u32,
            target: directory.as_raw_fd() as u32,
            attach_type: BPF_CGROUP_INET_INGRESS,
            flags: 0,
        };
        let link = bpf(BPF_LINK_CREATE, &link).context("cannot attach an empty program")?;
        Ok(Self {
            program,
            _link: link,
        })
    }

    pub fn cost(&self) -> Result<Cost> {
        let path = format!("/proc/self/fdinfo/{}", self.program.as_raw_fd());
        let fdinfo = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let (_, cost) = Cost::read(&fdinfo).context("the kernel tells no run times")?;
        Ok(cost)
    }
}

/// A command of bpf(2) that gives a file descriptor.
fn bpf<T>(command: i32, attributes: &T) -> io::Result<OwnedFd> {
    // SAFETY: the kernel reads `size_of::<T>()` bytes there, and what they point to lives for the call.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_ref(attributes),
            size_of::<T>(),
        )
    };
    let fd = i32::try_from(fd).unwrap_or(-1);
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_read_from_what_the_kernel_prints() {
        let fdinfo = "pos:\t0\nprog_type:\t8\nprog_id:\t41\nrun_time_ns:\t1350\nrun_cnt:\t10\n";
        let (id, cost) = Cost::read(fdinfo).unwrap();
        assert_eq!((id, cost.per_run()), (41, Some(135.0)));
        assert_eq!((cost - cost).per_run(), None);
        assert!(Cost::read("pos:\t0\nmap_id:\t3\n").is_none());
    }
}
