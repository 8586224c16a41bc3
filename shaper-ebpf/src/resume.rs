//! A parked connection has a request: it takes a slot with a credit, or becomes a waiter.

use shaper_common::{Class, Conn, ConnId, EventKind, Gate, GateWord};

use crate::{
    emit::{Urgency, emit, now_ns},
    record,
    slot::{self, Bound, Decision, Purse},
};

/// Whether the request may leave. `word` is the parked gate. A resumed request over `max_queue` is not refused but
/// queued, for its connection exists.
#[inline(always)]
pub fn resume(conn: &mut Conn, id: ConnId, word: GateWord) -> bool {
    let Some(lane) = slot::lane(conn.lane) else {
        return true;
    };
    let class = Class::from_index(conn.class);
    let purse = purse(lane.account_caps.load() != 0, conn);
    match slot::decide(lane, class, &purse, Bound::None) {
        Decision::Open => {
            conn.admitted_ns.store(now_ns());
            if record::change(conn, word, word.with_gate(Gate::Open).with_busy(true)) {
                emit(EventKind::Opened, conn, id, 1, Urgency::Leisure);
                return true;
            }
            slot::give_back(lane, conn);
            false
        }
        Decision::Hold => {
            conn.since_ns = now_ns();
            conn.held.len = 0;
            if record::change(conn, word, word.with_gate(Gate::HeldRequest)) {
                emit(EventKind::Held, conn, id, 1, Urgency::Now);
            } else {
                slot::leave_queue(lane, class);
            }
            false
        }
        Decision::Refuse(_) => false,
    }
}

/// Gives the slot of an idle open connection back and queues its next request, if somebody must go first. `word` is the
/// open gate.
#[inline(always)]
pub fn yield_slot(conn: &mut Conn, id: ConnId, word: GateWord) -> bool {
    let Some(lane) = slot::lane(conn.lane) else {
        return false;
    };
    let class = Class::from_index(conn.class);
    if !slot::must_wait(lane, class) {
        return false;
    }
    // In the queue first, so that the slot is not refunded over the heads of those who wait.
    slot::join_queue(lane, class);
    conn.since_ns = now_ns();
    conn.held.len = 0;
    let held = word.with_gate(Gate::HeldRequest);
    if !record::change(conn, word, held) {
        slot::leave_queue(lane, class);
        return false;
    }
    record::settle(conn, id, word, held);
    emit(EventKind::Held, conn, id, 1, Urgency::Now);
    true
}

#[inline(always)]
fn purse(account_caps: bool, conn: &Conn) -> Purse {
    match conn.account.load() {
        0 if account_caps && conn.account_cgroup != 0 => Purse::Unknown,
        0 => Purse::None,
        // Also when the lane has no account caps any more: the slot will be given back on this element, so it must be
        // taken there.
        index => Purse::Known(index - 1),
    }
}
