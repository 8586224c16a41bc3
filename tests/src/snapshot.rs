//! The controller's picture of its lanes, as `GET /api/lanes` tells it; only what scenarios look at.

use std::collections::BTreeMap;

use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
pub struct Snapshot {
    pub version: String,
    pub generated_at: String,
    pub enabled: bool,
    pub lanes: Vec<Lane>,
    pub last_reload_error: Option<String>,
}

/// One lane. Counts by priority are keyed `interactive`, `default` and `bulk`.
#[derive(Clone, Debug, Deserialize)]
pub struct Lane {
    pub lane: String,
    pub mode: String,
    pub limit: usize,
    pub effective_limit: usize,
    pub inflight: usize,
    pub inflight_by_priority: BTreeMap<String, usize>,
    pub idle_connections: usize,
    pub h2_connections: usize,
    /// Connections from before the controller's start.
    pub preexisting_connections: usize,
    pub queued: usize,
    pub queued_by_priority: BTreeMap<String, usize>,
    pub oldest_wait_s: Option<f64>,
    pub saturated: bool,
    pub would_have_waited_5m: usize,
    pub would_have_refused_5m: usize,
    pub shadow_queued: usize,
    pub diagnosis: String,
    pub diagnosis_reason: Option<String>,
    pub waiting_for: Option<String>,
    pub first_byte_usual_s: f64,
    pub gateway_errors_5m: BTreeMap<String, usize>,
    pub clients_gone_5m: usize,
    pub under_limit_5m: usize,
    /// What `shaper set` has changed.
    pub overrides: BTreeMap<String, String>,
}

impl Lane {
    /// Nobody in flight and nobody waiting.
    pub fn is_quiet(&self) -> bool {
        self.inflight == 0 && self.queued == 0
    }
}

/// Who waits, as `GET /api/waiters` tells it; only what scenarios look at.
#[derive(Clone, Debug, Deserialize)]
pub struct Waiters {
    pub waiters: Vec<Waiter>,
}

/// One connection in a lane's queue.
#[derive(Clone, Debug, Deserialize)]
pub struct Waiter {
    pub lane: String,
    pub position: usize,
    pub priority: String,
    pub account: Option<String>,
    pub pid: i32,
    pub command: Option<String>,
    pub wait_s: f64,
}
