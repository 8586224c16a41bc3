//! What became of a lane's requests: since the lane was made, and in the last five minutes.

use shaper_common::Class;

use super::{Counters, Ended, Ns, Outcome, Refusal, StartProfile, recent::Recent};

#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) counters: Counters,
    pub(super) starts: StartProfile,
    pub(super) recent: Recent,
}

impl Tally {
    /// A request started, and found this many in flight.
    pub(super) fn started(&mut self, now: Ns, ended: &Ended, found: u32) {
        self.starts.record(found);
        self.recent.waited(now, ended.wait);
        self.counters.count(ended.class, Outcome::Admitted);
    }

    /// It did not start after all.
    pub(super) fn take_back_start(&mut self, now: Ns, ended: &Ended, found: u32) {
        self.starts.take_back(found);
        self.recent.take_back(now, ended.wait);
        self.counters.take_back(ended.class, Outcome::Admitted);
    }

    /// A wait ended without a start.
    pub(super) fn ended(&mut self, now: Ns, ended: &Ended) {
        match ended.outcome {
            Outcome::Expired => self.recent.timed_out(now),
            Outcome::Gone => self.recent.left_queue(now),
            Outcome::Admitted | Outcome::Refused(_) | Outcome::Bypassed => {}
        }
        self.counters.count(ended.class, ended.outcome);
    }

    /// A connect was refused: it never waited.
    pub(super) fn refused(&mut self, now: Ns, class: Class, why: Refusal) {
        self.recent.refused(now);
        self.counters.count(class, Outcome::Refused(why));
    }
}
