//! What the controller tells all programs: the heartbeat and what its loss means.

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

/// The only element of the globals array, mapped by the controller.
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
}

const _: () = assert!(size_of::<Globals>() == 24);
