//! Records whose sockets are gone although no program has told: each record is compared with socket diagnostics.
//!
//! That takes a socket which ended while the programs that see its end were not attached.

use std::collections::HashSet;

use shaper_common::{ConnId, Gate};
use tracing::{debug, warn};

use super::Controller;
use crate::{
    kernel::{ConnView, NetnsCookie},
    metrics::Drift,
    policy::Ns,
};

/// Sockets looked up in one round: some milliseconds' worth, for the loop waits meanwhile. All records have their turn.
const LOOKUPS: usize = 1024;

/// What the last round did not find, and where it ended.
#[derive(Debug, Default)]
pub struct Vanished {
    missed: HashSet<ConnId>,
    /// Index of the record at which the next round begins.
    next: u32,
}

impl Controller {
    /// Frees records whose sockets were missing in this round and in the one before: a socket that has just ended has
    /// news of it on the way.
    pub(super) fn free_vanished(&mut self, now: Ns) {
        let views: Vec<_> = self.tables.views().filter(has_a_socket).collect();
        let from = views.partition_point(|view| view.id.index < self.vanished.next);
        let turn: Vec<_> = views[from..].iter().chain(&views[..from]).collect();
        // Their second look comes now, whoever's turn it is.
        let doubtful = |view: &&ConnView| self.vanished.missed.contains(&view.id);
        let (again, others): (Vec<&ConnView>, Vec<&ConnView>) =
            turn.into_iter().partition(doubtful);
        let others: Vec<_> = others.into_iter().take(LOOKUPS).collect();
        self.vanished.next = others.last().map_or(0, |view| view.id.index + 1);

        let mut closed = HashSet::new();
        let mut missing = Vec::new();
        for view in again.into_iter().chain(others) {
            if self.is_missing(view, &mut closed) {
                missing.push(view);
            }
        }
        let before = std::mem::take(&mut self.vanished.missed);
        for view in missing {
            if !before.contains(&view.id) {
                self.vanished.missed.insert(view.id);
            } else if self.is_gone(view) {
                self.free(now, view);
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

    /// Whether there is no such socket under other particulars either: a process may bind its socket to an interface after
    /// the connect (`sock_bindtoindex`, Linux 5.7), and from then on a look-up without it finds nothing.
    fn is_gone(&mut self, view: &ConnView) -> bool {
        self.namespaces
            .open(view.netns(), view.record.pid)
            .and_then(|namespace| namespace.diag.exists_anywhere(view.record.cookie))
            .is_ok_and(|exists| !exists)
    }

    fn free(&mut self, now: Ns, view: &ConnView) {
        let Some(gate) = self.tables.reap(view) else {
            return;
        };
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
