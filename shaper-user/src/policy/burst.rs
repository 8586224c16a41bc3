//! A burst of failed connects: a gateway that is down or drops connections asks for less, too (C7).

use std::time::Duration;

use super::Ns;

/// Connects are counted for this long from the first failure on. Not judged at the failure itself: a client that finds
/// one of a name's addresses refused has its connection on the next a moment later, and that gateway is well.
const COUNTED: Duration = Duration::from_secs(2);
/// Failures that make a burst...
const FAILURES: u32 = 5;
/// ... if they are this many times the connects that were made meanwhile.
const RATIO: u32 = 2;

/// Counts connects from a failure on.
#[derive(Debug, Default)]
pub(super) struct Burst {
    since: Option<Ns>,
    failed: u32,
    made: u32,
}

impl Burst {
    pub(super) fn connected(&mut self) {
        self.made += u32::from(self.since.is_some());
    }

    pub(super) fn failed(&mut self, now: Ns) {
        self.since.get_or_insert(now);
        self.failed += 1;
    }

    /// When the count is over.
    pub(super) fn ends(&self) -> Option<Ns> {
        self.since.map(|since| since + COUNTED)
    }

    /// Ends a count that is over. `true`: it was a burst.
    pub(super) fn settle(&mut self, now: Ns) -> bool {
        if self.ends().is_none_or(|ends| ends > now) {
            return false;
        }
        let Self { failed, made, .. } = std::mem::take(self);
        failed >= FAILURES && failed > made * RATIO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Ns {
        Ns(ms * 1_000_000)
    }

    fn burst(failed: u32, made: u32) -> bool {
        let mut burst = Burst::default();
        for _ in 0..failed {
            burst.failed(at(10));
        }
        for _ in 0..made {
            burst.connected();
        }
        assert!(!burst.settle(at(2009)));
        let was = burst.settle(at(2010));
        assert_eq!(burst.ends(), None);
        was
    }

    /// C7: five failed connects and hardly one that is made are a burst.
    #[test]
    fn a_burst_is_many_failures_and_few_connections() {
        assert!(burst(5, 0));
        assert!(burst(5, 2));
        assert!(!burst(4, 0));
    }

    /// A name with an address that nobody listens on is no burst, however many clients try it.
    #[test]
    fn a_refused_address_beside_a_good_one_is_no_burst() {
        assert!(!burst(40, 40));
    }
}
