//! What the kernel tells the controller through the ring buffer. Events are hints: the records are the truth.

use crate::ConnId;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum EventKind {
    /// The kernel took a slot with a credit, or the lane only observes; `arg` is 1 if a parked connection resumed.
    Opened = 1,
    /// A new waiter; `arg` is 1 if it waits with a request on a connection that is up.
    Held = 2,
    /// A connect was refused because the queue was full. No record; `arg` is the errno.
    Refused = 3,
    /// The TCP handshake is complete.
    Established = 4,
    /// A slot came back; `arg` is 1 if the kernel refunded the credit.
    Released = 5,
    /// A waiter went away, slot never taken.
    Gone = 6,
    /// The record is free again; `arg` is 1 if the handshake had been completed, 0 if not, 2 if it never had a slot.
    Closed = 7,
    /// The first bytes of a request were dropped, or later ones that acknowledged something new: the connection needs a
    /// probe soon, and more from time to time.
    RequestHeld = 8,
    /// The first byte of a response; `arg` is the time since the request began to leave, in microseconds.
    Answered = 9,
    /// A response looks finished: if nothing follows, it is.
    EndHint = 10,
    /// A response went on although its connection was parked: it took a slot by force.
    Overrun = 11,
    /// The client went away from an unanswered request: its slot lingers.
    Abandoned = 12,
    /// A [`Glimpse`] follows in the same record.
    Glimpse = 13,
    /// The program has closed a socket that holds a request back: TCP would keep it alive for that, so it must be ended.
    Stuck = 14,
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
            8 => Self::RequestHeld,
            9 => Self::Answered,
            10 => Self::EndHint,
            11 => Self::Overrun,
            12 => Self::Abandoned,
            13 => Self::Glimpse,
            14 => Self::Stuck,
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
    /// Depends on the [kind](EventKind).
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

/// Bytes of payload that a glimpse can carry.
pub const GLIMPSE_CAPACITY: usize = 2048;

/// The first bytes of a message, for a look at what the kernel programs do not parse.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Glimpse {
    /// Of kind [`EventKind::Glimpse`]; `arg` is the sequence number of the first byte.
    pub event: Event,
    /// Nonzero: from the gateway, else to it.
    pub received: u32,
    /// How many of `bytes` count.
    pub len: u32,
    pub bytes: [u8; GLIMPSE_CAPACITY],
}

const _: () = assert!(size_of::<Glimpse>() == 48 + 8 + GLIMPSE_CAPACITY);
