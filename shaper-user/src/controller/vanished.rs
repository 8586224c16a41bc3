//! Records whose sockets are gone although no program has told: each record is compared with socket diagnostics.
//!
//! That takes a socket which ended while the programs that see its end were not attached.

use std::{
    cmp::Reverse,
    collections::{HashMap, HashSet},
    mem,
};

use shaper_common::{ConnId, Gate};
use tracing::{debug, warn};

use super::{Controller, hidden::in_one_go};
use crate::{
    kernel::{ConnView, NetnsCookie},
    metrics::Drift,
    policy::Ns,
};

/// The most sockets looked up in one round: some milliseconds' worth, for the loop waits meanwhile.
const LOOKUPS: usize = 1024;

/// Of them those whose turn it is: all records have theirs. Slots are not left to that, for somebody may wait for them.
const IN_TURN: usize = 256;

/// The same once all have had their turn and nothing has moved since.
const IN_TURN_AT_REST: usize = 64;

/// What the last round left in doubt, and where it ended.
#[derive(Debug, Default)]
pub struct Vanished {
    /// Sockets that were not found, and in how many rounds: who has been in doubt for longest is looked for first.
    missed: HashMap<ConnId, u32>,
    /// Index of the record at which the next round begins.
    next: u32,
    /// How often the last record has had its turn since something moved.
    ends: u32,
}

impl Vanished {
    /// How many have their turn in this round.
    fn in_turn(&mut self, is_still: bool) -> usize {
        if !is_still {
            self.ends = 0;
        }
        // The first turn may have begun in the middle.
        if self.ends < 2 {
            IN_TURN
        } else {
            IN_TURN_AT_REST
        }
    }
}

impl Controller {
    /// Frees records whose sockets were missing in this round and in the one before: a socket that has just ended has
    /// news of it on the way. Before that they are looked for everywhere, for one may be hidden.
    pub(super) fn free_vanished(&mut self, now: Ns) {
        let in_turn = self.vanished.in_turn(self.stillness.is_still());
        let Vanished { missed, next, .. } = &self.vanished;
        // The second look comes now, whoever's turn it is.
        let again = missed.keys().copied();
        let room = (LOOKUPS - IN_TURN).saturating_sub(missed.len());
        let open = self.parking.open().filter(|id| !missed.contains_key(id));
        let first = again.chain(open.take(room));
        let first = first.filter_map(|id| self.tables.view(id));
        let mut looked_for: Vec<_> = first.filter(has_a_socket).collect();

        let chosen: HashSet<_> = looked_for.iter().map(|view| view.id).collect();
        let turn = self.tables.views_from(*next);
        let others = turn.filter(|view| has_a_socket(view) && !chosen.contains(&view.id));
        let most = in_turn.min(LOOKUPS.saturating_sub(looked_for.len()));
        let others: Vec<_> = others.take(most).collect();
        match others.last() {
            Some(last) if others.len() == most => self.vanished.next = last.id.index + 1,
            None if most == 0 => {}
            _ => {
                self.vanished.next = 0;
                self.vanished.ends += 1;
            }
        }

        looked_for.extend(others);
        let mut closed = HashSet::new();
        looked_for.retain(|view| self.is_missing(view, &mut closed));
        let before = mem::take(&mut self.vanished.missed);
        let rounds = |view: &ConnView| before.get(&view.id).copied().unwrap_or(0);
        let (mut again, first): (Vec<_>, Vec<_>) =
            looked_for.into_iter().partition(|view| rounds(view) > 0);
        again.sort_by_key(|view| (Reverse(rounds(view)), view.id.index));
        let (batches, later) = in_one_go(again, |view| view.netns());
        for view in first.into_iter().chain(later) {
            self.vanished.missed.insert(view.id, rounds(&view) + 1);
        }
        for batch in batches {
            for view in self.gone_for_certain(batch) {
                self.free(now, &view);
            }
        }
    }

    /// Whether there is certainly no such socket. `closed`: namespaces that could not be entered in this round.
    fn is_missing(&mut self, view: &ConnView, closed: &mut HashSet<NetnsCookie>) -> bool {
        if closed.contains(&view.netns()) {
            return false;
        }
        let looked = self
            .namespaces
            .open(view.netns(), view.record.pid)
            .and_then(|namespace| namespace.diag.exists(&view.route(), view.record.cookie));
        match looked {
            Ok(exists) => !exists,
            Err(error) => {
                debug!(id = %view.id, %error, "cannot look for a connection's socket");
                closed.insert(view.netns());
                false
            }
        }
    }

    fn free(&mut self, now: Ns, view: &ConnView) {
        let Some(gate) = self.tables.reap(view) else {
            return;
        };
        self.stillness.moved();
        warn!(id = %view.id, ?gate, pid = view.record.pid, "a connection's socket had gone without a word; its record is free");
        self.metrics.count_drift(Drift::Sockets, 1);
        self.nudges.forget(view.id);
        self.parking.forget(view.id);
        let Some(lane) = view.lane() else { return };
        if gate.holds_slot() {
            self.released(now, lane, view.id);
        } else if gate.waits() {
            self.gone(now, lane, view.id);
        }
    }
}

/// A record that TCP reports on, and whose socket is not known to have ended.
fn has_a_socket(view: &ConnView) -> bool {
    view.record.tracked != 0 && view.gate() != Gate::Lingering
}
