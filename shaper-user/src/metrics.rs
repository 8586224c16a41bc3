//! The Prometheus metrics. Their names and labels are an outer interface.
//!
//! Counters and histograms are recorded as things happen; gauges are set from a [`Snapshot`] when somebody scrapes.

#[cfg(test)]
mod deployed;
mod family;
mod labels;
mod lane;
mod register;

use std::sync::{Mutex, PoisonError};

use prometheus::{
    GaugeVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Registry, TextEncoder,
};
use shaper_common::{Class, Counter};

pub use family::{Family, Kind, LabelSet, Value, Values};
pub use labels::{Direction, Drift, Outcome, RefusalReason, ReloadResult};
pub use lane::LaneMetrics;

use self::{
    labels::{Label, ungoverned, ungoverned_values},
    lane::LaneFamilies,
    register::Register,
};
use crate::snapshot::{Diagnosis, Mode, Snapshot};

/// The content type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = prometheus::TEXT_FORMAT;

/// Every metric of the controller. Shared by the controller, which records, and the HTTP server, which scrapes.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    families: Vec<Family>,
    lanes: LaneFamilies,
    gauges: Gauges,
    events_lost: IntCounter,
    ungoverned: IntCounterVec,
    config_reloads: IntCounterVec,
    drift: IntCounterVec,
    /// Held while the gauges are set and read, so that two scrapes do not mix.
    scrape: Mutex<()>,
}

/// The families that are set from a snapshot.
#[derive(Debug)]
struct Gauges {
    inflight: IntGaugeVec,
    limit: IntGaugeVec,
    limit_effective: IntGaugeVec,
    queue_depth: IntGaugeVec,
    idle_connections: IntGaugeVec,
    saturated: IntGaugeVec,
    diagnosis: IntGaugeVec,
    adaptive_factor: GaugeVec,
    config_rejected: IntGauge,
}

impl Metrics {
    /// All metrics in a registry of their own, as of a controller of this `version`.
    ///
    /// # Panics
    /// Never: the names are constants, and a test registers them.
    pub fn new(version: &str) -> Self {
        Self::register(version).expect("metric names are valid and distinct")
    }

    fn register(version: &str) -> prometheus::Result<Self> {
        let mut register = Register::default();
        let r = &mut register;
        let gauges = Gauges::register(r)?;
        let lanes = LaneFamilies::register(r)?;
        let ungoverned_total = r.counters(
            "shaper_ungoverned_total",
            "Connections and packets that passed although they could have been governed.",
            &[LabelSet {
                name: "reason",
                values: Values::Closed(ungoverned_values),
            }],
        )?;
        for one in ungoverned() {
            ungoverned_total.with_label_values(&[one.reason]);
        }
        let events_lost = r.counter(
            "shaper_events_lost_total",
            "Kernel events lost because the ring buffer was full.",
        )?;
        let drift = r.counters(
            "shaper_drift_total",
            "What reconciliation found wrong and corrected.",
            &[LabelSet::of::<Drift>("kind")],
        )?;
        for kind in Drift::ALL {
            drift.with_label_values(&[kind.text()]);
        }
        let config_reloads = r.counters(
            "shaper_config_reloads_total",
            "Reloads of the configuration.",
            &[LabelSet::of::<ReloadResult>("result")],
        )?;
        for result in ReloadResult::ALL {
            config_reloads.with_label_values(&[result.text()]);
        }
        let build_info = r.gauges(
            "shaper_build_info",
            "1, for the version in its label.",
            &[LabelSet {
                name: "version",
                values: Values::Named("the version of the controller"),
            }],
        )?;
        build_info.with_label_values(&[version]).set(1);
        let (registry, families) = register.finish();
        Ok(Self {
            lanes,
            gauges,
            events_lost,
            ungoverned: ungoverned_total,
            config_reloads,
            drift,
            registry,
            families,
            scrape: Mutex::new(()),
        })
    }

    /// Every metric in words.
    pub fn families(&self) -> &[Family] {
        &self.families
    }

    /// The recording side of the lane with this name. A lane that was there before goes on with its counts.
    pub fn lane(&self, lane: &str) -> LaneMetrics {
        self.lanes.lane(lane)
    }

    /// Drops the series of every lane that is not in `lanes`: what a reload removed.
    pub fn retain_lanes(&self, lanes: &[&str]) {
        self.lanes.retain(lanes);
    }

    pub fn count_reload(&self, result: ReloadResult) {
        self.config_reloads
            .with_label_values(&[result.text()])
            .inc();
    }

    pub fn count_drift(&self, kind: Drift, found: u64) {
        self.drift.with_label_values(&[kind.text()]).inc_by(found);
    }

    /// Takes over the kernel's counters: `sum` is a counter's present value over all CPUs.
    pub fn set_kernel_counters(&self, sum: impl Fn(Counter) -> u64) {
        raise(&self.events_lost, sum(Counter::EventsLost));
        for one in ungoverned() {
            let series = self.ungoverned.with_label_values(&[one.reason]);
            raise(&series, sum(one.counter));
        }
    }

    /// Everything in the Prometheus text format, gauges as in `snapshot`.
    ///
    /// # Errors
    /// When the encoder fails, which it does for no metric registered here.
    pub fn render(&self, snapshot: &Snapshot) -> prometheus::Result<String> {
        let _scrape = self.scrape.lock().unwrap_or_else(PoisonError::into_inner);
        self.gauges.set(snapshot);
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

impl Gauges {
    fn register(r: &mut Register) -> prometheus::Result<Self> {
        const LANE: &[LabelSet] = &[LabelSet::LANE];
        Ok(Self {
            inflight: r.gauges("shaper_inflight", "Requests in flight.", LANE)?,
            limit: r.gauges(
                "shaper_limit",
                "Requests allowed in flight; 0: the lane only observes.",
                LANE,
            )?,
            limit_effective: r.gauges(
                "shaper_limit_effective",
                "The limit as lowered by pauses and adaptation.",
                LANE,
            )?,
            queue_depth: r.gauges(
                "shaper_queue_depth",
                "Waiters.",
                &[LabelSet::LANE, LabelSet::of::<Class>("priority")],
            )?,
            idle_connections: r.gauges(
                "shaper_idle_connections",
                "Connections that hold no slot and wait for none.",
                LANE,
            )?,
            saturated: r.gauges(
                "shaper_saturated",
                "1 while somebody has been waiting without a break for 60 s or more.",
                LANE,
            )?,
            diagnosis: r.gauges(
                "shaper_diagnosis",
                "1 for the lane's present diagnosis, 0 for the others.",
                &[LabelSet::LANE, LabelSet::of::<Diagnosis>("diagnosis")],
            )?,
            adaptive_factor: r.shares(
                "shaper_adaptive_factor",
                "What adaptation leaves of the lane's limit and rates; 1 is all.",
                LANE,
            )?,
            config_rejected: r.gauge(
                "shaper_config_rejected",
                "1 while the files' latest change is turned down and the configuration before it is in force, else 0.",
            )?,
        })
    }

    fn set(&self, snapshot: &Snapshot) {
        self.config_rejected
            .set(snapshot.last_reload_error.is_some().into());
        let by_lane = [
            &self.inflight,
            &self.limit,
            &self.limit_effective,
            &self.idle_connections,
            &self.saturated,
        ];
        // Lanes that are gone must not stay behind with their last value.
        for family in by_lane {
            family.reset();
        }
        self.queue_depth.reset();
        self.diagnosis.reset();
        self.adaptive_factor.reset();
        for lane in &snapshot.lanes {
            let name = lane.lane.as_str();
            let [limit, effective] = match lane.mode {
                Mode::Enforce => [lane.limit, lane.effective_limit],
                Mode::Observe => [0, 0],
            };
            let values = [
                lane.inflight,
                limit,
                effective,
                lane.idle_connections,
                u32::from(lane.saturated),
            ];
            for (family, value) in by_lane.into_iter().zip(values) {
                family.with_label_values(&[name]).set(value.into());
            }
            for diagnosis in Diagnosis::ALL {
                self.diagnosis
                    .with_label_values(&[name, diagnosis.text()])
                    .set((diagnosis == lane.diagnosis).into());
            }
            self.adaptive_factor
                .with_label_values(&[name])
                .set(lane.adaptive_factor);
            for class in Class::ALL {
                self.queue_depth
                    .with_label_values(&[name, class.text()])
                    .set((*lane.queued_by_priority.get(class)).into());
            }
        }
    }
}

/// Raises `counter` to `sum`. It never falls: the kernel's sums do not, as long as its programs stay loaded.
fn raise(counter: &IntCounter, sum: u64) {
    counter.inc_by(sum.saturating_sub(counter.get()));
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, time::Duration};

    use super::*;
    use crate::{policy::GatewayError, snapshot::samples};

    /// The published metrics, with their labels in alphabetical order.
    const PUBLISHED: [(&str, &str); 24] = [
        ("shaper_inflight", "lane"),
        ("shaper_limit", "lane"),
        ("shaper_limit_effective", "lane"),
        ("shaper_queue_depth", "lane,priority"),
        ("shaper_queue_wait_seconds", "lane,priority"),
        ("shaper_queue_timeouts_total", "lane,priority"),
        ("shaper_refusals_total", "lane,priority,reason"),
        ("shaper_connections_total", "lane,outcome,priority"),
        ("shaper_requests_total", "lane,priority"),
        ("shaper_idle_connections", "lane"),
        ("shaper_saturated", "lane"),
        ("shaper_diagnosis", "diagnosis,lane"),
        ("shaper_adaptive_factor", "lane"),
        ("shaper_overruns_total", "lane"),
        ("shaper_connect_seconds", "lane"),
        ("shaper_first_byte_seconds", "lane"),
        ("shaper_gateway_errors_total", "kind,lane"),
        ("shaper_bytes_total", "direction,lane"),
        ("shaper_ungoverned_total", "reason"),
        ("shaper_events_lost_total", ""),
        ("shaper_config_reloads_total", "result"),
        ("shaper_config_rejected", ""),
        ("shaper_drift_total", "kind"),
        ("shaper_build_info", "version"),
    ];

    /// A15: every published metric is there from the start, and no other.
    #[test]
    fn the_metrics_are_the_published_ones() {
        let metrics = Metrics::new("0.1.0");
        metrics.lane("reasoning");
        metrics.gauges.set(&samples::busy());
        let families = metrics.registry.gather();
        let found: BTreeSet<(String, String)> = families
            .iter()
            .map(|family| {
                let labels: Vec<&str> = family.get_metric()[0]
                    .get_label()
                    .iter()
                    .map(|label| label.name())
                    .collect();
                (family.name().to_owned(), labels.join(","))
            })
            .collect();
        let published = PUBLISHED
            .iter()
            .map(|(name, labels)| ((*name).to_owned(), (*labels).to_owned()))
            .collect::<BTreeSet<_>>();
        assert_eq!(found, published);
    }

    /// A15: every value of every label that a controller shows is in the reference.
    #[test]
    fn no_series_has_a_value_that_is_not_described() {
        let metrics = Metrics::new("0.1.0");
        metrics.lane("reasoning");
        metrics.gauges.set(&samples::busy());
        for family in metrics.registry.gather() {
            let described = metrics
                .families()
                .iter()
                .find(|described| described.name == family.name())
                .unwrap_or_else(|| panic!("{} is not described", family.name()));
            assert_eq!(described.help, family.help());
            for label in described.labels.iter() {
                let Values::Closed(values) = label.values else {
                    continue;
                };
                let shown: BTreeSet<&str> = family
                    .get_metric()
                    .iter()
                    .flat_map(|series| series.get_label())
                    .filter(|shown| shown.name() == label.name)
                    .map(|shown| shown.value())
                    .collect();
                let values = values();
                let known: BTreeSet<&str> = values.iter().map(|value| value.text).collect();
                assert_eq!(shown, known, "{} of {}", label.name, family.name());
                for value in values {
                    assert!(value.meaning.ends_with('.'), "{value:?}");
                }
            }
        }
    }

    /// A15, B6: what is recorded shows under the lane's, the class's and the reason's name.
    #[test]
    fn what_is_recorded_is_shown() {
        let metrics = Metrics::new("0.1.0");
        let lane = metrics.lane("reasoning");
        lane.observe_wait(Class::Bulk, Duration::from_secs(40));
        lane.count_refusals(Class::Bulk, RefusalReason::QueueFull, 3);
        lane.count_connection(Class::Interactive, Outcome::LeftQueue);
        lane.count_gateway_error(GatewayError::ThrottledUnderLimit);
        lane.add_bytes(Direction::Sent, 200_000);
        metrics.count_reload(ReloadResult::Rejected);
        metrics.set_kernel_counters(|counter| match counter {
            Counter::TableFull => 7,
            Counter::EventsLost => 5,
            _ => 0,
        });
        let text = metrics.render(&samples::busy()).unwrap();
        for line in [
            r#"shaper_queue_wait_seconds_bucket{lane="reasoning",priority="bulk",le="30"} 0"#,
            r#"shaper_queue_wait_seconds_bucket{lane="reasoning",priority="bulk",le="60"} 1"#,
            r#"shaper_refusals_total{lane="reasoning",priority="bulk",reason="queue_full"} 3"#,
            r#"shaper_connections_total{lane="reasoning",outcome="left_queue",priority="interactive"} 1"#,
            r#"shaper_connections_total{lane="reasoning",outcome="refused",priority="bulk"} 3"#,
            r#"shaper_gateway_errors_total{kind="throttled_under_limit",lane="reasoning"} 1"#,
            r#"shaper_bytes_total{direction="sent",lane="reasoning"} 200000"#,
            r#"shaper_config_reloads_total{result="rejected"} 1"#,
            r#"shaper_ungoverned_total{reason="table_full"} 7"#,
            "shaper_events_lost_total 5",
            r#"shaper_inflight{lane="reasoning"} 6"#,
            r#"shaper_queue_depth{lane="reasoning",priority="bulk"} 7"#,
            r#"shaper_saturated{lane="reasoning"} 1"#,
            r#"shaper_diagnosis{diagnosis="local_queue",lane="reasoning"} 1"#,
            r#"shaper_diagnosis{diagnosis="gateway_degraded",lane="reasoning"} 0"#,
            r#"shaper_adaptive_factor{lane="reasoning"} 1"#,
            r#"shaper_build_info{version="0.1.0"} 1"#,
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in:\n{text}");
        }
    }

    /// A15: a rejected configuration shows for as long as it is, not only when it is turned down.
    #[test]
    fn a_rejected_configuration_shows_until_a_good_one_comes() {
        let metrics = Metrics::new("0.1.0");
        for (error, shown) in [(None, 0), (Some("no max_inflight"), 1), (None, 0)] {
            let snapshot = Snapshot {
                last_reload_error: error.map(str::to_owned),
                ..samples::busy()
            };
            let text = metrics.render(&snapshot).unwrap();
            let line = format!("shaper_config_rejected {shown}");
            assert!(text.lines().any(|l| l == line), "{line} is not in:\n{text}");
        }
    }

    #[test]
    fn kernel_counters_are_taken_over_not_added_up() {
        let metrics = Metrics::new("0.1.0");
        for sum in [3, 3, 8] {
            metrics.set_kernel_counters(|_| sum);
        }
        assert_eq!(metrics.events_lost.get(), 8);
    }

    /// A14: a lane that a reload removed has no series, not even when a connection of it ends later.
    #[test]
    fn a_removed_lane_loses_its_series() {
        let metrics = Metrics::new("0.1.0");
        let (kept, removed) = (metrics.lane("reasoning"), metrics.lane("old"));
        kept.count_request(Class::Default);
        let mut snapshot = samples::busy();
        snapshot.lanes.push(samples::lane("old"));
        assert!(metrics.render(&snapshot).unwrap().contains(r#"lane="old""#));

        metrics.retain_lanes(&["reasoning"]);
        removed.count_request(Class::Default);
        let text = metrics.render(&samples::busy()).unwrap();
        assert!(!text.contains(r#"lane="old""#), "{text}");
        let count = r#"shaper_requests_total{lane="reasoning",priority="default"} 1"#;
        assert!(text.contains(count), "{text}");
    }

    /// E5: a lane that stays over a reload goes on counting where it was.
    #[test]
    fn a_lane_made_again_goes_on_with_its_counts() {
        let metrics = Metrics::new("0.1.0");
        metrics.lane("reasoning").count_overrun();
        metrics.lane("reasoning").count_overrun();
        let text = metrics.render(&samples::busy()).unwrap();
        assert!(
            text.contains(r#"shaper_overruns_total{lane="reasoning"} 2"#),
            "{text}"
        );
    }
}
