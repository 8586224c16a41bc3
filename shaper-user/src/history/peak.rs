//! The most starts within any 60 s, exact to the millisecond, in memory that does not grow with the load.

use std::{collections::VecDeque, time::Duration};

use crate::policy::Ns;

/// The length of the window.
pub const WINDOW: Duration = Duration::from_secs(60);

/// News of a start may come this late and still counts at its own time; what comes later counts as if it came now so
/// late.
const LATENESS: Duration = Duration::from_secs(5);

/// The starts of the last minute and a bit, by the millisecond: at most one entry for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeakWindow {
    starts: VecDeque<Start>,
    /// The first entry within a window of the last one.
    first: usize,
    /// Starts from there on.
    count: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Start {
    ms: u64,
    count: u32,
}

impl PeakWindow {
    /// Counts one start and tells `peak` of every window that grew by it: the starts in the 60 s that end with one, and
    /// when that was.
    pub fn count(&mut self, at: Ns, mut peak: impl FnMut(Ns, u64)) {
        let newest = self.starts.back().map_or(0, |start| start.ms);
        let ms = millis(at).max(newest.saturating_sub(LATENESS.as_millis() as u64));
        let index = self.starts.partition_point(|start| start.ms < ms);
        match self.starts.get_mut(index) {
            Some(start) if start.ms == ms => start.count = start.count.saturating_add(1),
            _ => self.starts.insert(index, Start { ms, count: 1 }),
        }
        self.count += 1;
        self.forget_old();
        // From the last window back to the one that ends with this start: all of them have it.
        let (mut first, mut count) = (self.first, self.count);
        for end in (0..self.starts.len()).rev() {
            let Start { ms: ends, .. } = self.starts[end];
            while first > 0 && within(self.starts[first - 1].ms, ends) {
                first -= 1;
                count += u64::from(self.starts[first].count);
            }
            peak(instant(ends), count);
            if ends <= ms {
                break;
            }
            count -= u64::from(self.starts[end].count);
        }
    }

    /// Counts starts from before all that are known, as [`entries`](Self::entries) gave them.
    pub fn resume(&mut self, entries: &[(Ns, u32)]) {
        let oldest = self.starts.front().map_or(u64::MAX, |start| start.ms);
        let mut starts: VecDeque<Start> = entries
            .iter()
            .map(|&(at, count)| Start {
                ms: millis(at),
                count,
            })
            .filter(|start| start.ms < oldest)
            .collect();
        starts.make_contiguous().sort_by_key(|start| start.ms);
        starts.extend(&self.starts);
        *self = Self {
            count: starts.iter().map(|start| u64::from(start.count)).sum(),
            starts,
            first: 0,
        };
        self.forget_old();
    }

    /// The starts that later windows may have: when, and how many.
    pub fn entries(&self) -> impl Iterator<Item = (Ns, u32)> + '_ {
        self.starts
            .iter()
            .map(|start| (instant(start.ms), start.count))
    }

    /// Whether no window that ends at `now` or later has a start in it.
    pub fn is_over(&self, now: Ns) -> bool {
        self.starts
            .back()
            .is_none_or(|newest| !within(newest.ms, millis(now)))
    }

    /// Moves the last window up to the last start, and drops what no window can have any more.
    fn forget_old(&mut self) {
        let Some(&Start { ms: newest, .. }) = self.starts.back() else {
            return;
        };
        while let Some(start) = self.starts.get(self.first)
            && !within(start.ms, newest)
        {
            self.count -= u64::from(start.count);
            self.first += 1;
        }
        // A late start may still be told of, and its window reaches further back.
        let oldest = newest.saturating_sub(LATENESS.as_millis() as u64);
        while let Some(start) = self.starts.front()
            && !within(start.ms, oldest)
        {
            self.starts.pop_front();
            self.first -= 1;
        }
    }
}

/// Whether a start is in the window that ends, inclusively, at `end`.
fn within(start: u64, end: u64) -> bool {
    start + WINDOW.as_millis() as u64 > end
}

fn millis(at: Ns) -> u64 {
    at.0 / 1_000_000
}

fn instant(ms: u64) -> Ns {
    Ns(ms * 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn ms(ms: u64) -> Ns {
        Ns(ms * 1_000_000)
    }

    /// The highest count that counting these starts in this order tells of.
    fn peak(starts: impl IntoIterator<Item = u64>) -> u64 {
        let mut window = PeakWindow::default();
        let mut peak = 0;
        for start in starts {
            window.count(ms(start), |_, count| peak = peak.max(count));
        }
        peak
    }

    #[test]
    fn a_window_has_its_end_and_not_its_beginning() {
        assert_eq!(peak([1000, 60_999]), 2);
        assert_eq!(peak([1000, 61_000]), 1);
        assert_eq!(peak([5, 5, 5]), 3);
    }

    #[test]
    fn a_late_start_counts_in_every_window_that_has_it() {
        let mut window = PeakWindow::default();
        for start in [0, 30_000, 61_000, 62_000] {
            window.count(ms(start), |_, _| ());
        }
        let mut told = Vec::new();
        window.count(ms(60_500), |end, count| told.push((end, count)));
        // The last two begin after 0, the one that ends at 60.5 s does too.
        assert_eq!(told, [(ms(62_000), 4), (ms(61_000), 3), (ms(60_500), 2)]);
    }

    proptest! {
        /// C11: exact, whatever the order within the lateness that is allowed for.
        #[test]
        fn the_peak_is_that_of_counting_every_window(
            starts in prop::collection::vec((0u64..200_000, 0u64..2_400), 1..200)
        ) {
            // Each is told some time after it happened, and they are told in the order of the news.
            let mut news: Vec<(u64, u64)> =
                starts.iter().map(|&(start, delay)| (start + delay, start)).collect();
            news.sort_unstable();
            let told = news.iter().map(|&(_, start)| start);
            let all: Vec<u64> = told.clone().collect();
            let exact = all
                .iter()
                .map(|&end| all.iter().filter(|&&s| s <= end && s + 60_000 > end).count() as u64)
                .max()
                .unwrap_or(0);
            prop_assert_eq!(peak(told), exact);
        }

        /// C11: a restart in between changes nothing.
        #[test]
        fn a_window_goes_on_from_its_entries(
            mut starts in prop::collection::vec(0u64..200_000, 2..200),
            cut in any::<prop::sample::Index>()
        ) {
            starts.sort_unstable();
            let cut = cut.index(starts.len());
            let mut highest = 0;
            let mut before = PeakWindow::default();
            for &start in &starts[..cut] {
                before.count(ms(start), |_, count| highest = highest.max(count));
            }
            let entries: Vec<_> = before.entries().collect();
            let mut after = PeakWindow::default();
            after.resume(&entries);
            for &start in &starts[cut..] {
                after.count(ms(start), |_, count| highest = highest.max(count));
            }
            prop_assert_eq!(highest, peak(starts.iter().copied()));
        }
    }

    #[test]
    fn memory_does_not_grow_with_the_load() {
        let mut window = PeakWindow::default();
        for start in 0..200_000 {
            window.count(ms(start / 2), |_, _| ());
        }
        assert!(window.starts.len() <= 65_001, "{}", window.starts.len());
        assert_eq!(window.count, 120_000);
    }
}
