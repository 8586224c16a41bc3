//! What is kept of one lane and hour.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use shaper_common::Class;

use crate::{
    metrics::Outcome,
    policy::{Fault, GatewayError, WaitBins},
    snapshot::ByClass,
};

const SECONDS: u64 = 3600;

/// An hour of UTC, counted since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hour(pub u32);

impl Hour {
    /// The hour of an instant given by the time since 1970.
    pub fn of(since_1970: Duration) -> Self {
        Self(u32::try_from(since_1970.as_secs() / SECONDS).unwrap_or(u32::MAX))
    }

    /// The hour of a wall-clock time; the first one for times before 1970.
    pub fn at(time: Timestamp) -> Self {
        Self::of(Duration::try_from(time.duration_since(Timestamp::UNIX_EPOCH)).unwrap_or_default())
    }

    /// Its first moment; the last one that there is a name for, if it is beyond that.
    pub fn start(self) -> Timestamp {
        let seconds = u64::from(self.0) * SECONDS;
        Timestamp::from_second(seconds.cast_signed()).unwrap_or(Timestamp::MAX)
    }

    /// The hour `count` hours before.
    pub fn before(self, count: u64) -> Self {
        Self(
            self.0
                .saturating_sub(u32::try_from(count).unwrap_or(u32::MAX)),
        )
    }
}

/// One lane's hour, or what is new of it: two of them add up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LaneHour {
    /// The most starts, of all classes, in 60 s that ended within the hour.
    pub peak: u64,
    pub classes: ByClass<ClassHour>,
}

/// One class in one lane and hour.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ClassHour {
    pub starts: u64,
    /// The most starts in 60 s that ended within the hour.
    pub peak: u64,
    /// Waits of the starts, those that did not wait included.
    pub waits: WaitBins,
    pub wait_total: Duration,
    pub ends: Ends,
    pub gateway_errors: GatewayErrors,
}

/// How connections ended, as in `shaper_connections_total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ends {
    pub completed: u64,
    pub abandoned: u64,
    pub failed: u64,
    pub left_queue: u64,
    pub queue_timeout: u64,
    pub refused: u64,
}

/// What went wrong at the gateway, as in `shaper_gateway_errors_total`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GatewayErrors {
    pub refused: u64,
    pub unreachable: u64,
    pub connect_timeout: u64,
    pub reset: u64,
    pub unanswered: u64,
    pub throttled: u64,
    pub throttled_under_limit: u64,
    pub server_error: u64,
}

/// Adds to a count, which in a file that was changed by hand is as large as anybody likes.
fn add(count: &mut u64, more: u64) {
    *count = count.saturating_add(more);
}

impl LaneHour {
    /// Adds what is new.
    pub fn merge(&mut self, new: &Self) {
        self.peak = self.peak.max(new.peak);
        for class in Class::ALL {
            self.classes.get_mut(class).merge(new.classes.get(class));
        }
    }

    /// All classes together.
    pub fn total(&self) -> ClassHour {
        let mut total = ClassHour::default();
        for class in Class::ALL {
            total.merge(self.classes.get(class));
        }
        total.peak = self.peak;
        total
    }
}

impl ClassHour {
    /// Adds what is new.
    pub fn merge(&mut self, new: &Self) {
        add(&mut self.starts, new.starts);
        self.peak = self.peak.max(new.peak);
        self.waits.merge(&new.waits);
        self.wait_total = self.wait_total.saturating_add(new.wait_total);
        self.ends.merge(&new.ends);
        self.gateway_errors.merge(&new.gateway_errors);
    }

    /// Whether nothing happened.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The mean wait of the starts; zero if there was none.
    pub fn wait_mean(&self) -> Duration {
        let mean = self.wait_total.as_nanos() / u128::from(self.starts.max(1));
        Duration::from_nanos(u64::try_from(mean).unwrap_or(u64::MAX))
    }

    /// The wait that nine of ten starts stayed within; zero if there was none.
    pub fn wait_p90(&self) -> Duration {
        let [p90] = self.waits.quantiles([0.9]);
        p90.unwrap_or_default()
    }
}

impl Ends {
    pub fn add(&mut self, outcome: Outcome, count: u64) {
        *match outcome {
            Outcome::Completed => &mut self.completed,
            Outcome::Abandoned => &mut self.abandoned,
            Outcome::Failed => &mut self.failed,
            Outcome::LeftQueue => &mut self.left_queue,
            Outcome::QueueTimeout => &mut self.queue_timeout,
            Outcome::Refused => &mut self.refused,
        } += count;
    }

    fn merge(&mut self, new: &Self) {
        add(&mut self.completed, new.completed);
        add(&mut self.abandoned, new.abandoned);
        add(&mut self.failed, new.failed);
        add(&mut self.left_queue, new.left_queue);
        add(&mut self.queue_timeout, new.queue_timeout);
        add(&mut self.refused, new.refused);
    }
}

impl GatewayErrors {
    pub fn add(&mut self, error: GatewayError) {
        *match error {
            GatewayError::Connection(Fault::Refused) => &mut self.refused,
            GatewayError::Connection(Fault::Unreachable) => &mut self.unreachable,
            GatewayError::Connection(Fault::ConnectTimeout) => &mut self.connect_timeout,
            GatewayError::Connection(Fault::Reset) => &mut self.reset,
            GatewayError::Connection(Fault::Unanswered) => &mut self.unanswered,
            GatewayError::Throttled => &mut self.throttled,
            GatewayError::ThrottledUnderLimit => &mut self.throttled_under_limit,
            GatewayError::ServerError => &mut self.server_error,
        } += 1;
    }

    pub fn total(&self) -> u64 {
        [
            self.refused,
            self.unreachable,
            self.connect_timeout,
            self.reset,
            self.unanswered,
            self.throttled,
            self.throttled_under_limit,
            self.server_error,
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }

    fn merge(&mut self, new: &Self) {
        add(&mut self.refused, new.refused);
        add(&mut self.unreachable, new.unreachable);
        add(&mut self.connect_timeout, new.connect_timeout);
        add(&mut self.reset, new.reset);
        add(&mut self.unanswered, new.unanswered);
        add(&mut self.throttled, new.throttled);
        add(&mut self.throttled_under_limit, new.throttled_under_limit);
        add(&mut self.server_error, new.server_error);
    }
}
