//! What `shaper stats` shows.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use shaper_common::Class;

use super::{
    hour::{ClassHour, GatewayErrors, Hour, LaneHour},
    tally::News,
};
use crate::snapshot::{ByClass, seconds};

/// What somebody wants to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// `None`: all lanes.
    pub lane: Option<String>,
    /// How far back, counted from now. The hour in which that falls counts whole.
    pub since: Duration,
}

/// The document of `shaper stats --json`. Fields may be added; these stay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of the program that made it.
    pub version: String,
    pub generated_at: Timestamp,
    /// The start of the first hour that was asked for.
    pub since: Timestamp,
    /// Why the history is not complete, or will not survive a restart; absent when all is well.
    pub problem: Option<String>,
    /// By name; lanes in which nothing happened are left out.
    pub lanes: Vec<LaneReport>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaneReport {
    pub lane: String,
    /// The whole time.
    #[serde(flatten)]
    pub total: Figures,
    /// The hours in which something happened, the oldest first.
    pub hours: Vec<HourReport>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HourReport {
    /// Its start.
    pub hour: Timestamp,
    #[serde(flatten)]
    pub figures: Figures,
}

/// Counts of a lane, together and by class.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    pub total: Counts,
    pub priorities: ByClass<Counts>,
}

/// Counts of some time. Waits are in seconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Requests let through to the gateway.
    pub starts: u64,
    /// The most of them within any 60 s that ended in this time.
    pub peak_starts_60s: u64,
    /// Connections served and closed with no request unanswered.
    pub completed: u64,
    /// Clients that went away while their request was unanswered.
    pub abandoned: u64,
    /// Connections that the gateway refused, reset or did not answer.
    pub failed: u64,
    /// Clients that went away while they waited.
    pub left_queue: u64,
    pub queue_timeouts: u64,
    /// Connects refused by shaper.
    pub refusals: u64,
    /// All kinds together.
    pub gateway_errors: u64,
    /// Those by which the gateway asked for less although every configured rate was kept.
    pub gateway_errors_under_limit: u64,
    pub gateway_errors_by_kind: GatewayErrors,
    /// Mean wait of the starts; zero if there was none.
    #[serde(rename = "wait_avg_s", with = "seconds")]
    pub wait_avg: Duration,
    /// The wait that nine of ten starts stayed within; zero if there was none.
    #[serde(rename = "wait_p90_s", with = "seconds")]
    pub wait_p90: Duration,
}

impl Report {
    /// What is known about the hours from `first` on.
    pub fn new(now: Timestamp, first: Hour, found: News, problem: Option<String>) -> Self {
        let mut lanes: Vec<(String, Vec<(Hour, LaneHour)>)> = Vec::new();
        for ((hour, lane), counted) in found {
            match lanes.iter_mut().find(|(name, _)| *name == lane) {
                Some((_, hours)) => hours.push((hour, counted)),
                None => lanes.push((lane, vec![(hour, counted)])),
            }
        }
        lanes.sort_by(|(a, _), (b, _)| a.cmp(b));
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            generated_at: now,
            since: first.start(),
            problem,
            lanes: lanes.into_iter().map(LaneReport::from).collect(),
        }
    }
}

impl From<(String, Vec<(Hour, LaneHour)>)> for LaneReport {
    fn from((lane, hours): (String, Vec<(Hour, LaneHour)>)) -> Self {
        let mut total = LaneHour::default();
        for (_, hour) in &hours {
            total.merge(hour);
        }
        Self {
            lane,
            total: (&total).into(),
            hours: hours
                .iter()
                .map(|(hour, counted)| HourReport {
                    hour: hour.start(),
                    figures: counted.into(),
                })
                .collect(),
        }
    }
}

impl From<&LaneHour> for Figures {
    fn from(lane: &LaneHour) -> Self {
        Self {
            total: (&lane.total()).into(),
            priorities: ByClass::from_fn(|class: Class| lane.classes.get(class).into()),
        }
    }
}

impl From<&ClassHour> for Counts {
    fn from(counted: &ClassHour) -> Self {
        let ClassHour {
            starts,
            peak,
            waits: _,
            wait_total: _,
            ends,
            gateway_errors,
        } = counted;
        Self {
            starts: *starts,
            peak_starts_60s: *peak,
            completed: ends.completed,
            abandoned: ends.abandoned,
            failed: ends.failed,
            left_queue: ends.left_queue,
            queue_timeouts: ends.queue_timeout,
            refusals: ends.refused,
            gateway_errors: gateway_errors.total(),
            gateway_errors_under_limit: gateway_errors.throttled_under_limit,
            gateway_errors_by_kind: *gateway_errors,
            wait_avg: counted.wait_mean(),
            wait_p90: counted.wait_p90(),
        }
    }
}

impl Counts {
    /// Whether nothing happened.
    pub fn is_empty(&self) -> bool {
        *self == Self::from(&ClassHour::default())
    }
}

/// Fixed reports for the tests of everything that shows one.
#[cfg(test)]
pub(crate) mod samples {
    use super::*;
    use crate::{metrics::Outcome, policy::GatewayError};

    /// Two hours of one lane: a quiet one, and one with trouble.
    pub(crate) fn two_hours() -> Report {
        let first = Hour::at("2026-01-02T03:00:00Z".parse().unwrap());
        let mut quiet = LaneHour {
            peak: 3,
            ..LaneHour::default()
        };
        let interactive = quiet.classes.get_mut(Class::Interactive);
        interactive.starts = 3;
        interactive.peak = 3;
        interactive.ends.add(Outcome::Completed, 3);
        for _ in 0..3 {
            interactive.waits.add(Duration::ZERO);
        }
        let mut busy = quiet.clone();
        busy.peak = 15;
        let bulk = busy.classes.get_mut(Class::Bulk);
        (bulk.starts, bulk.peak) = (812, 13);
        bulk.wait_total = Duration::from_secs(812 * 38);
        for _ in 0..812 {
            bulk.waits.add(Duration::from_secs(38));
        }
        bulk.ends.add(Outcome::Completed, 790);
        bulk.ends.add(Outcome::QueueTimeout, 2);
        bulk.ends.add(Outcome::LeftQueue, 1);
        bulk.ends.add(Outcome::Refused, 120);
        for _ in 0..7 {
            bulk.gateway_errors.add(GatewayError::ThrottledUnderLimit);
        }
        bulk.gateway_errors.add(GatewayError::ServerError);
        let lane = || "reasoning".to_owned();
        let found = News::from([
            ((first, lane()), quiet),
            ((Hour(first.0 + 1), lane()), busy),
        ]);
        let now = "2026-01-02T04:05:06Z".parse().unwrap();
        Report::new(now, first, found, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// C11: the document of `stats --json`, which scripts rely on.
    #[test]
    fn the_document_has_the_published_shape() {
        let report = serde_json::to_value(samples::two_hours()).unwrap();
        let hour = &report["lanes"][0]["hours"][1];
        assert_eq!(report["since"], "2026-01-02T03:00:00Z");
        assert_eq!(report["problem"], json!(null));
        assert_eq!(report["lanes"][0]["lane"], "reasoning");
        assert_eq!(hour["hour"], "2026-01-02T04:00:00Z");
        assert_eq!(hour["total"]["starts"], 815);
        assert_eq!(hour["total"]["peak_starts_60s"], 15);
        let mut bulk = hour["priorities"]["bulk"].clone();
        let p90 = bulk["wait_p90_s"].take().as_f64().unwrap();
        assert!((p90 - 38.0).abs() < 1.5, "{p90}");
        assert_eq!(
            bulk,
            json!({
                "starts": 812, "peak_starts_60s": 13, "completed": 790, "abandoned": 0, "failed": 0, "left_queue": 1,
                "queue_timeouts": 2, "refusals": 120, "gateway_errors": 8, "gateway_errors_under_limit": 7,
                "gateway_errors_by_kind": {
                    "refused": 0, "unreachable": 0, "connect_timeout": 0, "reset": 0, "unanswered": 0, "throttled": 0,
                    "throttled_under_limit": 7, "server_error": 1
                },
                "wait_avg_s": 38.0, "wait_p90_s": null
            })
        );
    }

    #[test]
    fn what_is_written_is_read_back() {
        let text = serde_json::to_string(&samples::two_hours()).unwrap();
        let back: Report = serde_json::from_str(&text).unwrap();
        assert_eq!(serde_json::to_string(&back).unwrap(), text);
    }

    #[test]
    fn the_whole_time_is_all_hours_together() {
        let report = samples::two_hours();
        let total = &report.lanes[0].total;
        assert_eq!(total.total.starts, 818);
        assert_eq!(total.total.peak_starts_60s, 15);
        assert_eq!(total.priorities.interactive.starts, 6);
    }
}
