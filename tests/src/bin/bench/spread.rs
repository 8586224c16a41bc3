//! What repeated measurements say together.

use serde::{Deserialize, Serialize};

/// A median and the quartiles around it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub median: f64,
    /// A quarter of the measurements are below this.
    pub low: f64,
    /// A quarter of the measurements are above this.
    pub high: f64,
}

impl Spread {
    /// # Panics
    /// If there are no measurements.
    pub fn of(measurements: impl IntoIterator<Item = f64>) -> Self {
        let sorted = sorted(measurements);
        Self {
            median: quantile(&sorted, 0.5),
            low: quantile(&sorted, 0.25),
            high: quantile(&sorted, 0.75),
        }
    }
}

/// Measurements in ascending order, for [`quantile`].
pub fn sorted(measurements: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut sorted: Vec<f64> = measurements.into_iter().collect();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

/// The smallest measurement that a `share` of all does not exceed (nearest rank).
///
/// # Panics
/// If there are no measurements.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_measurements_of_the_nearest_rank() {
        let hundred = sorted((1..=100).rev().map(f64::from));
        assert_eq!(quantile(&hundred, 0.5), 50.0);
        assert_eq!(quantile(&hundred, 0.99), 99.0);
        assert_eq!(quantile(&hundred, 0.999), 100.0);
        assert_eq!(quantile(&[7.0], 0.25), 7.0);
        let spread = Spread::of([3.0, 1.0, 2.0, 4.0]);
        assert_eq!((spread.low, spread.median, spread.high), (1.0, 2.0, 3.0));
    }
}
