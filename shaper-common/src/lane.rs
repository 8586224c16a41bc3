//! A lane as the kernel sees it: the words that decide about a connect, and what was counted.

use crate::{CLASS_COUNT, SharedU32, SharedU64};

/// Linux's `MAX_ERRNO`: `bpf_set_retval` takes the negative of 1 to this.
pub const ANY_ERRNO_MAX: u32 = 4095;

/// Room for a lane's name, in bytes: the longest has one less.
pub const LANE_NAME_BYTES: usize = 64;

/// What the kernel does with connects to a lane's endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum LaneMode {
    /// No lane uses this element.
    Unused = 0,
    /// Everything passes and is counted.
    Observe = 1,
    /// A connect needs a slot.
    Enforce = 2,
}

/// One element of the lane array, mapped by the controller.
///
/// The configuration fields are written by the controller alone; each is one word, so none is ever read half-written.
#[repr(C)]
#[derive(Debug)]
pub struct Lane {
    /// A [`SlotWord`](crate::SlotWord).
    pub slots: SharedU64,
    /// Connections with a gate that [waits](crate::Gate::waits), all classes. Raised by the program that holds, lowered
    /// by whoever changes the gate.
    pub queued: SharedU32,
    /// The same by class.
    pub waiting: [SharedU32; CLASS_COUNT],
    /// A [`LaneMode`] by number.
    pub mode: SharedU32,
    /// Newcomers of this class (by number) or a lower one are held without a look at the credits. `CLASS_COUNT`: none.
    /// Set by the controller for waiters that have aged above their own class.
    pub barrier: SharedU32,
    /// Credits that only interactive work may spend.
    pub reserve: SharedU32,
    /// Waiters at which a further connect is refused.
    pub max_queue: SharedU32,
    /// The positive errno of a refusal.
    pub refuse_errno: SharedU32,
    /// Slots in use by class.
    pub class_slots: [SharedU32; CLASS_COUNT],
    /// The most slots a class may use; `u32::MAX`: no cap.
    pub class_cap: [SharedU32; CLASS_COUNT],
    /// Nonzero: accounts have caps, and one without an entry in the account map waits for the controller to make it.
    pub account_caps: SharedU32,
    /// Payload bytes that pass a gate which holds requests (see `wake_bytes` in the configuration).
    pub wake_bytes: SharedU32,
    /// Nonzero: UDP to the lane's endpoints is refused, so that QUIC falls back to TCP.
    pub udp_blocked: SharedU32,
    /// Nonzero: the slot of a client that leaves an unanswered request stays taken until the controller ends it.
    pub abort_holds: SharedU32,
    /// Connects that reached this lane, by class: admitted, held or refused.
    pub connects: [SharedU32; CLASS_COUNT],
    /// Connects refused because the queue was full, by class.
    pub refused: [SharedU32; CLASS_COUNT],
    /// UDP connects and sends refused, by class.
    pub udp_refused: [SharedU32; CLASS_COUNT],
    /// Payload bytes to the gateway of connections that have ended.
    pub tx_bytes: SharedU64,
    /// Payload bytes from the gateway of connections that have ended.
    pub rx_bytes: SharedU64,
    /// The lane's name, filled up with zeros: by it the next controller knows whose counts these are. For controllers alone.
    pub name: [SharedU64; LANE_NAME_BYTES / size_of::<u64>()],
    pub reserved: [u64; 7],
}

const _: () = assert!(size_of::<Lane>() == 256);
