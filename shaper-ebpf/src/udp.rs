//! UDP to a lane's endpoints would be QUIC, which bypasses the lane: refused, so that clients fall back to TCP.

use aya_ebpf::{helpers::generated::bpf_set_retval, programs::SockAddrContext};
use shaper_common::{EndpointKey, LaneMode};

use crate::{
    classify,
    connect::{ALLOW, DENY, lane_of},
    dns,
    presence::controller_present,
    slot,
};

const ECONNREFUSED: i32 = 111;

/// A datagram socket connects or sends to `endpoint`.
#[inline(always)]
pub fn datagram(ctx: &SockAddrContext, endpoint: EndpointKey) -> i32 {
    dns::asks(ctx, &endpoint);
    let Some(lane) = lane_of(endpoint).and_then(slot::lane) else {
        return ALLOW;
    };
    // A lane that only observes changes nothing (A2).
    let enforces = lane.mode.load() == LaneMode::Enforce as u32;
    if !enforces || lane.udp_blocked.load() == 0 || !controller_present() {
        return ALLOW;
    }
    lane.udp_refused[classify::current().class.index()].add(1);
    // SAFETY: no preconditions.
    unsafe { bpf_set_retval(-ECONNREFUSED) };
    DENY
}
