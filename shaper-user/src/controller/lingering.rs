//! Slots of requests whose clients went away: the gateway may still be working on them.

use std::{collections::HashMap, time::Duration};

use shaper_common::ConnId;

use crate::policy::{LaneId, Ns};

/// Which slots linger, and until when.
#[derive(Debug, Default)]
pub struct Lingering {
    until: HashMap<ConnId, (LaneId, Ns)>,
}

impl Lingering {
    /// The client of `id` left at `left`. Known already: nothing changes.
    pub fn begin(&mut self, lane: LaneId, id: ConnId, left: Ns, abort_hold: Duration) {
        self.until.entry(id).or_insert((lane, left + abort_hold));
    }

    /// The slot of `id` is free.
    pub fn forget(&mut self, id: ConnId) {
        self.until.remove(&id);
    }

    /// Takes those whose time is over.
    pub fn take_due(&mut self, now: Ns) -> Vec<(LaneId, ConnId)> {
        let due = self.until.extract_if(|_, (_, until)| *until <= now);
        due.map(|(id, (lane, _))| (lane, id)).collect()
    }

    pub fn next_deadline(&self) -> Option<Ns> {
        self.until.values().map(|(_, until)| *until).min()
    }
}
