//! Connection records: from a free one to a used one and back.

use shaper_common::{Class, Conn, ConnId, Counter, EventKind, Gate, GateWord};

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
    Some(Fresh { conn, id: ConnId { index, generation: last.generation().wrapping_add(1) } })
}

/// Returns a record that never got a gate.
#[inline(always)]
pub fn put_back(fresh: &Fresh) {
    let _ = FREE_CONNS.push(fresh.id.index, 0);
}

/// Gives up what a connection had when its gate changes from `from` to `to`: its slot or its place in the queue.
/// Whoever won the change calls this, so it happens once.
#[inline(always)]
pub fn leave(conn: &Conn, id: ConnId, from: Gate, to: Gate) {
    let Some(lane) = slot::lane(conn.lane) else { return };
    if from.waits() && !to.waits() {
        slot::leave_queue(lane, Class::from_index(conn.class));
        emit(EventKind::Gone, conn, id.index, id.generation, 0, Urgency::Now);
    } else if from.holds_slot() && !to.holds_slot() {
        let gave = slot::give_back(lane, conn);
        let arg = u32::from(gave.refunded);
        emit(EventKind::Released, conn, id.index, id.generation, arg, Urgency::now_if(gave.awaited));
    }
}

/// Tries until the gate is `to`, and settles what the connection had. `None` if the record is no longer `id`'s.
#[inline(always)]
pub fn force_gate(conn: &Conn, id: ConnId, to: Gate) -> Option<Gate> {
    let mut seen = GateWord::from_bits(conn.gate.load());
    for _ in 0..shaper_common::CAS_TRIES {
        if seen.generation() != id.generation || seen.gate() == Gate::Free {
            return None;
        }
        let next = GateWord::new(id.generation, to);
        match conn.gate.compare_exchange(seen.bits(), next.bits()) {
            Ok(()) => {
                leave(conn, id, seen.gate(), to);
                return Some(seen.gate());
            }
            Err(now) => seen = GateWord::from_bits(now),
        }
    }
    count(Counter::Contended);
    None
}

/// The socket is done: settles what the connection had and frees the record.
#[inline(always)]
pub fn close(conn: &Conn, id: ConnId) {
    if force_gate(conn, id, Gate::Free).is_some() {
        emit(EventKind::Closed, conn, id.index, id.generation, 0, Urgency::Leisure);
        let _ = FREE_CONNS.push(id.index, 0);
    }
}
