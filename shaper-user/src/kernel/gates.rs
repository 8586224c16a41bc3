//! Changing gates from the controller's side: admit a waiter, let a connect through, park, let go.
//!
//! Counterpart of `record.rs` and `slot.rs` in the kernel object. Every change of a gate is a compare-and-swap; who wins
//! it settles the counts, so each is settled once, whichever side was faster.

use shaper_common::{Account, Class, ConnId, Gate, GateWord, Lane, LaneMode, SharedU32, SlotWord};

use super::{shared::ConnWords, tables::Tables, view::ConnView};
use crate::policy::Ns;

/// Why a waiter could not be admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAdmitted {
    /// It does not wait any more.
    Gone,
    /// Slots and credits use up the budget or a cap: the kernel was faster.
    NoRoom,
}

impl Tables {
    /// Gives the waiter `id` a slot and opens its gate. `floor` slots besides it must be free. Returns the gate it
    /// waited at.
    ///
    /// # Errors
    /// [`NotAdmitted`]; nothing has changed then.
    pub fn admit(&self, id: ConnId, floor: u32, now: Ns) -> Result<Gate, NotAdmitted> {
        let view = self
            .view(id)
            .filter(|view| view.gate().waits())
            .ok_or(NotAdmitted::Gone)?;
        let conn = self.conns.get(id.index).ok_or(NotAdmitted::Gone)?;
        let lane = self.lanes.get(view.record.lane).ok_or(NotAdmitted::Gone)?;
        let share = self.share(lane, &view);
        share.take(floor)?;
        conn.admitted_ns.store(now.0);
        if view.gate() == Gate::HeldSyn {
            conn.released_ns.store(now.0);
        }
        match change_gate(conn, id, Gate::waits, Gate::Open) {
            Some(from) => {
                leave_queue(lane, view.class());
                Ok(from)
            }
            None => {
                share.give_back();
                Err(NotAdmitted::Gone)
            }
        }
    }

    /// Lets the connect of `id` through and holds its request instead. `false` if its SYN is not held any more.
    pub fn pass_connect(&self, id: ConnId, now: Ns) -> bool {
        let Some(conn) = self.held_syn(id) else {
            return false;
        };
        conn.released_ns.store(now.0);
        change_gate(conn, id, |gate| gate == Gate::HeldSyn, Gate::HeldRequest).is_some()
    }

    /// The record of `id`, if its SYN is held.
    fn held_syn(&self, id: ConnId) -> Option<ConnWords<'_>> {
        self.view(id).filter(|view| view.gate() == Gate::HeldSyn)?;
        self.conns.get(id.index)
    }

    /// Takes the slot of a connection whose response is over and keeps the connection. `guess`: more of the response may
    /// come after all. `false` if anything has happened on it since the view was taken, or it has no slot.
    pub fn park(&self, view: &ConnView, guess: bool) -> bool {
        let (Some(conn), Some(lane)) = (
            self.conns.get(view.id.index),
            self.lanes.get(view.record.lane),
        ) else {
            return false;
        };
        let parked = view.word.with_gate(Gate::Parked);
        let parked = if guess {
            // An overrun tells by it whether the response went on or only began.
            parked.with_guess().with_busy(view.word.is_busy())
        } else {
            parked
        };
        let changed = view.gate() == Gate::Open
            && conn
                .gate
                .compare_exchange(view.word.bits(), parked.bits())
                .is_ok();
        if changed {
            self.share(lane, view).give_back();
        }
        changed
    }

    /// Ends the lingering of an abandoned request: its slot is free. `false` if it does not linger.
    pub fn end_lingering(&mut self, id: ConnId) -> bool {
        let Some(view) = self.view(id).filter(|view| view.gate() == Gate::Lingering) else {
            return false;
        };
        let (Some(conn), Some(lane)) = (self.conns.get(id.index), self.lanes.get(view.record.lane))
        else {
            return false;
        };
        // The socket may close at any moment; then the record is ours to free.
        let ended = conn.gate.update(|bits| {
            let word = GateWord::from_bits(bits);
            let gate = if word.is_gone() {
                Gate::Free
            } else {
                Gate::Closing
            };
            let ours = word.generation() == id.generation && word.gate() == Gate::Lingering;
            ours.then(|| word.with_gate(gate).bits())
        });
        let Ok((_, after)) = ended else {
            return false;
        };
        self.share(lane, &view).give_back();
        if GateWord::from_bits(after).gate() == Gate::Free {
            lane.tx_bytes.add(view.record.tx_bytes);
            lane.rx_bytes.add(view.record.rx_bytes);
            // A full stack cannot be: the index was taken from it.
            let _ = self.offer_record(id.index);
        }
        true
    }

    /// Frees a record that no program will free, if nothing has happened on it since the view was taken. Returns its gate.
    pub fn reap(&mut self, view: &ConnView) -> Option<Gate> {
        let conn = self.conns.get(view.id.index)?;
        let lane = self.lanes.get(view.record.lane)?;
        let free = view.word.with_gate(Gate::Free);
        conn.gate
            .compare_exchange(view.word.bits(), free.bits())
            .ok()?;
        if view.gate().holds_slot() {
            self.share(lane, view).give_back();
        } else if view.gate().waits() {
            leave_queue(lane, view.class());
        }
        // A full stack cannot be: the index was taken from it.
        let _ = self.offer_record(view.id.index);
        Some(view.gate())
    }

    /// Takes the limit off a waiter: everything passes, no slot. Returns the gate it waited at.
    pub fn let_go(&self, id: ConnId) -> Option<Gate> {
        let view = self.view(id)?;
        let conn = self.conns.get(id.index)?;
        let from = change_gate(conn, id, Gate::waits, Gate::Released)?;
        if let Some(lane) = self.lanes.get(view.record.lane) {
            leave_queue(lane, view.class());
        }
        Some(from)
    }

    /// What the connection of this view counts on. By the view and not by the record, which the kernel may have given to
    /// another connection meanwhile: what is taken must be given back in the same place.
    fn share<'a>(&'a self, lane: &'a Lane, view: &ConnView) -> Share<'a> {
        let account = view.record.account.load().checked_sub(1);
        Share {
            lane,
            class: view.class(),
            account: account.and_then(|index| self.accounts.get(index)),
        }
    }
}

/// The counts that one slot is part of: the lane's word, its class, its account.
struct Share<'a> {
    lane: &'a Lane,
    class: Class,
    account: Option<&'a Account>,
}

impl Share<'_> {
    /// Takes a slot: the class cap, the account cap and the lane's word, together or not at all.
    fn take(&self, floor: u32) -> Result<(), NotAdmitted> {
        let Self { lane, class, .. } = *self;
        let observes = lane.mode.load() != LaneMode::Enforce as u32;
        let unless_observing = |cap: &SharedU32| if observes { u32::MAX } else { cap.load() };
        let below = |cap: u32| move |used: u32| (used < cap).then(|| used + 1);
        let class_slots = &lane.class_slots[class.index()];
        let class_cap = unless_observing(&lane.class_cap[class.index()]);
        if class_slots.update(below(class_cap)).is_err() {
            return Err(NotAdmitted::NoRoom);
        }
        if let Some(account) = self.account
            && account
                .slots
                .update(below(unless_observing(&account.cap)))
                .is_err()
        {
            class_slots.sub(1);
            return Err(NotAdmitted::NoRoom);
        }
        let taken = change_slots(lane, |word| {
            if observes {
                return Some(word.force());
            }
            let others = lane.class_slots[Class::Default.index()].load()
                + lane.class_slots[Class::Bulk.index()].load();
            // Our own is among them already.
            let unreserved = word.budget().saturating_sub(lane.reserve.load());
            if class != Class::Interactive && others > unreserved {
                return None;
            }
            word.admit(floor)
        });
        if taken.is_none() {
            self.give_back_caps();
            return Err(NotAdmitted::NoRoom);
        }
        Ok(())
    }

    /// Gives a slot back. It becomes no credit here: the policy decides about it.
    fn give_back(&self) {
        change_slots(self.lane, |word| Some(word.release(false)));
        self.give_back_caps();
    }

    fn give_back_caps(&self) {
        self.lane.class_slots[self.class.index()].sub(1);
        if let Some(account) = self.account {
            account.slots.sub(1);
        }
    }
}

/// Changes the gate to `to` while it satisfies `from`. Returns the gate before.
fn change_gate(
    conn: ConnWords<'_>,
    id: ConnId,
    from: impl Fn(Gate) -> bool,
    to: Gate,
) -> Option<Gate> {
    let changed = conn.gate.update(|bits| {
        let word = GateWord::from_bits(bits);
        let ours = word.generation() == id.generation && from(word.gate());
        ours.then(|| word.with_gate(to).bits())
    });
    changed
        .ok()
        .map(|(before, _)| GateWord::from_bits(before).gate())
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
