//! One clock for the gateway, the clients and the test: `CLOCK_MONOTONIC`, comparable across processes.

use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use serde::Deserialize;

/// A reading of `CLOCK_MONOTONIC`, nanoseconds since boot. Unlike [`Instant`] it can be handed from one process
/// to another.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd)]
#[serde(from = "u64")]
pub struct Moment(Duration);

impl Moment {
    pub fn now() -> Self {
        let reading =
            clock_gettime(ClockId::CLOCK_MONOTONIC).expect("CLOCK_MONOTONIC exists on every Linux");
        Self(Duration::from(reading))
    }

    /// The time from `earlier` to `self`; zero if `earlier` is the later of the two.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// Nanoseconds since boot, the form in which a moment crosses a pipe.
    pub fn as_nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).expect("584 years of uptime")
    }
}

impl From<u64> for Moment {
    /// From nanoseconds since boot.
    fn from(nanos: u64) -> Self {
        Self(Duration::from_nanos(nanos))
    }
}

/// Asks `probe` every few milliseconds until it answers or `timeout` is over.
pub fn poll_until<T>(timeout: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
    const STEP: Duration = Duration::from_millis(5);
    let deadline = Instant::now() + timeout;
    loop {
        if let Some(answer) = probe() {
            return Some(answer);
        }
        if Instant::now() >= deadline {
            return None;
        }
        sleep(STEP);
    }
}

/// The value in the middle, the upper one of two.
///
/// # Panics
/// If there are no samples.
pub fn median(samples: &[Duration]) -> Duration {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}
