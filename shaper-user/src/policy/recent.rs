//! The last five minutes: waits, queue timeouts, refusals and the peak, in memory that does not grow with the load.
//!
//! Time is cut into slices of ten seconds, so that "five minutes" means 290 to 300 seconds. Waits are kept in bins of
//! about six per cent width; a quantile is the middle of its bin, so it is within about three per cent.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use super::Ns;

const SLICE: Duration = Duration::from_secs(10);
const SLICES: u64 = 30;

/// Bins for each doubling of the wait.
const BINS_PER_OCTAVE: u64 = 16;

#[derive(Debug, Default)]
pub(super) struct Recent {
    slices: VecDeque<Slice>,
}

#[derive(Debug, Default)]
struct Slice {
    index: u64,
    waits: BTreeMap<u16, u32>,
    held: u32,
    timeouts: u32,
    refusals: u32,
    peak: u32,
}

impl Recent {
    pub(super) fn waited(&mut self, now: Ns, wait: Duration) {
        *self.slice(now).waits.entry(bin(wait)).or_default() += 1;
    }

    /// Takes back a wait that was recorded a moment ago.
    pub(super) fn take_back(&mut self, now: Ns, wait: Duration) {
        if let Some(count) = self.slice(now).waits.get_mut(&bin(wait)) {
            *count = count.saturating_sub(1);
        }
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

    pub(super) fn peak(&self, now: Ns) -> u32 {
        self.current(now).map(|slice| slice.peak).max().unwrap_or(0)
    }

    /// For each of `shares` (0 < share ≤ 1) the wait that this share of the starts did not exceed.
    pub(super) fn quantiles<const N: usize>(
        &self,
        now: Ns,
        shares: [f64; N],
    ) -> [Option<Duration>; N] {
        let mut bins = BTreeMap::<u16, u64>::new();
        for (&bin, &count) in self.current(now).flat_map(|slice| &slice.waits) {
            *bins.entry(bin).or_default() += u64::from(count);
        }
        let total: u64 = bins.values().sum();
        shares.map(|share| {
            let rank = ((total as f64 * share).ceil() as u64).max(1);
            let mut seen = 0;
            bins.iter()
                .find(|&(_, &count)| {
                    seen += count;
                    seen >= rank
                })
                .map(|(&bin, _)| middle(bin))
        })
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

/// Milliseconds one by one up to 16, then 16 bins an octave.
fn bin(wait: Duration) -> u16 {
    let ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
    if ms < BINS_PER_OCTAVE {
        return ms as u16;
    }
    let octave = u64::from(ms.ilog2() - BINS_PER_OCTAVE.ilog2());
    // At most 16 + 59 * 16 + 15.
    (BINS_PER_OCTAVE * (octave + 1) + (ms >> octave) - BINS_PER_OCTAVE) as u16
}

fn middle(bin: u16) -> Duration {
    let bin = u64::from(bin);
    if bin < BINS_PER_OCTAVE {
        return Duration::from_millis(bin);
    }
    let octave = bin / BINS_PER_OCTAVE - 1;
    let low = (bin % BINS_PER_OCTAVE + BINS_PER_OCTAVE) << octave;
    Duration::from_millis(low + (1 << octave) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn at(secs: u64) -> Ns {
        Ns(secs * 1_000_000_000)
    }

    proptest! {
        /// A16: what a bin gives back is within four per cent of what it was given.
        #[test]
        fn a_bin_keeps_a_wait_to_a_few_per_cent(ms in 0u64..10_000_000) {
            let back = middle(bin(Duration::from_millis(ms))).as_millis() as f64;
            prop_assert!((back - ms as f64).abs() <= 0.04 * ms as f64, "{ms} ms became {back} ms");
        }
    }

    /// A16: p50 and p90 over five minutes.
    #[test]
    fn quantiles_cover_five_minutes_and_no_more() {
        let mut recent = Recent::default();
        recent.waited(at(0), Duration::from_secs(1000));
        for secs in 1..=100 {
            recent.waited(at(300 + secs), Duration::from_secs(secs));
        }
        let [p50, p90] = recent.quantiles(at(401), [0.5, 0.9]);
        for (quantile, exact) in [(p50, 50.0), (p90, 90.0)] {
            let secs = quantile.unwrap().as_secs_f64();
            assert!(
                (secs - exact).abs() < 0.04 * exact,
                "{secs} s, not {exact} s"
            );
        }
        assert_eq!(recent.quantiles(at(800), [0.5]), [None]);
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
