//! Instants of the policy's clock, which is whatever its caller says it is.

use std::{
    ops::{Add, Sub},
    time::Duration,
};

/// A monotonic instant: nanoseconds since some fixed moment (for the controller, `CLOCK_MONOTONIC`'s).
///
/// Arithmetic saturates: a wait of "forever" ends at the last instant there is, and never wraps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ns(pub u64);

impl Ns {
    /// Time from `earlier` to `self`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Ns {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(whole_nanos(duration)))
    }
}

impl Sub<Duration> for Ns {
    type Output = Self;

    fn sub(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(whole_nanos(duration)))
    }
}

fn whole_nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_saturate_at_both_ends() {
        assert_eq!(Ns(5) + Duration::MAX, Ns(u64::MAX));
        assert_eq!(Ns(5) - Duration::from_secs(1), Ns(0));
        assert_eq!(Ns(5).since(Ns(9)), Duration::ZERO);
        assert_eq!(Ns(9).since(Ns(5)), Duration::from_nanos(4));
    }
}
