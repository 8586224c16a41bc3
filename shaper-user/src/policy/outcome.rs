//! How a request's wait ended. Every waiter ends in exactly one of these.

use std::time::Duration;

use shaper_common::{CLASS_COUNT, Class};

use super::{AccountId, ClientId, ConnHandle, LaneId, Ns};

/// Why a connect was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Refusal {
    /// The lane had `max_queue` waiters.
    QueueFull,
}

impl Refusal {
    /// The name in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// Got a slot, with or without a wait.
    Admitted,
    Refused(Refusal),
    /// Waited as long as its class may.
    Expired,
    /// The client went away and did not come back within `ticket_grace`.
    Gone,
    /// Went on without being admitted: its lane was removed, or a response forced its slot.
    Bypassed,
}

impl Outcome {
    pub const COUNT: usize = 5;

    pub const ALL: [Self; Self::COUNT] = [
        Self::Admitted,
        Self::Refused(Refusal::QueueFull),
        Self::Expired,
        Self::Gone,
        Self::Bypassed,
    ];

    /// The name in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Refused(_) => "refused",
            Self::Expired => "expired",
            Self::Gone => "gone",
            Self::Bypassed => "bypassed",
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::Admitted => 0,
            Self::Refused(Refusal::QueueFull) => 1,
            Self::Expired => 2,
            Self::Gone => 3,
            Self::Bypassed => 4,
        }
    }
}

/// The end of one wait, for histograms, logs and traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    pub lane: LaneId,
    pub conn: ConnHandle,
    pub class: Class,
    pub account: Option<AccountId>,
    pub client: ClientId,
    pub outcome: Outcome,
    /// When it ended; of a start that the kernel made, when it made it, though the news came later.
    pub at: Ns,
    /// From the ticket's arrival to its end; zero for a connect that found a credit.
    pub wait: Duration,
}

/// Ends since the lane was made, by class and outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters([[u64; Outcome::COUNT]; CLASS_COUNT]);

impl Counters {
    pub fn get(&self, class: Class, outcome: Outcome) -> u64 {
        self.0[class.index()][outcome.index()]
    }

    /// All classes together.
    pub fn total(&self, outcome: Outcome) -> u64 {
        self.0.iter().map(|counts| counts[outcome.index()]).sum()
    }

    pub(super) fn count(&mut self, class: Class, outcome: Outcome) {
        self.0[class.index()][outcome.index()] += 1;
    }

    /// Takes back what [`count`](Self::count) counted.
    pub(super) fn take_back(&mut self, class: Class, outcome: Outcome) {
        self.0[class.index()][outcome.index()] -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_has_its_own_count() {
        let mut counters = Counters::default();
        for outcome in Outcome::ALL {
            counters.count(Class::Bulk, outcome);
        }
        for outcome in Outcome::ALL {
            assert_eq!(counters.get(Class::Bulk, outcome), 1, "{outcome:?}");
            assert_eq!(counters.total(outcome), 1, "{outcome:?}");
        }
    }
}
