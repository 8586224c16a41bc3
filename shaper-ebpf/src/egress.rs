//! A packet leaves a socket: let it pass, or hold the connection by dropping it.

use core::mem::offset_of;

use aya_ebpf::{EbpfContext, bindings::__sk_buff, helpers::generated::bpf_skb_load_bytes, programs::SkBuffContext};
use shaper_common::{Conn, Counter, Gate, GateWord, SYN_CAPACITY, Segment, SegmentError};

use crate::{
    access::{load_word, opaque},
    count::count,
    emit::now_ns,
    presence::controller_present,
    socket::{self, Governed},
};

const PASS: i32 = 1;
/// Dropped with -EPERM: TCP backs off before it tries again. Code 2 would re-probe twice a second, and each probe of
/// established data counts as failed until the client gets ETIMEDOUT.
const DROP: i32 = 0;

#[inline(always)]
pub fn packet(ctx: &SkBuffContext) -> i32 {
    let Some(governed) = governed(ctx) else { return PASS };
    if governed.gate == Gate::HeldSyn {
        return held_syn(ctx, &governed);
    }
    count_payload(ctx, &governed);
    PASS
}

/// The record of the packet's socket.
#[inline(always)]
pub fn governed(ctx: &SkBuffContext) -> Option<Governed> {
    // SAFETY: the context is valid for the run.
    let sk = unsafe { (*ctx.skb.skb).__bindgen_anon_2.sk };
    if sk.is_null() {
        return None;
    }
    // SAFETY: a socket pointer from the context, not null.
    unsafe { socket::governed(sk.cast()) }
}

/// Reads the packet's headers by direct access: they are in the linear part, TCP has built or pulled them there.
#[inline(always)]
pub fn segment(ctx: &SkBuffContext) -> Result<Segment, SegmentError> {
    let data = load_word::<_, { offset_of!(__sk_buff, data) }>(ctx.skb.skb);
    let end = load_word::<_, { offset_of!(__sk_buff, data_end) }>(ctx.skb.skb);
    let byte = |offset: u32| {
        let at = data + offset as usize;
        if at + 1 > end {
            return None;
        }
        // SAFETY: within the packet, as just checked.
        Some(unsafe { *(at as *const u8) })
    };
    Segment::parse(byte, ctx.len())
}

#[inline(always)]
fn held_syn(ctx: &SkBuffContext, governed: &Governed) -> i32 {
    if !controller_present() {
        count(Counter::ControllerLost);
        return PASS;
    }
    let Ok(segment) = segment(ctx) else {
        count(Counter::Malformed);
        return PASS;
    };
    if !segment.is_syn() {
        return PASS;
    }
    // SAFETY: points into the array map; the egress program of one socket runs under its lock, so nobody else writes
    // these fields.
    let conn = unsafe { &mut *governed.conn };
    conn.held_packets += 1;
    if conn.syn.len.load() == 0 {
        keep_syn(ctx, conn, &segment);
        // The controller opens the gate and then looks for a SYN to send again; we store the SYN and then look at the
        // gate. One of us sees the other, so an admission in between loses nothing.
        let gate = GateWord::from_bits(conn.gate.load());
        if gate.gate() != Gate::HeldSyn {
            return PASS;
        }
    }
    DROP
}

#[inline(always)]
fn keep_syn(ctx: &SkBuffContext, conn: &mut Conn, segment: &Segment) {
    let len = opaque(segment.tcp_header_len);
    if !(20..=SYN_CAPACITY as u32).contains(&len) {
        return;
    }
    let header = (&raw mut conn.syn.header).cast();
    // SAFETY: `len` bytes fit into `header`.
    let read = unsafe { bpf_skb_load_bytes(ctx.as_ptr(), segment.tcp_offset, header, len) };
    if read == 0 {
        conn.syn.len.swap(len);
    }
}

#[inline(always)]
fn count_payload(ctx: &SkBuffContext, governed: &Governed) {
    if let Ok(segment) = segment(ctx)
        && segment.payload_len > 0
    {
        // SAFETY: points into the array map; only this program, under the socket's lock, writes these fields.
        let conn = unsafe { &mut *governed.conn };
        conn.tx_ns = now_ns();
        conn.tx_bytes += u64::from(segment.payload_len);
    }
}
