//! Host names whose answers are followed: what the controller asks for, and what the kernel has learnt.

/// Names that can be followed at once.
pub const MAX_FOLLOWED: u32 = 1_024;

/// Ports, each with its lane, that one name can have.
pub const MAX_TARGETS: usize = 4;

/// Addresses of all names that answers have told of.
pub const MAX_LEARNT: u32 = 8_192;

/// Name servers that are believed: more than `resolv.conf` can have (`MAXNS`, 3).
pub const MAX_NAME_SERVERS: u32 = 16;

/// Where an address of a followed name belongs.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// Index of the lane; [`Target::NONE`] if there is no such target.
    pub lane: u32,
    /// Port in network byte order.
    pub port: [u8; 2],
    pub reserved: [u8; 2],
}

const _: () = assert!(size_of::<Target>() == 8);

impl Target {
    /// No target.
    pub const NONE: Self = Self {
        lane: u32::MAX,
        port: [0; 2],
        reserved: [0; 2],
    };
}

/// A followed name, by its [`WireName`](crate::WireName).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Followed {
    /// Tells names apart in [`LearntKey`].
    pub name: u32,
    /// Addresses that may still be learnt of it. Lowered by the kernel, set by the controller.
    pub room: u32,
    pub targets: [Target; MAX_TARGETS],
}

const _: () = assert!(size_of::<Followed>() == 8 + 8 * MAX_TARGETS);

/// An address that an answer gave a name. The value beside it is when the latest one did, `CLOCK_MONOTONIC` in
/// nanoseconds.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LearntKey {
    pub name: u32,
    /// IPv6 or IPv4-mapped address in network byte order.
    pub addr: [u8; 16],
}

const _: () = assert!(size_of::<LearntKey>() == 20);
