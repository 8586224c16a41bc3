//! Waits in memory that does not grow with their number: a count for each bin of about six per cent width.
//!
//! A quantile is the middle of its bin, so it is within about three per cent.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

/// Bins for each doubling of the wait.
const BINS_PER_OCTAVE: u64 = 16;

/// How many waits fell into each bin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct WaitBins(BTreeMap<u16, u32>);

impl WaitBins {
    pub fn add(&mut self, wait: Duration) {
        *self.0.entry(bin(wait)).or_default() += 1;
    }

    /// Takes back a wait that was added before.
    pub fn take_back(&mut self, wait: Duration) {
        if let Some(count) = self.0.get_mut(&bin(wait)) {
            *count = count.saturating_sub(1);
        }
    }

    /// Adds all of another's.
    pub fn merge(&mut self, other: &Self) {
        for (&bin, &count) in &other.0 {
            let sum = self.0.entry(bin).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    /// For each of `shares` (0 < share ≤ 1) the wait that this share of all did not exceed; `None` if there is none.
    pub fn quantiles<const N: usize>(&self, shares: [f64; N]) -> [Option<Duration>; N] {
        let total: u64 = self.0.values().copied().map(u64::from).sum();
        shares.map(|share| {
            let rank = ((total as f64 * share).ceil() as u64).max(1);
            let mut seen = 0;
            self.0
                .iter()
                .find(|&(_, &count)| {
                    seen += u64::from(count);
                    seen >= rank
                })
                .map(|(&bin, _)| middle(bin))
        })
    }
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
    // What `bin` gives stays below this; a file that was changed by hand need not.
    let octave = (bin / BINS_PER_OCTAVE - 1).min(59);
    let low = (bin % BINS_PER_OCTAVE + BINS_PER_OCTAVE) << octave;
    Duration::from_millis(low + (1 << octave) / 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// A16: what a bin gives back is within four per cent of what it was given.
        #[test]
        fn a_bin_keeps_a_wait_to_a_few_per_cent(ms in 0u64..10_000_000) {
            let back = middle(bin(Duration::from_millis(ms))).as_millis() as f64;
            prop_assert!((back - ms as f64).abs() <= 0.04 * ms as f64, "{ms} ms became {back} ms");
        }

        /// Whatever the length or the bin, there is an answer.
        #[test]
        fn no_wait_and_no_bin_is_too_large(ms in any::<u64>(), any_bin in any::<u16>()) {
            middle(bin(Duration::from_millis(ms)));
            middle(any_bin);
        }
    }

    #[test]
    fn merged_bins_are_those_of_all_waits() {
        let (mut one, mut other, mut all) = (
            WaitBins::default(),
            WaitBins::default(),
            WaitBins::default(),
        );
        for ms in 0..1000 {
            let wait = Duration::from_millis(ms);
            if ms % 3 == 0 { &mut one } else { &mut other }.add(wait);
            all.add(wait);
        }
        one.merge(&other);
        assert_eq!(one, all);
    }
}
