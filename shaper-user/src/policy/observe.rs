//! What a limit would have done: how much was in flight when each request started.
//!
//! A request that found *n* or more in flight would have waited under a limit of *n*. The profile keeps that for every
//! limit at once, so an operator who only observes can read a limit off it before enforcing one.

use std::fmt;

/// Requests in flight up to which starts are told apart.
const TOLD_APART: usize = 256;

/// Starts by the number of requests that each found in flight.
#[derive(Clone, PartialEq, Eq)]
pub struct StartProfile {
    /// The last element counts the starts that found `TOLD_APART` or more.
    found: Box<[u64; TOLD_APART + 1]>,
}

impl Default for StartProfile {
    fn default() -> Self {
        Self {
            found: Box::new([0; TOLD_APART + 1]),
        }
    }
}

impl fmt::Debug for StartProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = self.found.iter().enumerate().filter(|&(_, &n)| n > 0);
        f.debug_map().entries(found).finish()
    }
}

impl StartProfile {
    /// A request started and found `in_flight` others.
    pub(super) fn record(&mut self, in_flight: u32) {
        self.found[slot(in_flight)] += 1;
    }

    /// Takes back what [`record`](Self::record) counted.
    pub(super) fn take_back(&mut self, in_flight: u32) {
        self.found[slot(in_flight)] -= 1;
    }

    pub fn starts(&self) -> u64 {
        self.found.iter().sum()
    }

    /// Starts that would not have found a slot under this limit. Limits above 256 are answered as 256.
    pub fn would_have_waited(&self, limit: u32) -> u64 {
        self.found[slot(limit)..].iter().sum()
    }

    /// The smallest limit under which at most `share` of the starts would have waited, 0 ≤ share ≤ 1. `None`: there is no
    /// such limit up to 256.
    pub fn limit_for(&self, share: f64) -> Option<u32> {
        let allowed = self.starts() as f64 * share;
        (1..=TOLD_APART as u32).find(|&limit| self.would_have_waited(limit) as f64 <= allowed)
    }
}

fn slot(in_flight: u32) -> usize {
    (in_flight as usize).min(TOLD_APART)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A21: an observing lane tells what each limit would have done.
    #[test]
    fn a_limit_can_be_read_off_the_profile() {
        let mut profile = StartProfile::default();
        for in_flight in [0, 1, 2, 3, 0, 1, 2, 0, 1, 0] {
            profile.record(in_flight);
        }
        assert_eq!(profile.starts(), 10);
        let waited: Vec<_> = (1..=4).map(|l| profile.would_have_waited(l)).collect();
        assert_eq!(waited, [6, 3, 1, 0]);
        assert_eq!(profile.limit_for(0.1), Some(3));
        assert_eq!(profile.limit_for(0.0), Some(4));
    }

    #[test]
    fn more_than_can_be_told_apart_still_counts() {
        let mut profile = StartProfile::default();
        profile.record(100_000);
        assert_eq!(profile.would_have_waited(10), 1);
        assert_eq!(profile.would_have_waited(200_000), 1);
        assert_eq!(profile.limit_for(0.0), None);
        profile.take_back(100_000);
        assert_eq!(profile.starts(), 0);
    }
}
