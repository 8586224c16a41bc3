//! What the controller tells all programs: the heartbeat and what its loss means.

use core::mem::offset_of;

use crate::SharedU64;

/// What the programs do when the controller's heartbeat is older than `fail_after`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum OnLoss {
    /// Every gate opens: the host works as if shaper were not there.
    Open = 0,
    /// Gates stay as they are; what needs a credit waits.
    Closed = 1,
}

/// The age of a heartbeat at which it is late: two have been missed, and a little more.
const LATE_NS: u64 = 1_250_000_000;

/// Whether gates are about to open because the controller seems to be gone: its heartbeat, `age_ns` old, is late, and
/// counts as lost (`fail_after_ns`) within the next `within_ns`. Held packets should come again soon then, to find the
/// gate open.
#[inline(always)]
pub const fn loss_is_near(age_ns: u64, fail_after_ns: u64, within_ns: u64) -> bool {
    age_ns >= LATE_NS && age_ns.saturating_add(within_ns) >= fail_after_ns
}

/// The only element of the globals array, mapped by the controller.
///
/// The first four fields stay where they are in every later ABI: a controller of any version can tell the programs of any
/// other to open their gates.
#[repr(C)]
#[derive(Debug)]
pub struct Globals {
    /// `CLOCK_MONOTONIC` in nanoseconds at the controller's last sign of life; 0 while it is not enforcing.
    pub heartbeat_ns: SharedU64,
    /// Age in nanoseconds at which the heartbeat counts as lost.
    pub fail_after_ns: SharedU64,
    /// An [`OnLoss`] by number.
    pub on_loss: crate::SharedU32,
    /// [`ABI_VERSION`](crate::ABI_VERSION) of the controller that set the maps up.
    pub abi_version: crate::SharedU32,
    /// Cookie of the network namespace in which answers of name servers are believed; 0: no name is followed.
    pub dns_netns: SharedU64,
}

const _: () = assert!(size_of::<Globals>() == 32);
const _: () = assert!(
    offset_of!(Globals, heartbeat_ns) == 0
        && offset_of!(Globals, fail_after_ns) == 8
        && offset_of!(Globals, on_loss) == 16
        && offset_of!(Globals, abi_version) == 20
);

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// A controller that is a little late is not given up: what is held backs off as ever.
    #[test]
    fn loss_is_near_only_when_the_heartbeat_is_late_and_soon_too_old() {
        let near = |age, within| loss_is_near(age, 5 * SECOND, within);
        assert!(!near(SECOND, 10 * SECOND));
        assert!(!near(3 * SECOND, SECOND));
        assert!(near(4 * SECOND, SECOND) && near(2 * SECOND, 5 * SECOND));
        assert!(near(u64::MAX, SECOND));
    }
}
