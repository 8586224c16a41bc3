//! Showing the controller the first bytes of a message: a ClientHello, the head of a response.

use aya_ebpf::{
    EbpfContext,
    bindings::{BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers::generated::bpf_skb_load_bytes,
    programs::SkBuffContext,
};
use shaper_common::{Conn, ConnId, Counter, EventKind, GLIMPSE_CAPACITY, Glimpse, Segment};

use crate::{
    access::within,
    count::count,
    egress::Outgoing,
    emit::{Urgency, event},
    maps::EVENTS,
};

/// The client's first bytes.
#[inline(always)]
pub fn sent(ctx: &SkBuffContext, conn: &Conn, id: ConnId, outgoing: &Outgoing, urgency: Urgency) {
    send(ctx, conn, id, &outgoing.segment, outgoing.start, 0, urgency);
}

/// The head of a response.
#[inline(always)]
pub fn received(ctx: &SkBuffContext, conn: &Conn, id: ConnId, segment: &Segment, start: u32) {
    send(ctx, conn, id, segment, start, 1, Urgency::Now);
}

#[inline(always)]
fn send(
    ctx: &SkBuffContext,
    conn: &Conn,
    id: ConnId,
    segment: &Segment,
    start: u32,
    received: u32,
    urgency: Urgency,
) {
    const CAPACITY: u32 = GLIMPSE_CAPACITY as u32;
    let Some(len) = within::<1, CAPACITY>(segment.payload_len.min(CAPACITY)) else {
        return;
    };
    let Some(mut entry) = EVENTS.reserve_untyped::<Glimpse>(0) else {
        count(Counter::EventsLost);
        return;
    };
    let glimpse = entry.as_mut_ptr();
    // SAFETY: the reserved memory is large enough for a `Glimpse`; `len` bytes fit into its array.
    unsafe {
        (*glimpse).event = event(EventKind::Glimpse, conn, id, start);
        (*glimpse).received = received;
        let bytes = (&raw mut (*glimpse).bytes).cast();
        let read = bpf_skb_load_bytes(ctx.as_ptr(), segment.payload_offset(), bytes, len);
        (*glimpse).len = if read == 0 { len } else { 0 };
    }
    let flags = if urgency == Urgency::Now {
        BPF_RB_FORCE_WAKEUP
    } else {
        BPF_RB_NO_WAKEUP
    };
    entry.submit(u64::from(flags));
}
