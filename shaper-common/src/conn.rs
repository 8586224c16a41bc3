//! The record of one governed connection.
//!
//! Records live in one memory-mapped array; a socket finds its own through socket storage ([`ConnId`]), the
//! controller reads all of them without a system call. A record is in use while its gate is not
//! [`Gate::Free`](crate::Gate::Free); its generation tells its users apart.

use crate::{SharedU32, SharedU64};

/// Marks [`Conn::response_end`] as known.
pub const END_KNOWN: u64 = 1 << 32;

/// Bytes of a TCP header that a record can keep: the longest there is (RFC 9293, 3.1: data offset 15).
pub const HEADER_CAPACITY: usize = 60;

/// A record and its generation: what a governed socket's storage holds, and what events and the controller call a
/// connection.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId {
    pub index: u32,
    pub generation: u32,
}

const _: () = assert!(size_of::<ConnId>() == 8);

impl core::fmt::Display for ConnId {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

/// How requests and responses follow each other on a connection, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Protocol {
    /// Not known yet.
    Unknown = 0,
    /// Speaks or offers HTTP/2: several requests at a time.
    Http2 = 1,
    /// One request after the other.
    Serial = 2,
}

/// What long payload is in the clear that follows a request which is answered, where one request follows the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Following {
    /// A request, however it begins: there was none before it that began like one of HTTP/1.
    Request = 0,
    /// The rest of the request, unless it begins like another: a gateway may answer before it has it all.
    Rest = 1,
    /// Whatever takes the place of HTTP after status 101 (RFC 9110, 15.2.2), counted like requests.
    NoHttp = 2,
    /// A request, however it begins: its head, or the beginning of that, has passed because it is short.
    Head = 3,
}

/// Addresses as the socket knows them, before any translation on the way out. IPv4 is stored IPv4-mapped.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Tuple {
    /// Network byte order.
    pub local: [u8; 16],
    /// Network byte order.
    pub remote: [u8; 16],
    /// Host byte order.
    pub local_port: u16,
    /// Host byte order.
    pub remote_port: u16,
}

const _: () = assert!(size_of::<Tuple>() == 36);

/// The TCP header, options included, of a segment that was dropped: the first SYN, or the latest request bytes.
#[repr(C)]
#[derive(Debug)]
pub struct HeldHeader {
    /// When the segment was dropped.
    pub ns: u64,
    /// Odd while the kernel writes, changed by every write: a reader that sees one even value before and after has an
    /// unmixed copy.
    pub version: SharedU32,
    /// Length of `header` in bytes; 0: nothing was dropped yet.
    pub len: u32,
    pub header: [u8; HEADER_CAPACITY],
    /// Sequence number up to which the peer had acknowledged; 0: not known.
    pub acknowledged: u32,
}

const _: () = assert!(size_of::<HeldHeader>() == 80);

/// One element of the connection array. Times are `CLOCK_MONOTONIC` in nanoseconds, 0 for "not yet". Sequence numbers
/// are TCP's, in host byte order.
///
/// The kernel writes all plain fields; the controller writes only shared ones.
#[repr(C)]
#[derive(Debug)]
pub struct Conn {
    /// A [`GateWord`](crate::GateWord); both sides change it, by compare-and-swap only.
    pub gate: SharedU64,
    /// The socket's cookie, unique on the host.
    pub cookie: u64,
    /// Cookie of the socket's network namespace.
    pub netns: u64,
    /// Id of the cgroup that is the account; 0: none.
    pub account_cgroup: u64,
    /// When the present wait or, if there was none, the connection began.
    pub since_ns: u64,
    /// When the last slot was taken.
    pub admitted_ns: SharedU64,
    /// When the SYN was let go, with the connect or later; 0: not yet.
    pub released_ns: SharedU64,
    pub established_ns: u64,
    /// When the present or last request began to leave.
    pub request_ns: u64,
    /// Last payload to the gateway.
    pub tx_ns: u64,
    /// Last payload from the gateway.
    pub rx_ns: u64,
    /// When the last payload from the gateway looked like the end of a chunked stream; 0: it did not.
    pub end_hint_ns: u64,
    /// When the client went away from an unanswered request.
    pub left_ns: u64,
    /// Payload bytes to the gateway, held ones not counted.
    pub tx_bytes: u64,
    /// Payload bytes from the gateway.
    pub rx_bytes: u64,
    /// Where the present response ends: [`END_KNOWN`] and the sequence number behind its last byte; 0: not known. Set
    /// by the controller from the response's head.
    pub response_end: SharedU64,
    /// Until when payload from the gateway may be TLS session tickets instead of the first answer; 0: none are expected.
    pub tickets_until_ns: u64,
    /// When payload first came that may have been the whole answer, or something before it; 0: none did.
    pub unsure_ns: u64,
    /// Start of the current window of `wake_bytes`.
    pub wake_window_ns: u64,
    /// Index of the lane.
    pub lane: u32,
    /// A [`Class`](crate::Class) by number.
    pub class: u32,
    /// Thread-group id of the process that called `connect`, in the initial pid namespace.
    pub pid: u32,
    /// Index of the account's element plus 1; 0: none.
    pub account: SharedU32,
    pub tuple: Tuple,
    /// Nonzero: TCP reports this socket's state changes to the sock_ops program.
    pub tracked: u32,
    /// The socket's mark (`SO_MARK`).
    pub mark: u32,
    /// The interface the socket is bound to; 0: none.
    pub ifindex: u32,
    /// Packets dropped so far to hold this connection.
    pub held_packets: u32,
    /// End of the payload that has passed to the gateway. Meaningless while `tx_bytes` is 0.
    pub passed_seq: u32,
    /// Up to here payload belongs to a TLS handshake record whose start has passed; `passed_seq` if none does.
    pub handshake_seq: u32,
    /// Payload that passed a gate in the current window because it was short.
    pub wake_used: u32,
    /// Nonzero: a request has passed, that is, payload longer than `wake_bytes`.
    pub sent_long: u32,
    /// Nonzero: the present request's method is HEAD, so its response has no body (RFC 9112, 6.3).
    pub head_request: u32,
    /// A [`Protocol`] by number.
    pub protocol: SharedU32,
    /// End of the payload that has come from the gateway. Meaningless while `rx_bytes` is 0.
    pub rx_seq: u32,
    /// What had come from the gateway when the present request began: what ends there or before is no part of its answer.
    pub answer_from: u32,
    /// Nonzero: a reset has come from the gateway.
    pub reset: u32,
    /// The [`Fate`](crate::Fate) that has been told already, by number plus 1; 0: none.
    pub told: u32,
    /// A [`Following`] by number.
    pub following: u32,
    pub held: HeldHeader,
}

const _: () = assert!(size_of::<Conn>() == 344);
const _: () = assert!(core::mem::offset_of!(Conn, held) % 8 == 0);
