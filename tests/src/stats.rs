//! What `shaper stats --json` tells; only what scenarios look at.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::process::Finished;

#[derive(Clone, Debug, Deserialize)]
pub struct Stats {
    pub problem: Option<String>,
    pub lanes: Vec<LaneStats>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct LaneStats {
    pub lane: String,
    pub total: Counts,
    pub priorities: ByPriority,
    pub hours: Vec<Hour>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Hour {
    pub hour: String,
    pub total: Counts,
}

#[derive(Clone, Debug, Deserialize)]
pub struct ByPriority {
    pub interactive: Counts,
    pub default: Counts,
    pub bulk: Counts,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Counts {
    pub starts: u64,
    pub peak_starts_60s: u64,
    pub completed: u64,
    pub refusals: u64,
    pub queue_timeouts: u64,
    pub gateway_errors: u64,
    pub gateway_errors_under_limit: u64,
    pub wait_avg_s: f64,
    pub wait_p90_s: f64,
}

impl Stats {
    /// Reads what `shaper stats --json` printed.
    ///
    /// # Errors
    /// If it failed or printed something else.
    pub fn read(finished: &Finished) -> Result<Self> {
        ensure!(
            finished.exit_code()? == 0,
            "shaper stats failed:\n{}",
            finished.stderr
        );
        serde_json::from_str(&finished.stdout)
            .with_context(|| format!("unexpected shaper stats: {}", finished.stdout))
    }

    /// One lane.
    ///
    /// # Errors
    /// If nothing happened in it.
    pub fn lane(&self, name: &str) -> Result<&LaneStats> {
        self.lanes
            .iter()
            .find(|lane| lane.lane == name)
            .with_context(|| format!("shaper stats has nothing of lane {name:?}: {self:?}"))
    }
}
