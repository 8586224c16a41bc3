//! What is recorded of a lane as it happens.

use std::{collections::HashMap, marker::PhantomData, sync::Arc, time::Duration};

use prometheus::{
    Histogram, HistogramVec, IntCounter, IntCounterVec,
    core::{Collector, MetricVec, MetricVecBuilder},
};
use shaper_common::Class;

use super::{
    family::LabelSet,
    labels::{Direction, Label, Outcome, RefusalReason},
    register::Register,
};
use crate::policy::GatewayError;

/// Buckets of the queue wait, in seconds.
const WAIT_BUCKETS: &[f64] = &[0.1, 0.5, 1.0, 5.0, 15.0, 30.0, 60.0, 120.0, 300.0];
/// Buckets of the time to connect, in seconds: a host next door up to a SYN sent three times.
const CONNECT_BUCKETS: &[f64] = &[0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];
/// Buckets of the time from request to first response byte, in seconds: a cached answer up to a long reasoning run.
const FIRST_BYTE_BUCKETS: &[f64] = &[
    0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
];

/// The families of a lane that are recorded as things happen.
#[derive(Debug)]
pub(super) struct LaneFamilies {
    queue_wait: HistogramVec,
    queue_timeouts: IntCounterVec,
    refusals: IntCounterVec,
    connections: IntCounterVec,
    requests: IntCounterVec,
    overruns: IntCounterVec,
    connect: HistogramVec,
    first_byte: HistogramVec,
    gateway_errors: IntCounterVec,
    bytes: IntCounterVec,
}

/// The recording side of one lane. Its series exist, at zero, from the moment it is made until
/// [`Metrics::retain_lanes`](super::Metrics::retain_lanes) drops the lane; what is recorded after that goes nowhere.
#[derive(Clone, Debug)]
pub struct LaneMetrics(Arc<LaneSeries>);

#[derive(Debug)]
struct LaneSeries {
    queue_wait: Per<Class, Histogram>,
    queue_timeouts: Per<Class, IntCounter>,
    refusals: Per<Class, Per<RefusalReason, IntCounter>>,
    connections: Per<Class, Per<Outcome, IntCounter>>,
    requests: Per<Class, IntCounter>,
    overruns: IntCounter,
    connect: Histogram,
    first_byte: Histogram,
    gateway_errors: Per<GatewayError, IntCounter>,
    bytes: Per<Direction, IntCounter>,
}

impl LaneMetrics {
    /// A request that waited `wait` (zero if it did not) got its slot.
    pub fn observe_wait(&self, class: Class, wait: Duration) {
        self.0.queue_wait.get(class).observe(wait.as_secs_f64());
    }

    /// A waiter was ended by the queue timeout.
    pub fn count_queue_timeout(&self, class: Class) {
        self.0.queue_timeouts.get(class).inc();
    }

    /// `count` connects were refused; that ends them, too.
    pub fn count_refusals(&self, class: Class, reason: RefusalReason, count: u64) {
        self.0.refusals.get(class).get(reason).inc_by(count);
        let connections = self.0.connections.get(class);
        connections.get(Outcome::Refused).inc_by(count);
    }

    /// A connection ended.
    pub fn count_connection(&self, class: Class, outcome: Outcome) {
        self.0.connections.get(class).get(outcome).inc();
    }

    /// A request was let through to the gateway (C12: one that never left is not counted).
    pub fn count_request(&self, class: Class) {
        self.0.requests.get(class).inc();
    }

    /// A connection taken for idle turned out to be in use.
    pub fn count_overrun(&self) {
        self.0.overruns.inc();
    }

    /// A TCP handshake with the gateway took `time`, holds not included.
    pub fn observe_connect(&self, time: Duration) {
        self.0.connect.observe(time.as_secs_f64());
    }

    /// The first byte of a response came `time` after the request was let through.
    pub fn observe_first_byte(&self, time: Duration) {
        self.0.first_byte.observe(time.as_secs_f64());
    }

    pub fn count_gateway_error(&self, error: GatewayError) {
        self.0.gateway_errors.get(error).inc();
    }

    /// `bytes` more of payload were seen.
    pub fn add_bytes(&self, direction: Direction, bytes: u64) {
        self.0.bytes.get(direction).inc_by(bytes);
    }
}

impl LaneFamilies {
    pub(super) fn register(r: &mut Register) -> prometheus::Result<Self> {
        const LANE: LabelSet = LabelSet::LANE;
        const PRIORITY: LabelSet = LabelSet::of::<Class>("priority");
        Ok(Self {
            queue_wait: r.histograms(
                "shaper_queue_wait_seconds",
                "Time from a request's arrival to its slot.",
                &[LANE, PRIORITY],
                WAIT_BUCKETS,
            )?,
            queue_timeouts: r.counters(
                "shaper_queue_timeouts_total",
                "Waiters ended by the queue timeout.",
                &[LANE, PRIORITY],
            )?,
            refusals: r.counters(
                "shaper_refusals_total",
                "Connects refused by shaper.",
                &[LANE, PRIORITY, LabelSet::of::<RefusalReason>("reason")],
            )?,
            connections: r.counters(
                "shaper_connections_total",
                "Connections that ended, by how they ended.",
                &[LANE, PRIORITY, LabelSet::of::<Outcome>("outcome")],
            )?,
            requests: r.counters(
                "shaper_requests_total",
                "Requests let through to the gateway.",
                &[LANE, PRIORITY],
            )?,
            overruns: r.counters(
                "shaper_overruns_total",
                "Connections taken for idle whose response went on.",
                &[LANE],
            )?,
            connect: r.histograms(
                "shaper_connect_seconds",
                "TCP handshake with the gateway, without the time held.",
                &[LANE],
                CONNECT_BUCKETS,
            )?,
            first_byte: r.histograms(
                "shaper_first_byte_seconds",
                "Time from a request let through to the first byte of its response.",
                &[LANE],
                FIRST_BYTE_BUCKETS,
            )?,
            gateway_errors: r.counters(
                "shaper_gateway_errors_total",
                "What went wrong at the gateway.",
                &[LANE, LabelSet::of::<GatewayError>("kind")],
            )?,
            bytes: r.counters(
                "shaper_bytes_total",
                "Payload bytes to (sent) and from (received) the gateway.",
                &[LANE, LabelSet::of::<Direction>("direction")],
            )?,
        })
    }

    pub(super) fn lane(&self, lane: &str) -> LaneMetrics {
        LaneMetrics(Arc::new(LaneSeries {
            queue_wait: Per::new(|c: Class| self.queue_wait.with_label_values(&[lane, c.text()])),
            queue_timeouts: Per::new(|c: Class| {
                self.queue_timeouts.with_label_values(&[lane, c.text()])
            }),
            refusals: Per::new(|c: Class| {
                Per::new(|reason: RefusalReason| {
                    self.refusals
                        .with_label_values(&[lane, c.text(), reason.text()])
                })
            }),
            connections: Per::new(|c: Class| {
                Per::new(|outcome: Outcome| {
                    self.connections
                        .with_label_values(&[lane, c.text(), outcome.text()])
                })
            }),
            requests: Per::new(|c: Class| self.requests.with_label_values(&[lane, c.text()])),
            overruns: self.overruns.with_label_values(&[lane]),
            connect: self.connect.with_label_values(&[lane]),
            first_byte: self.first_byte.with_label_values(&[lane]),
            gateway_errors: Per::new(|kind: GatewayError| {
                self.gateway_errors.with_label_values(&[lane, kind.text()])
            }),
            bytes: Per::new(|way: Direction| self.bytes.with_label_values(&[lane, way.text()])),
        }))
    }

    /// Drops the series of every lane that is not in `lanes`.
    pub(super) fn retain(&self, lanes: &[&str]) {
        for family in [&self.queue_wait, &self.connect, &self.first_byte] {
            retain(family, lanes);
        }
        for family in [
            &self.queue_timeouts,
            &self.refusals,
            &self.connections,
            &self.requests,
            &self.overruns,
            &self.gateway_errors,
            &self.bytes,
        ] {
            retain(family, lanes);
        }
    }
}

/// Drops the series of `family` whose lane is not in `lanes`.
fn retain<B: MetricVecBuilder>(family: &MetricVec<B>, lanes: &[&str]) {
    for series in family.collect().iter().flat_map(|f| f.get_metric()) {
        let labels: HashMap<&str, &str> = series
            .get_label()
            .iter()
            .map(|label| (label.name(), label.value()))
            .collect();
        if !lanes.contains(&labels["lane"]) {
            // An error says that it is gone already.
            let _ = family.remove(&labels);
        }
    }
}

/// One `M` for each value of the label `L`.
#[derive(Debug)]
struct Per<L, M> {
    values: Vec<M>,
    label: PhantomData<L>,
}

impl<L: Label, M> Per<L, M> {
    fn new(f: impl Fn(L) -> M) -> Self {
        Self {
            values: L::ALL.iter().map(|label| f(*label)).collect(),
            label: PhantomData,
        }
    }

    fn get(&self, label: L) -> &M {
        &self.values[label.index()]
    }
}
