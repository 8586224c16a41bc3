//! A process lets go of a socket.

use aya_ebpf::{EbpfContext, programs::SockContext};
use shaper_common::Gate;

use crate::{record, socket};

const ALLOW: i32 = 1;
const TCP_CLOSE: u32 = 7;

/// `inet_release`: nobody can use the socket any more; TCP may still have to finish.
#[inline(always)]
pub fn socket(ctx: &SockContext) -> i32 {
    // SAFETY: this program type passes its context as the socket.
    let Some(governed) = (unsafe { socket::governed(ctx.as_ptr()) }) else { return ALLOW };
    let conn = governed.conn();
    // SAFETY: the context is the socket.
    let state = unsafe { (*ctx.sock).state };
    if state == TCP_CLOSE || conn.tracked == 0 {
        // No state change will follow (a connect that failed before TCP began), or none that we would see.
        record::close(conn, governed.id);
    } else {
        let to = if governed.gate.blocks_requests() { Gate::Doomed } else { Gate::Closing };
        record::force_gate(conn, governed.id, to);
    }
    ALLOW
}
