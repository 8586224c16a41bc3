//! The head of an answer in the clear: where the answer ends, and whether the controller must see it.

use core::{ffi::c_void, ptr};

use aya_ebpf::{
    EbpfContext,
    helpers::generated::{bpf_loop, bpf_skb_load_bytes},
    programs::SkBuffContext,
};
use shaper_common::{
    Conn, ConnId, END_KNOWN, Following, HEAD_CAPACITY, HEAD_STEPS, HeadScan, Segment, status,
};

use crate::{
    access::{clear_word, load_unaligned, within},
    glimpse,
    maps::HEADS,
};

const SWITCHING_PROTOCOLS: u16 = 101;

const CAPACITY: u32 = HEAD_CAPACITY as u32;

/// Words behind the payload that a step may look at.
const ZEROS: usize = 4;

/// Bounds offsets without a branch. None is so large that it changes one.
const MASK: u32 = 2 * CAPACITY - 1;

/// Where a CPU reads a head: on the stack there is no room for it. The ingress program runs in softirq, and so never
/// twice at a time on one CPU (`tcp_v4_rcv`).
#[repr(C)]
pub struct Workplace {
    scan: HeadScan,
    /// Bytes of the payload that are here.
    len: u32,
    /// They, zeros behind them, and what makes room for every masked offset.
    bytes: [u8; MASK as usize + 1 + size_of::<u64>()],
}

/// Reads the head of an answer that begins in this segment at the sequence number `start`, if it is one of HTTP/1.
#[inline(always)]
pub fn received(ctx: &SkBuffContext, conn: &mut Conn, id: ConnId, segment: &Segment, start: u32) {
    let Some(place) = HEADS.get_ptr_mut(0) else {
        return;
    };
    let Some(len) = within::<1, CAPACITY>(segment.payload_len.min(CAPACITY)) else {
        return;
    };
    // SAFETY: this CPU's own memory; `len` bytes and the zeros fit into it.
    unsafe {
        let bytes: *mut u8 = (&raw mut (*place).bytes).cast();
        if bpf_skb_load_bytes(ctx.as_ptr(), segment.payload_offset(), bytes.cast(), len) != 0 {
            return;
        }
        for number in 0..ZEROS {
            clear_word(bytes.add(len as usize + number * size_of::<u64>()));
        }
        (*place).len = len;
        (*place).scan = HeadScan::default();
    }
    let status = status(word(place, 0), word(place, 8));
    if status == 0 {
        return;
    }
    if status >= 400 {
        // It may ask for a pause, and nobody may have the slot before that is known: the controller says where it ends.
        glimpse::received(ctx, conn, id, segment, start);
        return;
    }
    if status == SWITCHING_PROTOCOLS {
        conn.following = Following::NoHttp as u32;
        return;
    }
    // SAFETY: `step` is a function of the form that the helper calls (Linux 5.17).
    unsafe { bpf_loop(HEAD_STEPS, step as *mut c_void, ptr::null_mut(), 0) };
    // SAFETY: this CPU's own memory. Volatile, for the compiler does not know that `step` writes there.
    let scan = unsafe { (&raw const (*place).scan).read_volatile() };
    if let Some(length) = scan.end(status, conn.head_request != 0, |at| word(place, at)) {
        let end = start.wrapping_add(length);
        conn.response_end.store(END_KNOWN | u64::from(end));
    }
}

/// One step through this CPU's head; nonzero ends the loop. By the helper and not by a loop of our own, of which the
/// verifier would follow every way through every step.
extern "C" fn step(_number: u64, _context: *mut c_void) -> i64 {
    let Some(place) = HEADS.get_ptr_mut(0) else {
        return 1;
    };
    // SAFETY: this CPU's own memory.
    let (scan, len) = unsafe { (&mut (*place).scan, (*place).len) };
    i64::from(!scan.step(len, |at| word(place, at)))
}

#[inline(always)]
fn word(place: *const Workplace, at: u32) -> u64 {
    // SAFETY: inside `bytes`, by the mask.
    unsafe {
        let bytes: *const u8 = (&raw const (*place).bytes).cast();
        load_unaligned(bytes.add((at & MASK) as usize))
    }
}
