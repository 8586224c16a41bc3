//! Connection records: from a free one to a used one and back, and every change of a gate in the kernel.

use shaper_common::{Class, Conn, ConnId, Counter, EventKind, Failure, Fate, Gate, GateWord};

use crate::{
    count::count,
    emit::{Urgency, emit},
    maps::{CONNS, FREE_CONNS},
    slot,
};

/// A record that belongs to no socket yet.
pub struct Fresh {
    pub conn: *mut Conn,
    pub id: ConnId,
}

/// Takes a free record. `None` when all are in use.
#[inline(always)]
pub fn allocate() -> Option<Fresh> {
    let index = FREE_CONNS.pop().ok().flatten()?;
    let conn = CONNS.get_ptr_mut(index)?;
    // SAFETY: points into the array map.
    let last = GateWord::from_bits(unsafe { &(*conn).gate }.load());
    Some(Fresh {
        conn,
        id: ConnId {
            index,
            generation: last.generation().wrapping_add(1),
        },
    })
}

/// Returns a record that never got a gate.
#[inline(always)]
pub fn put_back(fresh: &Fresh) {
    let _ = FREE_CONNS.push(fresh.id.index, 0);
}

/// The gate's word now, if the record still belongs to `id`.
#[inline(always)]
pub fn word_of(conn: &Conn, id: ConnId) -> Option<GateWord> {
    let word = GateWord::from_bits(conn.gate.load());
    if word.generation() != id.generation || word.gate() == Gate::Free {
        None
    } else {
        Some(word)
    }
}

/// Changes the word from `from` to `to`. `false` if it is not `from` any more.
#[inline(always)]
pub fn change(conn: &Conn, from: GateWord, to: GateWord) -> bool {
    conn.gate.compare_exchange(from.bits(), to.bits()).is_ok()
}

/// Changes the word to what `to` makes of it, and settles what the connection gives up by that. The word before;
/// `None` if the record is no longer `id`'s, or `to` wants no change.
#[inline(always)]
pub fn force(
    conn: &Conn,
    id: ConnId,
    to: impl Fn(GateWord) -> Option<GateWord>,
) -> Option<GateWord> {
    for _ in 0..shaper_common::CAS_TRIES {
        let seen = word_of(conn, id)?;
        let next = to(seen)?;
        if change(conn, seen, next) {
            settle(conn, id, seen, next);
            return Some(seen);
        }
    }
    count(Counter::Contended);
    None
}

/// Gives up what a connection had when its word changes: its slot or its place in the queue. Whoever won the change
/// calls this, so it happens once.
#[inline(always)]
pub fn settle(conn: &Conn, id: ConnId, from: GateWord, to: GateWord) {
    let Some(lane) = slot::lane(conn.lane) else {
        return;
    };
    let (was, is) = (from.gate(), to.gate());
    if was.waits() && !is.waits() {
        slot::leave_queue(lane, Class::from_index(conn.class));
        emit(EventKind::Gone, conn, id, 0, Urgency::Now);
    } else if was.holds_slot() && !is.holds_slot() {
        let gave = slot::give_back(lane, conn);
        emit(
            EventKind::Released,
            conn,
            id,
            u32::from(gave.refunded),
            Urgency::now_if(gave.awaited),
        );
    }
}

/// The socket is done: settles what the connection had and frees the record, unless its slot must linger.
#[inline(always)]
pub fn close(conn: &Conn, id: ConnId) {
    let closed = force(conn, id, |word| {
        if word.gate() == Gate::Lingering {
            Some(word.with_gone())
        } else {
            Some(word.with_gate(Gate::Free))
        }
    });
    let Some(before) = closed else { return };
    if before.gate() == Gate::Lingering {
        return;
    }
    if let Some(lane) = slot::lane(conn.lane) {
        lane.tx_bytes.add(conn.tx_bytes);
        lane.rx_bytes.add(conn.rx_bytes);
    }
    let fate = fate(conn, before.gate()) as u32;
    emit(EventKind::Closed, conn, id, fate, Urgency::Leisure);
    let _ = FREE_CONNS.push(id.index, 0);
}

#[inline(always)]
fn fate(conn: &Conn, last: Gate) -> Fate {
    match last {
        Gate::HeldSyn | Gate::HeldRequest | Gate::Doomed => Fate::NeverServed,
        _ if conn.told == Fate::Abandoned as u32 + 1 => Fate::Abandoned,
        _ if conn.told != 0 || conn.established_ns == 0 => Fate::Failed,
        _ => Fate::Completed,
    }
}

/// Whether a request is unanswered. What may have been the whole answer is taken for it when the connection ends.
#[inline(always)]
pub fn owes_answer(conn: &Conn, word: GateWord) -> bool {
    word.is_busy() && conn.unsure_ns <= conn.request_ns
}

/// Tells that the gateway has failed the connection.
#[inline(always)]
pub fn fail(conn: *mut Conn, id: ConnId, failure: Failure) {
    // SAFETY: points into the array map; the socket is locked.
    let conn = unsafe { &mut *conn };
    conn.told = Fate::Failed as u32 + 1;
    emit(
        EventKind::Failed,
        conn,
        id,
        failure as u32,
        Urgency::Leisure,
    );
}
