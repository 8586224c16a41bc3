//! Is it us or the gateway?

use serde::{Deserialize, Serialize};

use super::{Failing, Ns, Slowness, health::Health, lane::Lane};

/// The answer in one word. Where several hold, the first of this order does: observe, paused, a failing gateway, our queue,
/// a slow gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Diagnosis {
    /// Nothing waits, nothing fails.
    Ok,
    /// Requests wait on purpose: for a slot, for a cap, for the pace.
    LocalQueue,
    /// The gateway fails or is slow to answer, and it is not for our load.
    GatewayDegraded,
    /// The lane starts nothing until a pause ends.
    Paused,
    /// The lane only observes.
    Observe,
}

impl Diagnosis {
    pub const ALL: [Self; 5] = [
        Self::Ok,
        Self::LocalQueue,
        Self::GatewayDegraded,
        Self::Paused,
        Self::Observe,
    ];

    /// The word in documents and tables.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::LocalQueue => "local_queue",
            Self::GatewayDegraded => "gateway_degraded",
            Self::Paused => "paused",
            Self::Observe => "observe",
        }
    }
}

/// What is wrong with a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    Failing(Failing),
    Slow(Slowness),
}

impl Health {
    pub(super) fn trouble(&self, now: Ns) -> Option<Trouble> {
        let failing = self
            .connects
            .failing(now)
            .or_else(|| self.requests.failing(now));
        failing
            .map(Trouble::Failing)
            .or_else(|| self.first_bytes.slowness(now).map(Trouble::Slow))
    }
}

impl Lane {
    pub(super) fn diagnosis(&self, trouble: Option<Trouble>) -> Diagnosis {
        if self.rules.observes() {
            return Diagnosis::Observe;
        }
        if self.pause.is_some() {
            return Diagnosis::Paused;
        }
        match trouble {
            Some(Trouble::Failing(_)) => Diagnosis::GatewayDegraded,
            Some(Trouble::Slow(slowness)) if self.is_not_our_load(slowness) => {
                Diagnosis::GatewayDegraded
            }
            _ if self.queue.is_empty() => Diagnosis::Ok,
            _ => Diagnosis::LocalQueue,
        }
    }

    /// While slots are free, slowness is the gateway's. A lane that is full and has a queue may have made its gateway slow
    /// itself, but not beyond the point at which all its slots shared what one request has alone.
    fn is_not_our_load(&self, Slowness { now, usual }: Slowness) -> bool {
        let shared = usual.saturating_mul(self.ledger.slots());
        self.queue.is_empty() || self.ledger.free() > 0 || now > shared
    }
}
