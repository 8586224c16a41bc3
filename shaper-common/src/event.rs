//! What the kernel tells the controller through the ring buffer. Events are hints: the records are the truth.

use crate::ConnId;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum EventKind {
    /// A connect took a slot with a credit (or the lane only observes).
    Opened = 1,
    /// A connect was held: a new waiter.
    Held = 2,
    /// A connect was refused because the queue was full. No record; `arg` is the errno.
    Refused = 3,
    /// The TCP handshake is complete.
    Established = 4,
    /// A slot came back; `arg` is 1 if the kernel refunded the credit.
    Released = 5,
    /// A waiter went away, slot never taken.
    Gone = 6,
    /// The record is free again.
    Closed = 7,
}

impl EventKind {
    pub const fn from_u32(kind: u32) -> Option<Self> {
        Some(match kind {
            1 => Self::Opened,
            2 => Self::Held,
            3 => Self::Refused,
            4 => Self::Established,
            5 => Self::Released,
            6 => Self::Gone,
            7 => Self::Closed,
            _ => return None,
        })
    }
}

/// One ring-buffer record.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// `CLOCK_MONOTONIC` in nanoseconds.
    pub ns: u64,
    /// Id of the account's cgroup; 0: none.
    pub account_cgroup: u64,
    /// An [`EventKind`] by number.
    pub kind: u32,
    /// Index of the lane.
    pub lane: u32,
    /// A [`Class`](crate::Class) by number.
    pub class: u32,
    pub pid: u32,
    /// Index of the connection's record; meaningless for `Refused`.
    pub index: u32,
    pub generation: u32,
    /// Depends on the kind.
    pub arg: u32,
    pub reserved: u32,
}

const _: () = assert!(size_of::<Event>() == 48);

impl Event {
    pub const fn conn(&self) -> ConnId {
        ConnId {
            index: self.index,
            generation: self.generation,
        }
    }
}
