//! What a simulation found.

use std::{collections::BTreeMap, time::Duration};

use serde::{Serialize, Serializer};
use shaper_common::{CLASS_COUNT, Class};

use super::workload::Workload;
use crate::{
    config::LaneConfig,
    policy::{Ended, LaneId, Ns, Outcome},
};

/// All lanes that had requests.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// From the first arrival to the end of the last request.
    #[serde(rename = "span_s", serialize_with = "seconds")]
    pub span: Duration,
    pub requests: u64,
    /// Requests without a service time, for which the mean of their lane stood in.
    pub assumed_service_times: u64,
    /// Requests left out because the configuration does not have their lane.
    pub unknown_lanes: BTreeMap<String, u64>,
    /// Lines of the trace left out because they end before their record does.
    pub cut_lines: u64,
    /// The number of the first of these, from 1.
    pub first_cut_line: Option<u64>,
    pub lanes: Vec<LaneReport>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaneReport {
    pub lane: String,
    /// 0: there is none, so nobody waits.
    pub limit: u32,
    /// Whether the configuration has the limit kept. The simulation keeps it in any case.
    pub enforce: bool,
    /// The most requests in flight at once.
    pub peak_inflight: u32,
    /// Mean requests in flight.
    pub mean_inflight: f64,
    /// Share of the slots in use, 0 to 1, over the whole span; `None` without a limit.
    pub utilisation: Option<f64>,
    /// The classes that had requests, the most urgent first.
    pub classes: Vec<ClassReport>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassReport {
    #[serde(serialize_with = "class_name")]
    pub priority: Class,
    pub arrivals: u64,
    pub served: u64,
    pub refused: u64,
    /// Ended by the queue timeout.
    pub timeouts: u64,
    /// Left by their client, after the time that their client had waited in the trace.
    pub gone: u64,
    /// Of those that were served, those that did not wait included.
    #[serde(flatten)]
    pub waits: Waits,
}

/// Waits, by the nearest rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Waits {
    #[serde(rename = "wait_p50_s", serialize_with = "seconds")]
    pub p50: Duration,
    #[serde(rename = "wait_p90_s", serialize_with = "seconds")]
    pub p90: Duration,
    #[serde(rename = "wait_max_s", serialize_with = "seconds")]
    pub max: Duration,
}

impl Waits {
    fn of(mut waits: Vec<Duration>) -> Self {
        waits.sort_unstable();
        let rank = |per_cent: usize| {
            let rank = (waits.len() * per_cent).div_ceil(100);
            waits
                .get(rank.saturating_sub(1))
                .copied()
                .unwrap_or_default()
        };
        Self {
            p50: rank(50),
            p90: rank(90),
            max: rank(100),
        }
    }
}

/// Counts while the simulation runs.
#[derive(Debug)]
pub(super) struct Meter {
    start: Ns,
    lanes: Vec<LaneMeter>,
}

#[derive(Clone, Debug, Default)]
struct LaneMeter {
    peak: u32,
    /// Slot time used.
    busy: Duration,
    classes: [ClassMeter; CLASS_COUNT],
}

#[derive(Clone, Debug, Default)]
struct ClassMeter {
    arrivals: u64,
    refused: u64,
    timeouts: u64,
    gone: u64,
    /// Of those that were served.
    waits: Vec<Duration>,
}

impl Meter {
    pub(super) fn new(start: Ns, lanes: usize) -> Self {
        Self {
            start,
            lanes: vec![LaneMeter::default(); lanes],
        }
    }

    pub(super) fn arrived(&mut self, lane: LaneId, class: Class) {
        self.class(lane, class).arrivals += 1;
    }

    /// A request has taken a slot, the last of `slots`, for `service`.
    pub(super) fn began(&mut self, lane: LaneId, slots: u32, service: Duration) {
        let lane = self.lane(lane);
        lane.peak = lane.peak.max(slots);
        lane.busy += service;
    }

    pub(super) fn refused(&mut self, lane: LaneId, class: Class) {
        self.class(lane, class).refused += 1;
    }

    pub(super) fn ended(&mut self, ended: &Ended) {
        let class = self.class(ended.lane, ended.class);
        match ended.outcome {
            Outcome::Admitted => class.waits.push(ended.wait),
            Outcome::Expired => class.timeouts += 1,
            Outcome::Gone => class.gone += 1,
            // Counted when it happens, or not a thing that happens here.
            Outcome::Refused(_) | Outcome::Bypassed => {}
        }
    }

    pub(super) fn into_report(self, end: Ns, workload: &Workload, lanes: &[LaneConfig]) -> Report {
        let span = end.since(self.start);
        Report {
            span,
            requests: workload.arrivals.len() as u64,
            assumed_service_times: workload.assumed,
            unknown_lanes: workload.unknown.clone(),
            cut_lines: workload.cut_lines,
            first_cut_line: workload.first_cut_line,
            lanes: lanes
                .iter()
                .zip(self.lanes)
                .filter_map(|(config, meter)| meter.into_report(config, span))
                .collect(),
        }
    }

    fn lane(&mut self, lane: LaneId) -> &mut LaneMeter {
        &mut self.lanes[usize::from(lane.0)]
    }

    fn class(&mut self, lane: LaneId, class: Class) -> &mut ClassMeter {
        &mut self.lane(lane).classes[class.index()]
    }
}

impl LaneMeter {
    /// `None`: nobody came.
    fn into_report(self, config: &LaneConfig, span: Duration) -> Option<LaneReport> {
        let limit = config.rules.max_inflight;
        // A trace of one instant has no rates.
        let mean_inflight = if span.is_zero() {
            0.0
        } else {
            self.busy.as_secs_f64() / span.as_secs_f64()
        };
        let classes: Vec<_> = Class::ALL
            .into_iter()
            .zip(self.classes)
            .filter(|(_, meter)| meter.arrivals > 0)
            .map(|(class, meter)| meter.into_report(class))
            .collect();
        (!classes.is_empty()).then(|| LaneReport {
            lane: config.name.clone(),
            limit,
            enforce: config.rules.enforce,
            peak_inflight: self.peak,
            mean_inflight,
            utilisation: (limit > 0).then(|| mean_inflight / f64::from(limit)),
            classes,
        })
    }
}

impl ClassMeter {
    fn into_report(self, priority: Class) -> ClassReport {
        ClassReport {
            priority,
            arrivals: self.arrivals,
            served: self.waits.len() as u64,
            refused: self.refused,
            timeouts: self.timeouts,
            gone: self.gone,
            waits: Waits::of(self.waits),
        }
    }
}

fn seconds<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(value.as_millis() as f64 / 1e3)
}

fn class_name<S: Serializer>(class: &Class, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(class.name())
}
