//! The controller's metrics, read from the Prometheus text format.

/// One scrape.
#[derive(Clone, Debug)]
pub struct Metrics {
    samples: Vec<Sample>,
}

#[derive(Clone, Debug)]
struct Sample {
    name: String,
    /// `key="value"` pairs as they stand in the text.
    labels: Vec<String>,
    value: f64,
}

/// The ways in which a connect, or a further request, can end in a lane.
#[derive(Clone, Copy, Debug)]
pub struct Outcomes {
    pub admitted: f64,
    pub refused: f64,
    pub expired: f64,
    /// Left while waiting.
    pub gone: f64,
}

impl Outcomes {
    pub fn total(self) -> f64 {
        self.admitted + self.refused + self.expired + self.gone
    }
}

impl Metrics {
    /// Comments and lines that are no samples are passed over.
    pub fn parse(text: &str) -> Self {
        let samples = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .filter_map(Sample::parse)
            .collect();
        Self { samples }
    }

    /// The sum over all samples of `name` that carry all of `labels`; zero if there are none.
    pub fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let wanted: Vec<String> = labels
            .iter()
            .map(|(key, value)| format!("{key}=\"{value}\""))
            .collect();
        self.samples
            .iter()
            .filter(|sample| sample.name == name)
            .filter(|sample| wanted.iter().all(|label| sample.labels.contains(label)))
            .map(|sample| sample.value)
            .sum()
    }

    /// What became of everybody who came to a lane.
    pub fn outcomes(&self, lane: &str) -> Outcomes {
        let lane = ("lane", lane);
        Outcomes {
            admitted: self.sum("shaper_requests_total", &[lane]),
            refused: self.sum("shaper_refusals_total", &[lane]),
            expired: self.sum("shaper_queue_timeouts_total", &[lane]),
            gone: self.sum(
                "shaper_connections_total",
                &[lane, ("outcome", "left_queue")],
            ),
        }
    }

    /// Whether any sample of `name` is there.
    pub fn has(&self, name: &str) -> bool {
        self.samples.iter().any(|sample| sample.name == name)
    }
}

impl Sample {
    /// Label values of shaper are from closed sets and hold neither commas nor spaces.
    fn parse(line: &str) -> Option<Self> {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, labels) = match series.split_once('{') {
            Some((name, labels)) => (name, labels.strip_suffix('}')?),
            None => (series, ""),
        };
        Some(Self {
            name: name.to_owned(),
            labels: labels.split(',').map(str::to_owned).collect(),
            value: value.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_over_the_labels_that_are_not_asked_for() {
        let metrics = Metrics::parse(
            "# HELP shaper_refusals_total Refused connects\n\
             shaper_refusals_total{lane=\"a\",priority=\"bulk\",reason=\"queue_full\"} 3\n\
             shaper_refusals_total{lane=\"a\",priority=\"default\",reason=\"queue_full\"} 4\n\
             shaper_refusals_total{lane=\"b\",priority=\"default\",reason=\"queue_full\"} 5\n\
             shaper_events_lost_total 0\n",
        );
        assert_eq!(metrics.sum("shaper_refusals_total", &[("lane", "a")]), 7.0);
        assert_eq!(metrics.sum("shaper_refusals_total", &[("lane", "c")]), 0.0);
        assert!(metrics.has("shaper_events_lost_total"));
        assert!(!metrics.has("shaper_inflight"));
    }
}
