//! Do a gateway's connects and answers fail, more often than not?

use std::{collections::VecDeque, time::Duration};

use super::Ns;

/// How far back it is looked.
const MEMORY: Duration = Duration::from_secs(30);
/// Outcomes remembered; in a busy lane these are the last of `MEMORY`.
const REMEMBERED: usize = 256;
/// Failures below which nothing is said.
const ENOUGH: usize = 3;

/// What can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Connect,
    Request,
}

/// More failures than successes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failing {
    pub step: Step,
    /// So many of...
    pub failed: u32,
    /// ... the latest so many.
    pub of: u32,
}

/// The latest outcomes of one kind.
#[derive(Debug)]
pub(super) struct Outcomes {
    step: Step,
    latest: VecDeque<(Ns, Outcome)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Succeeded,
    Failed,
}

impl Outcomes {
    pub(super) fn of(step: Step) -> Self {
        Self {
            step,
            latest: VecDeque::new(),
        }
    }

    pub(super) fn succeeded(&mut self, now: Ns) {
        self.take(now, Outcome::Succeeded);
    }

    pub(super) fn failed(&mut self, now: Ns) {
        self.take(now, Outcome::Failed);
    }

    /// What was taken for a success has turned out to be a failure.
    pub(super) fn failed_after_all(&mut self, now: Ns) {
        match self
            .latest
            .iter_mut()
            .rev()
            .find(|(_, o)| *o == Outcome::Succeeded)
        {
            Some((_, outcome)) => *outcome = Outcome::Failed,
            None => self.failed(now),
        }
    }

    /// Whether more fail than succeed.
    pub(super) fn failing(&self, now: Ns) -> Option<Failing> {
        let fresh = self.latest.iter().filter(|(at, _)| now.since(*at) < MEMORY);
        let (mut of, mut failed) = (0, 0);
        for (_, outcome) in fresh {
            of += 1;
            failed += usize::from(*outcome == Outcome::Failed);
        }
        (failed >= ENOUGH && failed * 2 > of).then_some(Failing {
            step: self.step,
            failed: failed as u32,
            of: of as u32,
        })
    }

    fn take(&mut self, now: Ns, outcome: Outcome) {
        self.latest.push_back((now, outcome));
        while self.latest.len() > REMEMBERED
            || self
                .latest
                .front()
                .is_some_and(|(at, _)| now.since(*at) >= MEMORY)
        {
            self.latest.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Ns {
        Ns(seconds * 1_000_000_000)
    }

    /// A18: a gateway fails when most of what it is asked for fails, and not before three have.
    #[test]
    fn more_failures_than_successes_are_failing() {
        let mut outcomes = Outcomes::of(Step::Request);
        outcomes.failed(at(1));
        outcomes.failed(at(1));
        assert_eq!(outcomes.failing(at(1)), None);
        outcomes.succeeded(at(2));
        outcomes.failed_after_all(at(2));
        let failing = Failing {
            step: Step::Request,
            failed: 3,
            of: 3,
        };
        assert_eq!(outcomes.failing(at(2)), Some(failing));
        for _ in 0..3 {
            outcomes.succeeded(at(3));
        }
        assert_eq!(outcomes.failing(at(3)), None);
    }

    #[test]
    fn failures_are_forgotten() {
        let mut outcomes = Outcomes::of(Step::Connect);
        for _ in 0..1000 {
            outcomes.failed(at(1));
        }
        assert!(outcomes.failing(at(30)).is_some());
        assert_eq!(outcomes.failing(at(31)), None);
        assert!(outcomes.latest.len() <= REMEMBERED);
    }
}
