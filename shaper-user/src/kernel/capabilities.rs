//! Which capabilities the process has, of those that shaper needs.

use std::fmt;

use caps::CapSet;

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
    /// Find the namespaces of processes of other users, and of those with capabilities that this process has given up
    /// (`PTRACE_MODE_READ` on `/proc/PID/ns/net`, `cap_ptrace_access_check`). Not required: without it those clients wake
    /// later.
    SysPtrace,
}

impl Capability {
    /// Those without which the controller does not start.
    pub const REQUIRED: [Self; 4] = [Self::Bpf, Self::NetAdmin, Self::NetRaw, Self::SysAdmin];

    /// Those of use once the programs are loaded: maps, later cgroups, replay, the namespaces of clients.
    pub const RUNNING: [Self; 5] = [
        Self::Bpf,
        Self::NetAdmin,
        Self::NetRaw,
        Self::SysAdmin,
        Self::SysPtrace,
    ];

    pub const fn of_the_kernel(self) -> caps::Capability {
        match self {
            Self::Bpf => caps::Capability::CAP_BPF,
            Self::NetAdmin => caps::Capability::CAP_NET_ADMIN,
            Self::NetRaw => caps::Capability::CAP_NET_RAW,
            Self::SysAdmin => caps::Capability::CAP_SYS_ADMIN,
            Self::SysPtrace => caps::Capability::CAP_SYS_PTRACE,
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

/// Those of `wanted` that the calling thread lacks.
pub fn missing(wanted: &[Capability]) -> Vec<Capability> {
    let has = |capability: &Capability| {
        caps::has_cap(None, CapSet::Effective, capability.of_the_kernel()).unwrap_or(false)
    };
    wanted
        .iter()
        .filter(|capability| !has(capability))
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
