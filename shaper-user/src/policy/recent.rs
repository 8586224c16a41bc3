//! The last five minutes: waits, first bytes, what went wrong and the peak, in memory that does not grow with the load.
//!
//! Time is cut into slices of ten seconds, so that "five minutes" means 290 to 300 seconds.

use std::{collections::VecDeque, time::Duration};

use super::{GatewayError, Ns, WaitBins};

const SLICE: Duration = Duration::from_secs(10);
const SLICES: u64 = 30;

#[derive(Debug, Default)]
pub(super) struct Recent {
    slices: VecDeque<Slice>,
}

#[derive(Debug, Default)]
struct Slice {
    index: u64,
    waits: WaitBins,
    first_bytes: WaitBins,
    errors: [u32; GatewayError::COUNT],
    gave_up: u32,
    held: u32,
    timeouts: u32,
    refusals: u32,
    left: u32,
    peak: u32,
}

impl Recent {
    pub(super) fn waited(&mut self, now: Ns, wait: Duration) {
        self.slice(now).waits.add(wait);
    }

    /// Takes back a wait that was recorded a moment ago.
    pub(super) fn take_back(&mut self, now: Ns, wait: Duration) {
        self.slice(now).waits.take_back(wait);
    }

    /// The first byte of an answer came.
    pub(super) fn answered(&mut self, now: Ns, after: Duration) {
        self.slice(now).first_bytes.add(after);
    }

    /// A client went away before.
    pub(super) fn gave_up(&mut self, now: Ns) {
        self.slice(now).gave_up += 1;
    }

    pub(super) fn erred(&mut self, now: Ns, error: GatewayError) {
        self.slice(now).errors[error.index()] += 1;
    }

    /// Somebody did not find a slot at once.
    pub(super) fn held(&mut self, now: Ns) {
        self.slice(now).held += 1;
    }

    pub(super) fn timed_out(&mut self, now: Ns) {
        self.slice(now).timeouts += 1;
    }

    pub(super) fn refused(&mut self, now: Ns) {
        self.slice(now).refusals += 1;
    }

    /// A client went away while it waited, and did not come back.
    pub(super) fn left_queue(&mut self, now: Ns) {
        self.slice(now).left += 1;
    }

    pub(super) fn in_flight(&mut self, now: Ns, slots: u32) {
        let slice = self.slice(now);
        slice.peak = slice.peak.max(slots);
    }

    pub(super) fn holds(&self, now: Ns) -> u32 {
        self.current(now).map(|slice| slice.held).sum()
    }

    pub(super) fn timeouts(&self, now: Ns) -> u32 {
        self.current(now).map(|slice| slice.timeouts).sum()
    }

    pub(super) fn refusals(&self, now: Ns) -> u32 {
        self.current(now).map(|slice| slice.refusals).sum()
    }

    pub(super) fn left(&self, now: Ns) -> u32 {
        self.current(now).map(|slice| slice.left).sum()
    }

    pub(super) fn peak(&self, now: Ns) -> u32 {
        self.current(now).map(|slice| slice.peak).max().unwrap_or(0)
    }

    pub(super) fn give_ups(&self, now: Ns) -> u32 {
        self.current(now).map(|slice| slice.gave_up).sum()
    }

    /// In the order of [`GatewayError::ALL`].
    pub(super) fn errors(&self, now: Ns) -> [u32; GatewayError::COUNT] {
        let mut errors = [0; GatewayError::COUNT];
        for slice in self.current(now) {
            for (sum, count) in errors.iter_mut().zip(slice.errors) {
                *sum += count;
            }
        }
        errors
    }

    /// For each of `shares` (0 < share ≤ 1) the wait that this share of the starts did not exceed.
    pub(super) fn waits<const N: usize>(&self, now: Ns, shares: [f64; N]) -> [Option<Duration>; N] {
        self.quantiles(now, shares, |slice| &slice.waits)
    }

    /// For each of `shares` the time within which this share of the answers began.
    pub(super) fn first_bytes<const N: usize>(
        &self,
        now: Ns,
        shares: [f64; N],
    ) -> [Option<Duration>; N] {
        self.quantiles(now, shares, |slice| &slice.first_bytes)
    }

    fn quantiles<const N: usize>(
        &self,
        now: Ns,
        shares: [f64; N],
        of: impl Fn(&Slice) -> &WaitBins,
    ) -> [Option<Duration>; N] {
        let mut bins = WaitBins::default();
        for slice in self.current(now) {
            bins.merge(of(slice));
        }
        bins.quantiles(shares)
    }

    fn current(&self, now: Ns) -> impl Iterator<Item = &Slice> {
        let oldest = (index(now) + 1).saturating_sub(SLICES);
        self.slices
            .iter()
            .skip_while(move |slice| slice.index < oldest)
    }

    fn slice(&mut self, now: Ns) -> &mut Slice {
        let index = index(now);
        let oldest = (index + 1).saturating_sub(SLICES);
        while self
            .slices
            .front()
            .is_some_and(|slice| slice.index < oldest)
        {
            self.slices.pop_front();
        }
        if self.slices.back().is_none_or(|slice| slice.index < index) {
            self.slices.push_back(Slice {
                index,
                ..Slice::default()
            });
        }
        let last = self.slices.len() - 1;
        &mut self.slices[last]
    }
}

fn index(now: Ns) -> u64 {
    now.since(Ns::default()).as_secs() / SLICE.as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(secs: u64) -> Ns {
        Ns(secs * 1_000_000_000)
    }

    /// A16: p50 and p90 over five minutes.
    #[test]
    fn quantiles_cover_five_minutes_and_no_more() {
        let mut recent = Recent::default();
        recent.waited(at(0), Duration::from_secs(1000));
        for secs in 1..=100 {
            recent.waited(at(300 + secs), Duration::from_secs(secs));
        }
        let [p50, p90] = recent.waits(at(401), [0.5, 0.9]);
        for (quantile, exact) in [(p50, 50.0), (p90, 90.0)] {
            let secs = quantile.unwrap().as_secs_f64();
            assert!(
                (secs - exact).abs() < 0.04 * exact,
                "{secs} s, not {exact} s"
            );
        }
        assert_eq!(recent.waits(at(800), [0.5]), [None]);
    }

    #[test]
    fn counts_leave_after_five_minutes() {
        let mut recent = Recent::default();
        recent.held(at(4));
        recent.timed_out(at(5));
        recent.refused(at(200));
        recent.in_flight(at(200), 7);
        assert_eq!((recent.holds(at(299)), recent.holds(at(301))), (1, 0));
        assert_eq!((recent.timeouts(at(299)), recent.refusals(at(299))), (1, 1));
        assert_eq!((recent.timeouts(at(301)), recent.refusals(at(301))), (0, 1));
        assert_eq!((recent.peak(at(301)), recent.peak(at(501))), (7, 0));
    }

    #[test]
    fn memory_does_not_grow_with_the_load() {
        let mut recent = Recent::default();
        for i in 0..100_000u64 {
            recent.waited(at(i / 10), Duration::from_millis(i % 600_000));
        }
        assert!(recent.slices.len() as u64 <= SLICES);
    }
}
