//! Which capabilities the process has, of those that shaper needs.

use std::{fmt, fs};

use super::KernelError;

/// A capability (capabilities(7)) and what shaper uses it for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capability {
    /// Load programs and make maps.
    Bpf,
    /// Attach to cgroups, read packets, end sockets.
    NetAdmin,
    /// Send held SYNs again.
    NetRaw,
    /// Enter the network namespaces of held sockets.
    SysAdmin,
    /// Find the namespaces of processes of other users (`PTRACE_MODE_READ` on `/proc/PID/ns/net`). Not required: without
    /// it those clients wake later.
    SysPtrace,
}

impl Capability {
    /// Those without which the controller does not start.
    pub const REQUIRED: [Self; 4] = [Self::Bpf, Self::NetAdmin, Self::NetRaw, Self::SysAdmin];

    /// The number in include/uapi/linux/capability.h.
    const fn number(self) -> u32 {
        match self {
            Self::NetAdmin => 12,
            Self::NetRaw => 13,
            Self::SysPtrace => 19,
            Self::SysAdmin => 21,
            Self::Bpf => 39,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Bpf => "CAP_BPF",
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::NetRaw => "CAP_NET_RAW",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::SysPtrace => "CAP_SYS_PTRACE",
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Those of `wanted` that this process lacks.
pub fn missing(wanted: &[Capability]) -> Vec<Capability> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = effective(&status);
    wanted
        .iter()
        .filter(|capability| effective & (1 << capability.number()) == 0)
        .copied()
        .collect()
}

/// # Errors
/// [`KernelError::NotPermitted`] naming those that this process lacks.
pub fn require() -> Result<(), KernelError> {
    let missing = missing(&Capability::REQUIRED);
    if missing.is_empty() {
        Ok(())
    } else {
        Err(KernelError::NotPermitted { missing })
    }
}

fn effective(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_effective_set_is_read_from_the_process_status() {
        assert_eq!(
            effective("Name:\tx\nCapEff:\t0000008000003000\n"),
            1 << 39 | 1 << 13 | 1 << 12
        );
        assert_eq!(effective("Name:\tx\n"), 0);
    }
}
