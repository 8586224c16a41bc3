//! Metrics made, registered and described in one step.

use prometheus::{
    GaugeVec, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, Result, core::Collector,
};

use super::family::{Family, Kind, LabelSet};

/// A registry in the making.
#[derive(Debug, Default)]
pub(super) struct Register {
    registry: Registry,
    families: Vec<Family>,
}

impl Register {
    /// The registry, and what is in it in the order of registration.
    pub(super) fn finish(self) -> (Registry, Vec<Family>) {
        (self.registry, self.families)
    }

    fn add<C: Collector + Clone + 'static>(
        &mut self,
        metric: C,
        (name, help): (&'static str, &'static str),
        kind: Kind,
        labels: &[LabelSet],
    ) -> Result<C> {
        self.registry.register(Box::new(metric.clone()))?;
        self.families.push(Family {
            name,
            kind,
            help,
            labels: labels.to_vec(),
        });
        Ok(metric)
    }

    pub(super) fn counters(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &[LabelSet],
    ) -> Result<IntCounterVec> {
        let metric = IntCounterVec::new(Opts::new(name, help), &names(labels))?;
        self.add(metric, (name, help), Kind::Counter, labels)
    }

    pub(super) fn counter(&mut self, name: &'static str, help: &'static str) -> Result<IntCounter> {
        self.add(
            IntCounter::new(name, help)?,
            (name, help),
            Kind::Counter,
            &[],
        )
    }

    pub(super) fn gauges(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &[LabelSet],
    ) -> Result<IntGaugeVec> {
        let metric = IntGaugeVec::new(Opts::new(name, help), &names(labels))?;
        self.add(metric, (name, help), Kind::Gauge, labels)
    }

    pub(super) fn gauge(&mut self, name: &'static str, help: &'static str) -> Result<IntGauge> {
        self.add(IntGauge::new(name, help)?, (name, help), Kind::Gauge, &[])
    }

    /// Gauges of any number from 0 to 1.
    pub(super) fn shares(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &[LabelSet],
    ) -> Result<GaugeVec> {
        let metric = GaugeVec::new(Opts::new(name, help), &names(labels))?;
        self.add(metric, (name, help), Kind::Gauge, labels)
    }

    pub(super) fn histograms(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &[LabelSet],
        buckets: &'static [f64],
    ) -> Result<HistogramVec> {
        let opts = HistogramOpts::new(name, help).buckets(buckets.to_vec());
        let metric = HistogramVec::new(opts, &names(labels))?;
        self.add(metric, (name, help), Kind::Histogram { buckets }, labels)
    }
}

fn names(labels: &[LabelSet]) -> Vec<&'static str> {
    labels.iter().map(|label| label.name).collect()
}
