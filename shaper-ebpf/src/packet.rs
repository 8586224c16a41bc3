//! Reading packets: the record of a packet's socket, its headers, pieces of its payload.

use core::mem::{MaybeUninit, offset_of};

use aya_ebpf::{
    EbpfContext,
    bindings::__sk_buff,
    helpers::generated::{bpf_skb_load_bytes, bpf_tcp_sock},
    programs::SkBuffContext,
};
use shaper_common::{RECORD_HEADER, Segment, SegmentError};

use crate::{
    access::load_word,
    socket::{self, Governed},
};

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
///
/// # Errors
/// As [`Segment::parse`].
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

/// The first bytes of the packet's payload: a TLS record header, or the start of anything else.
#[inline(always)]
pub fn payload_start(ctx: &SkBuffContext, segment: &Segment, at: u32) -> Option<[u8; RECORD_HEADER]> {
    load(ctx, segment.payload_offset() + at)
}

/// The TCP sequence number of the packet's first payload byte, for which SYN counts as one (RFC 9293, 3.4).
#[inline(always)]
pub fn sequence(ctx: &SkBuffContext, segment: &Segment) -> Option<u32> {
    load(ctx, segment.tcp_offset + 4).map(u32::from_be_bytes)
}

/// Copies `N` bytes at `offset`, wherever in the packet they are: payload is rarely in the linear part.
#[inline(always)]
pub fn load<const N: usize>(ctx: &SkBuffContext, offset: u32) -> Option<[u8; N]> {
    let mut bytes = MaybeUninit::<[u8; N]>::uninit();
    // SAFETY: the helper writes exactly `N` bytes or fails.
    unsafe {
        let read = bpf_skb_load_bytes(ctx.as_ptr(), offset, bytes.as_mut_ptr().cast(), N as u32);
        if read == 0 { Some(bytes.assume_init()) } else { None }
    }
}

/// The smoothed round-trip time of the packet's connection; 0 if it is not known.
#[inline(always)]
pub fn round_trip_ns(ctx: &SkBuffContext) -> u64 {
    // SAFETY: the context is valid for the run.
    let sk = unsafe { (*ctx.skb.skb).__bindgen_anon_2.sk };
    if sk.is_null() {
        return 0;
    }
    // SAFETY: a socket pointer from the context, not null.
    let tcp = unsafe { bpf_tcp_sock(sk) };
    if tcp.is_null() {
        return 0;
    }
    // SAFETY: checked for null. `srtt_us` is the time in microseconds times 8.
    u64::from(unsafe { (*tcp).srtt_us } >> 3) * 1_000
}
