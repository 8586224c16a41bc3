//! The ABI between shaper's kernel programs and its controller, and the pure logic that both sides need.
//!
//! Everything here is `no_std`. Types that live in BPF maps are `#[repr(C)]`, without implicit padding, their sizes
//! asserted at compile time. Each module has one subject; the decisions are pure functions, tested on the host.
//!
//! The controller maps the arrays [`Lane`], [`Conn`] and [`Globals`] into its own memory. A word that both sides
//! write is a [`SharedU64`] or [`SharedU32`] and changes only by atomic operations.
#![cfg_attr(not(test), no_std)]
#![cfg_attr(target_arch = "bpf", feature(core_intrinsics))]
#![cfg_attr(target_arch = "bpf", allow(internal_features))]

mod account;
mod class;
mod conn;
mod counter;
mod dns;
mod endpoint;
mod event;
mod follow;
mod gate;
mod globals;
mod head;
mod lane;
mod segment;
mod shared;
mod slots;
mod stream;

pub use account::{Account, AccountKey};
pub use class::{CLASS_COUNT, CgroupClass, Class};
pub use conn::{Conn, ConnId, END_KNOWN, Following, HEADER_CAPACITY, HeldHeader, Protocol, Tuple};
pub use counter::{COUNTER_COUNT, Counter};
pub use dns::{Found, FromNameServer, NAME_CAPACITY, NAME_SERVER_PORT, Walk, WireName, wire_name};
pub use endpoint::{Endpoint, EndpointKey, PORT_BITS};
pub use event::{CONNECT_PATIENCE_NS, Event, EventKind, Failure, Fate, GLIMPSE_CAPACITY, Glimpse};
pub use follow::{
    Followed, LearntKey, MAX_FOLLOWED, MAX_LEARNT, MAX_NAME_SERVERS, MAX_TARGETS, Target,
};
pub use gate::{Gate, GateWord};
pub use globals::{Globals, OnLoss, loss_is_near};
pub use head::{HEAD_CAPACITY, HEAD_STEPS, HeadScan, LONGEST_RESPONSE, response_end, status};
pub use lane::{ANY_ERRNO_MAX, LANE_NAME_BYTES, Lane, LaneMode};
pub use segment::{Family, Segment, SegmentError};
pub use shared::{SharedU32, SharedU64};
pub use slots::{MAX_SLOTS, SlotWord};
pub use stream::{
    ChunkedEnd, ClientBytes, RECORD_HEADER, START, ServerBytes, TAIL, begins_with_method,
    http1_status, http2_housekeeping, is_alert, is_record, may_begin_request, seq_after,
};

/// Lanes a controller can hold at once: the length of the lane array.
pub const MAX_LANES: u32 = 256;

/// Connections that can be governed at once: the length of the connection array. One more passes and is counted.
pub const MAX_CONNS: u32 = 65_536;

/// Accounts with a cap, over all lanes.
pub const MAX_ACCOUNTS: u32 = 16_384;

/// Endpoints of all lanes, resolved addresses included.
pub const MAX_ENDPOINTS: u32 = 16_384;

/// Cgroups that stand for a class.
pub const MAX_CLASS_CGROUPS: u32 = 4_096;

/// Size of the event ring. A power of two and a multiple of the page size.
pub const RING_BYTES: u32 = 1 << 20;

/// Times a compare-and-swap is tried in the kernel before the attempt counts as contended. The verifier wants a
/// bound; with two words per connect and a handful of cores a second try is already rare.
pub const CAS_TRIES: u32 = 8;

/// The version of everything in this crate that both sides must agree on. A controller adopts a running instance's
/// maps only when this matches; raise it with every change to a map, a layout or the meaning of a field.
pub const ABI_VERSION: u32 = 4;

#[cfg(feature = "user")]
mod pod {
    use crate::{AccountKey, CgroupClass, ConnId, EndpointKey, Event, Followed, LearntKey};

    // SAFETY: `repr(C)`, no padding (asserted beside each type), every bit pattern valid.
    unsafe impl aya::Pod for AccountKey {}
    // SAFETY: as above.
    unsafe impl aya::Pod for CgroupClass {}
    // SAFETY: as above.
    unsafe impl aya::Pod for EndpointKey {}
    // SAFETY: as above.
    unsafe impl aya::Pod for Event {}
    // SAFETY: as above.
    unsafe impl aya::Pod for ConnId {}
    // SAFETY: as above.
    unsafe impl aya::Pod for Followed {}
    // SAFETY: as above.
    unsafe impl aya::Pod for LearntKey {}
}
