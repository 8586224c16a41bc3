//! Changing gates from the controller's side: admit a waiter, let a connect through, let go.
//!
//! Counterpart of `record.rs` and `slot.rs` in the kernel object. Every change of a gate is a compare-and-swap; who wins
//! it settles the counts, so each is settled once, whichever side was faster.

use std::net::Ipv6Addr;

use shaper_common::{Class, Conn, ConnId, Endpoint, Gate, GateWord, Lane, SlotWord};

use super::{netns::NetnsCookie, raw::Route, segment, tables::Tables};
use crate::policy::Ns;

/// Why a waiter could not be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAdmitted {
    /// It does not wait any more.
    Gone,
    /// Slots and credits use up the budget: the kernel was faster.
    NoRoom,
}

/// A record in use: its gate at one instant and a copy of what the kernel wrote.
#[derive(Debug)]
pub struct ConnView {
    pub id: ConnId,
    pub gate: Gate,
    pub record: Conn,
}

impl ConnView {
    pub fn class(&self) -> Class {
        Class::from_index(self.record.class)
    }

    /// When its present wait or, if there was none, the connection began.
    pub fn since(&self) -> Ns {
        Ns(self.record.since_ns)
    }

    pub fn netns(&self) -> NetnsCookie {
        NetnsCookie(self.record.netns)
    }

    /// The gateway's end.
    pub fn remote(&self) -> Endpoint {
        let addr = Ipv6Addr::from(self.record.tuple.remote);
        Endpoint::host(addr.into(), self.record.tuple.remote_port)
    }

    /// How packets in its name leave.
    pub fn route(&self) -> Route {
        Route {
            tuple: self.record.tuple,
            mark: self.record.mark,
            ifindex: self.record.ifindex,
        }
    }

    /// The SYN that was dropped to hold the connect, for sending at `now`. `None`: none was dropped yet.
    pub fn held_syn(&self, now: Ns) -> Option<Vec<u8>> {
        let header = self
            .record
            .syn
            .header
            .get(..self.record.syn.len.load() as usize)?;
        let held = now.since(self.since()).as_millis() as u32;
        (header.len() >= 20).then(|| segment::syn(&self.record.tuple, header, held))
    }

    pub fn is_established(&self) -> bool {
        self.record.established_ns != 0
    }
}

impl Tables {
    /// Gives the waiter `id` a slot and opens its gate. Returns the gate it waited at.
    ///
    /// # Errors
    /// [`NotAdmitted`]; nothing has changed then.
    pub fn admit(&self, id: ConnId, now: Ns) -> Result<Gate, NotAdmitted> {
        let conn = self.conns.get(id.index).ok_or(NotAdmitted::Gone)?;
        let view = self
            .view(id)
            .filter(|view| view.gate.waits())
            .ok_or(NotAdmitted::Gone)?;
        let lane = self.lanes.get(view.record.lane).ok_or(NotAdmitted::Gone)?;
        let floor = if view.class() == Class::Interactive {
            0
        } else {
            lane.reserve.load()
        };
        change_slots(lane, |word| word.admit(floor)).ok_or(NotAdmitted::NoRoom)?;
        lane.class_slots[view.class().index()].add(1);
        self.change_account(conn, |slots| slots.wrapping_add(1));
        conn.admitted_ns.store(now.0);
        match self.leave_gate(conn, id, Gate::waits, Gate::Open) {
            Some(from) => {
                leave_queue(lane, view.class());
                Ok(from)
            }
            None => {
                // The slot was never used: nobody is refunded, the policy decides about it again.
                change_slots(lane, |word| Some(word.release(false)));
                lane.class_slots[view.class().index()].sub(1);
                self.change_account(conn, |slots| slots.wrapping_sub(1));
                Err(NotAdmitted::Gone)
            }
        }
    }

    /// Lets the connect of `id` through and holds its request instead. `false` if its SYN is not held any more.
    pub fn pass_connect(&self, id: ConnId) -> bool {
        let Some(conn) = self.conns.get(id.index) else {
            return false;
        };
        let held = |gate| gate == Gate::HeldSyn;
        self.leave_gate(conn, id, held, Gate::HeldRequest).is_some()
    }

    /// Takes the limit off a waiter: everything passes, no slot. Returns the gate it waited at.
    pub fn let_go(&self, id: ConnId) -> Option<Gate> {
        let conn = self.conns.get(id.index)?;
        let view = self.view(id)?;
        let from = self.leave_gate(conn, id, Gate::waits, Gate::Released)?;
        if let Some(lane) = self.lanes.get(view.record.lane) {
            leave_queue(lane, view.class());
        }
        Some(from)
    }

    /// What identifies `id`; `None` if the record belongs to another connection or none.
    pub fn view(&self, id: ConnId) -> Option<ConnView> {
        let view = self.view_at(id.index)?;
        (view.id == id).then_some(view)
    }

    /// All records in use.
    pub fn views(&self) -> impl Iterator<Item = ConnView> + '_ {
        (0..self.conns.len()).filter_map(|index| self.view_at(index))
    }

    fn view_at(&self, index: u32) -> Option<ConnView> {
        let conn = self.conns.get(index)?;
        let before = GateWord::from_bits(conn.gate.load());
        if before.gate() == Gate::Free {
            return None;
        }
        let record = self.conns.copy(index)?;
        // The kernel fills a record before it sets its gate, so an unchanged generation means an unmixed copy.
        let after = GateWord::from_bits(conn.gate.load());
        let id = ConnId {
            index,
            generation: before.generation(),
        };
        (after.generation() == before.generation()).then_some(ConnView {
            id,
            gate: before.gate(),
            record,
        })
    }

    /// Changes the gate to `to` while it satisfies `from`. Returns the gate before.
    fn leave_gate(
        &self,
        conn: &Conn,
        id: ConnId,
        from: impl Fn(Gate) -> bool,
        to: Gate,
    ) -> Option<Gate> {
        let changed = conn.gate.update(|bits| {
            let word = GateWord::from_bits(bits);
            let ours = word.generation() == id.generation && from(word.gate());
            ours.then(|| GateWord::new(id.generation, to).bits())
        });
        changed
            .ok()
            .map(|(before, _)| GateWord::from_bits(before).gate())
    }

    fn change_account(&self, conn: &Conn, change: impl Fn(u32) -> u32) {
        let index = conn.account.load();
        if index != 0
            && let Some(account) = self.accounts.get(index - 1)
        {
            let _ = account.slots.update(|slots| Some(change(slots)));
        }
    }
}

/// Changes a lane's word. `None` when `change` does not want to.
///
/// Unlike the kernel's side it never gives up: the loop is bounded by the kernel's progress.
pub fn change_slots(
    lane: &Lane,
    change: impl Fn(SlotWord) -> Option<SlotWord>,
) -> Option<SlotWord> {
    loop {
        let before = SlotWord::from_bits(lane.slots.load());
        let after = change(before)?;
        if lane
            .slots
            .compare_exchange(before.bits(), after.bits())
            .is_ok()
        {
            return Some(after);
        }
    }
}

fn leave_queue(lane: &Lane, class: Class) {
    lane.waiting[class.index()].sub(1);
    lane.queued.sub(1);
}
