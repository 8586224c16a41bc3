//! Slots of requests whose clients went away: the gateway may still be working on them.

use std::time::Duration;

use shaper_common::ConnId;

use super::schedule::Schedule;
use crate::policy::Ns;

/// Which slots linger, and until when.
#[derive(Debug, Default)]
pub struct Lingering {
    ends: Schedule,
}

impl Lingering {
    /// The client of `id` left at `left`.
    pub fn begin(&mut self, id: ConnId, left: Ns, abort_hold: Duration) {
        self.ends.set(id, left + abort_hold);
    }

    /// The slot of `id` is free.
    pub fn forget(&mut self, id: ConnId) {
        self.ends.remove(id);
    }

    /// Takes those whose time is over.
    pub fn take_due(&mut self, now: Ns) -> Vec<ConnId> {
        self.ends.take_due(now)
    }

    pub fn next_deadline(&self) -> Option<Ns> {
        self.ends.next()
    }
}
