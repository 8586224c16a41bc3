//! Reading packets: the record of a packet's socket, its headers, pieces of its payload.

use core::{
    ffi::c_void,
    mem::{MaybeUninit, offset_of},
};

use aya_ebpf::{
    EbpfContext,
    bindings::{__sk_buff, bpf_tcp_sock as bpf_tcp_sock_view},
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
    let sk = sk(ctx);
    if sk.is_null() {
        return None;
    }
    // SAFETY: a socket pointer from the context, not null.
    unsafe { socket::governed(sk) }
}

/// The packet's socket, or null.
#[inline(always)]
pub fn sk(ctx: &SkBuffContext) -> *mut c_void {
    // SAFETY: the context is valid for the run.
    unsafe { (*ctx.skb.skb).__bindgen_anon_2.sk }.cast()
}

/// Reads the packet's headers by direct access: they are in the linear part, TCP has built or pulled them there.
///
/// # Errors
/// As [`Segment::parse`].
#[inline(always)]
pub fn segment(ctx: &SkBuffContext) -> Result<Segment, SegmentError> {
    Segment::parse(bytes(ctx), ctx.len())
}

/// The bytes of the packet's linear part, by their offset from the IP header.
#[inline(always)]
pub fn bytes(ctx: &SkBuffContext) -> impl Fn(u32) -> Option<u8> {
    let data = load_word::<_, { offset_of!(__sk_buff, data) }>(ctx.skb.skb);
    let end = load_word::<_, { offset_of!(__sk_buff, data_end) }>(ctx.skb.skb);
    move |offset: u32| {
        let at = data + offset as usize;
        if at + 1 > end {
            return None;
        }
        // SAFETY: within the packet, as just checked.
        Some(unsafe { *(at as *const u8) })
    }
}

/// The first bytes of the packet's payload: a TLS record header, or the start of anything else.
#[inline(always)]
pub fn payload_start(
    ctx: &SkBuffContext,
    segment: &Segment,
    at: u32,
) -> Option<[u8; RECORD_HEADER]> {
    load(ctx, segment.payload_offset() + at)
}

/// Copies `N` bytes at `offset`, wherever in the packet they are: payload is rarely in the linear part.
#[inline(always)]
pub fn load<const N: usize>(ctx: &SkBuffContext, offset: u32) -> Option<[u8; N]> {
    let mut bytes = MaybeUninit::<[u8; N]>::uninit();
    // SAFETY: the helper writes exactly `N` bytes or fails.
    unsafe {
        let read = bpf_skb_load_bytes(ctx.as_ptr(), offset, bytes.as_mut_ptr().cast(), N as u32);
        if read == 0 {
            Some(bytes.assume_init())
        } else {
            None
        }
    }
}

/// The shortest round-trip time of the packet's connection lately; 0 if it is not known. Not the smoothed one: after a
/// connect that was held it has the hold in it.
#[inline(always)]
pub fn round_trip_ns(ctx: &SkBuffContext) -> u64 {
    // SAFETY: as `tcp_of` says. In microseconds.
    tcp_of(ctx).map_or(0, |tcp| u64::from(unsafe { (*tcp).rtt_min }) * 1_000)
}

/// Up to which sequence number the peer has acknowledged (`snd_una`).
#[inline(always)]
pub fn acknowledged(ctx: &SkBuffContext) -> u32 {
    // SAFETY: as `tcp_of` says.
    tcp_of(ctx).map_or(0, |tcp| unsafe { (*tcp).snd_una })
}

/// Up to which sequence number everything has come from the peer (`rcv_nxt`).
#[inline(always)]
pub fn received(ctx: &SkBuffContext) -> u32 {
    // SAFETY: as `tcp_of` says.
    tcp_of(ctx).map_or(0, |tcp| unsafe { (*tcp).rcv_nxt })
}

/// TCP's view of the packet's socket, valid for the run.
#[inline(always)]
fn tcp_of(ctx: &SkBuffContext) -> Option<*mut bpf_tcp_sock_view> {
    let sk = sk(ctx);
    if sk.is_null() {
        return None;
    }
    // SAFETY: a socket pointer from the context, not null.
    let tcp = unsafe { bpf_tcp_sock(sk.cast()) };
    if tcp.is_null() { None } else { Some(tcp) }
}
