//! Whether anything has moved since the last comparisons of the policy's picture with the maps: a host on which nothing
//! happens pays nothing for them, however many wait.
//!
//! The programs tell of every change of a slot or a place in a queue, or count that they could not (`events_lost`). So what was
//! in order at the last looks still is, unless there was news, or this controller did something, or the counts of a
//! configured lane or of an account have changed. Of requests that begin they do not tell: those are noticed where open connections are
//! looked at (`parking.rs`).

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use shaper_common::{Counter, Lane};

use super::Controller;
use crate::policy::Ns;

/// Comparisons after the last move. Some things are done only at a second look, or when they are as old as
/// [`UNTRACKED_MAX_AGE`](super::drift::UNTRACKED_MAX_AGE).
const LOOKS: u32 = 3;

/// How long what has not moved is left alone: should something have changed without a word, it is found after that, and
/// counts as a move if it takes a second look.
const AT_LEAST_EVERY: Duration = Duration::from_secs(60);

/// What the last comparisons have seen.
#[derive(Debug, Default)]
pub struct Stillness {
    /// What the controller has done since it began.
    moves: u64,
    fingerprint: u64,
    /// Comparisons with this fingerprint.
    looks: u32,
    /// The last one.
    at: Ns,
}

impl Stillness {
    /// The controller has done something.
    pub fn moved(&mut self) {
        self.moves += 1;
    }

    /// Whether everything has had its looks since it moved last.
    pub fn is_still(&self) -> bool {
        self.looks >= LOOKS
    }

    /// Whether to compare; if so, this counts as a look.
    fn is_due(&mut self, now: Ns, fingerprint: u64) -> bool {
        if fingerprint != self.fingerprint {
            (self.fingerprint, self.looks) = (fingerprint, 0);
        }
        if self.is_still() && now.since(self.at) < AT_LEAST_EVERY {
            return false;
        }
        self.looks += 1;
        self.at = now;
        true
    }
}

impl Controller {
    /// Whether the policy's picture, the records and the counts may differ in another way than at the last looks.
    pub(super) fn may_have_drifted(&mut self, now: Ns) -> bool {
        let mut hasher = DefaultHasher::new();
        self.stillness.moves.hash(&mut hasher);
        self.events.taken().hash(&mut hasher);
        let lost = self.tables.counter(Counter::EventsLost).ok();
        lost.hash(&mut hasher);
        for (id, _) in self.lanes.iter() {
            if let Some(lane) = self.tables.lanes.get(u32::from(id.0)) {
                hash_counts(lane, &mut hasher);
            }
        }
        for index in self.accounts.elements() {
            if let Some(account) = self.tables.accounts.get(index) {
                account.slots.load().hash(&mut hasher);
            }
        }
        self.stillness.is_due(now, hasher.finish())
    }
}

fn hash_counts(lane: &Lane, hasher: &mut impl Hasher) {
    lane.slots.load().hash(hasher);
    lane.queued.load().hash(hasher);
    for count in lane.class_slots.iter().chain(&lane.waiting) {
        count.load().hash(hasher);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: Duration = Duration::from_secs(5);

    /// E4: what has moved is compared, and compared again until second looks have been had.
    #[test]
    fn what_moves_is_looked_at_and_what_is_still_is_left_alone_for_a_minute() {
        let mut stillness = Stillness::default();
        let mut now = Ns(0);
        let mut looks = |fingerprint, rounds: usize| {
            let looked = (0..rounds).filter(|_| {
                now = now + ROUND;
                stillness.is_due(now, fingerprint)
            });
            looked.count()
        };
        assert_eq!(looks(1, 10), 3);
        assert_eq!(looks(2, 4), 3);
        assert_eq!(looks(1, 1), 1);
        assert_eq!(looks(1, 12), 2);
        assert_eq!(looks(1, 120), 10);
    }

    #[test]
    fn every_round_with_news_is_looked_at() {
        let mut stillness = Stillness::default();
        let look = |stillness: &mut Stillness, round: u64| {
            stillness.is_due(Ns(0) + ROUND * round as u32, round)
        };
        assert!((1..100).all(|round| look(&mut stillness, round)));
    }
}
