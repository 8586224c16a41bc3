//! A process lets go of a socket.

use aya_ebpf::{EbpfContext, programs::SockContext};
use shaper_common::{Conn, ConnId, EventKind, Fate, Gate, GateWord};

use crate::{
    emit::{Urgency, emit, micros_between, now_ns},
    record, slot, socket,
};

const ALLOW: i32 = 1;
const TCP_CLOSE: u32 = 7;

/// `inet_release`: nobody can use the socket any more; TCP may still have to finish.
#[inline(always)]
pub fn socket(ctx: &SockContext) -> i32 {
    // SAFETY: this program type passes its context as the socket.
    let Some(governed) = (unsafe { socket::governed(ctx.as_ptr()) }) else {
        return ALLOW;
    };
    let conn = governed.conn();
    // SAFETY: the context is the socket.
    let state = unsafe { (*ctx.sock).state };
    if state == TCP_CLOSE || conn.tracked == 0 {
        // No state change will follow (a connect that failed before TCP began), or none that we would see.
        record::close(conn, governed.id);
    } else {
        let_go(governed.conn, governed.id);
    }
    ALLOW
}

#[inline(always)]
fn let_go(conn: *mut Conn, id: ConnId) {
    // SAFETY: points into the array map; the socket's last user runs this, nobody else writes the field. Before the gate
    // changes, so that whoever sees it lingering knows since when.
    let conn = unsafe { &mut *conn };
    conn.left_ns = now_ns();
    let holds = slot::lane(conn.lane).is_some_and(|lane| lane.abort_holds.load() != 0);
    let Some(before) = record::force(conn, id, |word| {
        let lingers = holds && record::owes_answer(conn, word);
        Some(word.with_gate(after_release(word, lingers)))
    }) else {
        return;
    };
    match before.gate() {
        Gate::Open if record::owes_answer(conn, before) => {
            conn.told = Fate::Abandoned as u32 + 1;
            let waited = micros_between(conn.request_ns, conn.left_ns);
            emit(EventKind::Abandoned, conn, id, waited, Urgency::Leisure);
        }
        Gate::HeldRequest | Gate::Doomed => emit(EventKind::Stuck, conn, id, 0, Urgency::Now),
        _ => {}
    }
}

/// The gate of a connection whose program has let go of it.
#[inline(always)]
fn after_release(word: GateWord, lingers: bool) -> Gate {
    match word.gate() {
        // The gateway may still work on the request.
        Gate::Open if lingers => Gate::Lingering,
        Gate::HeldSyn | Gate::HeldRequest | Gate::Doomed => Gate::Doomed,
        _ => Gate::Closing,
    }
}
