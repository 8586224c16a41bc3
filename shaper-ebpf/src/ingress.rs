//! A packet reaches a socket: count what the gateway answers. Nothing is ever dropped here.

use aya_ebpf::programs::SkBuffContext;

use crate::{
    egress::{governed, segment},
    emit::now_ns,
};

const PASS: i32 = 1;

#[inline(always)]
pub fn packet(ctx: &SkBuffContext) -> i32 {
    if let Some(governed) = governed(ctx)
        && let Ok(segment) = segment(ctx)
        && segment.payload_len > 0
    {
        // SAFETY: points into the array map; two CPUs can receive for one socket only when the route changes, and a
        // lost statistic is all that could come of it.
        let conn = unsafe { &mut *governed.conn };
        conn.rx_ns = now_ns();
        conn.rx_bytes += u64::from(segment.payload_len);
    }
    PASS
}
