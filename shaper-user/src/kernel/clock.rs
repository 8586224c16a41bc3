//! The kernel's clock as the policy's.

use nix::time::{ClockId, clock_gettime};

use crate::policy::Ns;

/// `CLOCK_MONOTONIC`, which `bpf_ktime_get_ns` reads too.
pub fn now() -> Ns {
    // Cannot fail: the clock exists on every kernel that loads the programs.
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("CLOCK_MONOTONIC is always there");
    Ns(time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}
