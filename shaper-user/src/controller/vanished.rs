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

/// Of them those whose turn it is: all records have theirs.
const IN_TURN: usize = 256;

/// The same while nothing moves. A waiter whose socket has gone keeps nobody from a slot: when its own turn comes it is given
/// one, and slots are looked for in every round.
const IN_TURN_AT_REST: usize = 64;

/// What the last round left in doubt, and where it ended.
#[derive(Debug, Default)]
pub struct Vanished {
    /// Sockets that were not found, and in how many rounds: who has been in doubt for longest is looked for first.
    missed: HashMap<ConnId, u32>,
    /// Index of the record at which the next round begins.
    next: u32,
    /// The same among those that have a slot, of which there can be more than one round takes.
    next_open: u32,
}

impl Vanished {
    /// Of those that have a slot `most` whose turn it is, beginning where the last call ended.
    fn open_in_turn(&mut self, mut open: Vec<ConnId>, most: usize) -> Vec<ConnId> {
        open.sort_unstable_by_key(|id| id.index);
        let from = open.partition_point(|id| id.index < self.next_open);
        open.rotate_left(from);
        open.truncate(most);
        self.next_open = open.last().map_or(0, |last| last.index + 1);
        open
    }

    /// Where the next round begins, after one that took `taken` of `most`, the last at index `last`.
    fn go_on(&mut self, taken: usize, most: usize, last: Option<u32>) {
        match last {
            _ if most == 0 => {}
            Some(last) if taken == most => self.next = last + 1,
            _ => self.next = 0,
        }
    }
}

impl Controller {
    /// Frees records whose sockets were missing in this round and in the one before: a socket that has just ended has
    /// news of it on the way. Before that they are looked for everywhere, for one may be hidden.
    pub(super) fn free_vanished(&mut self, now: Ns) {
        // The second look comes now, whoever's turn it is.
        let mut first: Vec<ConnId> = self.vanished.missed.keys().copied().collect();
        let room = (LOOKUPS - IN_TURN).saturating_sub(first.len());
        let open = self.parking.open();
        let open = open.filter(|id| !self.vanished.missed.contains_key(id));
        let open = open.collect();
        first.extend(self.vanished.open_in_turn(open, room));
        let first = first.into_iter().filter_map(|id| self.tables.view(id));
        let mut looked_for: Vec<_> = first.filter(has_a_socket).collect();

        let chosen: HashSet<_> = looked_for.iter().map(|view| view.id).collect();
        let in_turn = match self.stillness.is_still() {
            true => IN_TURN_AT_REST,
            false => IN_TURN,
        };
        let most = in_turn.min(LOOKUPS.saturating_sub(looked_for.len()));
        let others = self.tables.views_from(self.vanished.next);
        let others = others.filter(|view| has_a_socket(view) && !chosen.contains(&view.id));
        let others: Vec<_> = others.take(most).collect();
        let last = others.last().map(|view| view.id.index);
        self.vanished.go_on(others.len(), most, last);

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

#[cfg(test)]
mod tests {
    use super::*;

    /// E4: a slot whose socket has gone is found soon, however many others are in use.
    #[test]
    fn all_that_have_a_slot_have_their_turn_within_as_few_rounds_as_can_be() {
        let ids: Vec<_> = (0..1000)
            .map(|number| ConnId {
                index: number * 7,
                generation: 1,
            })
            .collect();
        let mut vanished = Vanished::default();
        let mut seen = HashSet::new();
        for _ in 0..4 {
            let mut open = ids.clone();
            open.reverse();
            let turn = vanished.open_in_turn(open, 256);
            assert!(turn.len() <= 256);
            seen.extend(turn);
        }
        assert_eq!(seen.len(), ids.len());
        assert!(vanished.open_in_turn(Vec::new(), 256).is_empty());
        assert_eq!(vanished.open_in_turn(ids.clone(), 2000).len(), ids.len());
    }

    #[test]
    fn a_round_begins_behind_the_last_record_of_the_one_before_and_at_the_end_anew() {
        let mut vanished = Vanished::default();
        vanished.go_on(64, 64, Some(99));
        assert_eq!(vanished.next, 100);
        vanished.go_on(0, 0, None);
        assert_eq!(vanished.next, 100);
        vanished.go_on(3, 64, Some(120));
        assert_eq!(vanished.next, 0);
        vanished.go_on(0, 64, None);
        assert_eq!(vanished.next, 0);
    }
}
