//! The record of one governed connection.
//!
//! Records live in one memory-mapped array; a socket finds its own through socket storage ([`ConnId`]), the
//! controller reads all of them without a system call. A record is in use while its gate is not
//! [`Gate::Free`](crate::Gate::Free); its generation tells its users apart.

use crate::{SharedU32, SharedU64};

/// Bytes of a TCP header that a record can keep: the longest there is (RFC 9293, 3.1: data offset 15).
pub const SYN_CAPACITY: usize = 60;

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

/// The first SYN that was dropped: its TCP header with options.
#[repr(C)]
#[derive(Debug)]
pub struct HeldSyn {
    /// Length of `header` in bytes; 0 until a SYN was dropped. Written last, with a barrier.
    pub len: SharedU32,
    pub header: [u8; SYN_CAPACITY],
}

/// One element of the connection array. Times are `CLOCK_MONOTONIC` in nanoseconds, 0 for "not yet".
///
/// The kernel writes everything but `account` and `admitted_ns` of a waiter, which the controller sets before it opens
/// the gate.
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
    pub established_ns: u64,
    /// Last payload to the gateway.
    pub tx_ns: u64,
    /// Last payload from the gateway.
    pub rx_ns: u64,
    /// Payload bytes to the gateway, held ones not counted.
    pub tx_bytes: u64,
    /// Payload bytes from the gateway.
    pub rx_bytes: u64,
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
    pub reserved0: u32,
    pub syn: HeldSyn,
    pub reserved1: [u64; 4],
}

const _: () = assert!(size_of::<Conn>() == 256);
