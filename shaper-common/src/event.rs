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
    /// The TCP handshake is complete; `arg` is the time since the SYN was let go, in microseconds, 0 if that is not known.
    Established = 4,
    /// A slot came back; `arg` is 1 if the kernel refunded the credit.
    Released = 5,
    /// A waiter went away, slot never taken.
    Gone = 6,
    /// The record is free again; `arg` is a [`Fate`] by number.
    Closed = 7,
    /// The first bytes of a request were dropped, or later ones that acknowledged something new: the connection needs a
    /// probe soon, and more from time to time.
    RequestHeld = 8,
    /// The first byte of a response; `arg` is the time since the request began to leave, in microseconds, and `doubtful` the
    /// time since payload came that might have been all of the response, 0 if none did.
    Answered = 9,
    /// A response looks finished: if nothing follows, it is.
    EndHint = 10,
    /// A response went on although its connection was parked: it took a slot by force. `arg` is 1 if it only began: what was
    /// taken for it came before it.
    Overrun = 11,
    /// The client went away from an unanswered request, whose slot lingers if the lane says so; `arg` is the time since the
    /// request began to leave, in microseconds.
    Abandoned = 12,
    /// A [`Glimpse`] follows in the same record.
    Glimpse = 13,
    /// The program has closed a socket that holds a request back: TCP would keep it alive for that, so it must be ended.
    Stuck = 14,
    /// The gateway failed the connection; `arg` is a [`Failure`] by number.
    Failed = 15,
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
            15 => Self::Failed,
            _ => return None,
        })
    }
}

/// How a gateway fails a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Failure {
    /// It answered the SYN with a reset.
    Refused = 1,
    /// TCP gave up on the SYN at once: a router or the host itself said that there is no way.
    Unreachable = 2,
    /// The SYN that was let go had no answer for [`CONNECT_PATIENCE_NS`], and TCP or the client gave up.
    ConnectTimeout = 3,
    /// It reset a connection that had a slot.
    Reset = 4,
    /// It closed a connection with a request unanswered.
    Unanswered = 5,
}

/// TCP tries a SYN again after this (`TCP_TIMEOUT_INIT`); a client that goes before has not been kept waiting.
pub const CONNECT_PATIENCE_NS: u64 = 1_000_000_000;

impl Failure {
    pub const fn from_u32(number: u32) -> Option<Self> {
        Some(match number {
            1 => Self::Refused,
            2 => Self::Unreachable,
            3 => Self::ConnectTimeout,
            4 => Self::Reset,
            5 => Self::Unanswered,
            _ => return None,
        })
    }

    /// What the end of a connection says that was never made. `released_ns` and `now_ns`: when its SYN was let go, 0 for
    /// never, and now; `reset`: a reset came; `left`: the client has closed the socket, else TCP ended it.
    #[inline(always)]
    pub const fn of_connect(
        released_ns: u64,
        now_ns: u64,
        reset: bool,
        left: bool,
    ) -> Option<Self> {
        if released_ns == 0 {
            None
        } else if reset {
            Some(Self::Refused)
        } else if now_ns.saturating_sub(released_ns) >= CONNECT_PATIENCE_NS {
            Some(Self::ConnectTimeout)
        } else if left {
            None
        } else {
            Some(Self::Unreachable)
        }
    }
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Fate {
    /// It was never made, or the gateway failed it.
    Failed = 0,
    /// It was served.
    Completed = 1,
    /// It never had a slot.
    NeverServed = 2,
    /// The client went away from an unanswered request, which [`EventKind::Abandoned`] has told.
    Abandoned = 3,
}

impl Fate {
    pub const fn from_u32(number: u32) -> Option<Self> {
        Some(match number {
            0 => Self::Failed,
            1 => Self::Completed,
            2 => Self::NeverServed,
            3 => Self::Abandoned,
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
    /// Of [`EventKind::Answered`], in microseconds.
    pub doubtful: u32,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A18: the ways in which a connect fails are told apart, and a client that leaves early is no failure.
    #[test]
    fn a_connect_fails_in_three_ways() {
        const LET_GO: u64 = 5;
        const SOON: u64 = LET_GO + CONNECT_PATIENCE_NS - 1;
        const LATE: u64 = LET_GO + CONNECT_PATIENCE_NS;
        for (released, now, reset, left, failure) in [
            (0, LATE, false, true, None),
            (LET_GO, SOON, true, false, Some(Failure::Refused)),
            (LET_GO, LATE, true, true, Some(Failure::Refused)),
            (LET_GO, SOON, false, false, Some(Failure::Unreachable)),
            (LET_GO, SOON, false, true, None),
            (LET_GO, LATE, false, true, Some(Failure::ConnectTimeout)),
            (LET_GO, LATE, false, false, Some(Failure::ConnectTimeout)),
        ] {
            let found = Failure::of_connect(released, now, reset, left);
            assert_eq!(found, failure, "{released} {now} {reset} {left}");
        }
    }
}
