//! What the controller shows of itself.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use jiff::Timestamp;
use shaper_common::{Counter, Gate};

use super::{
    Controller,
    census::{Census, LaneCounts},
    reason,
    translate::conn_id,
};
use crate::{
    kernel,
    metrics::Direction,
    policy::{GatewayError, LaneRules, LaneView, Ns},
    snapshot::{
        AccountSnapshot, ByClass, LaneLevel, LaneSnapshot, Levels, Mode, Snapshot, Stage,
        Ungoverned, WAITERS_TOLD, Waiter, Waiters,
    },
};

impl Controller {
    /// All lanes, and the metrics brought up to the same moment.
    pub(super) fn snapshot(&mut self) -> Snapshot {
        self.drain();
        let now = kernel::now();
        let census = Census::take(&self.tables);
        self.count_kernel(now, &census);
        let lanes: Vec<_> = self
            .lanes
            .iter()
            .filter_map(|(id, lane)| {
                let view = self.policy.view(now, id)?;
                let counts = census.lane(id);
                let snapshot = self.lane_snapshot(now, &view, &lane.config.rules, counts);
                Some(LaneSnapshot {
                    preexisting_connections: self.preexisting.count(id),
                    overrides: lane.config.overrides(),
                    ..snapshot
                })
            })
            .collect();
        let ungoverned = Counter::ALL.into_iter().filter_map(|counter| {
            let reason = counter.ungoverned_reason()?.to_owned();
            Some(Ungoverned {
                reason,
                total: self.tables.counter(counter).unwrap_or(0),
            })
        });
        Snapshot {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            generated_at: Timestamp::now(),
            enabled: lanes.iter().any(|lane| lane.mode == Mode::Enforce),
            ungoverned: ungoverned
                .filter(|ungoverned| ungoverned.total > 0)
                .collect(),
            lanes,
            last_reload_error: self.last_reload_error.clone(),
        }
    }

    /// Less than a snapshot, for next to nothing.
    pub(super) fn levels(&mut self) -> Levels {
        self.drain();
        let now = kernel::now();
        let lanes = self.lanes.iter().filter_map(|(id, lane)| {
            let level = self.policy.level(now, id)?;
            Some(LaneLevel {
                lane: lane.config.name.clone(),
                inflight: level.in_flight,
                queued: level.queued,
                oldest_wait: level.oldest_wait.unwrap_or_default(),
            })
        });
        Levels {
            at: Timestamp::now(),
            lanes: lanes.collect(),
        }
    }

    fn lane_snapshot(
        &self,
        now: Ns,
        view: &LaneView,
        rules: &LaneRules,
        counts: LaneCounts,
    ) -> LaneSnapshot {
        let by_class = |counts: &[u32; 3]| ByClass::from_fn(|class| counts[class.index()]);
        let queued = view.queued.iter().sum();
        let mode = if rules.observes() {
            Mode::Observe
        } else {
            Mode::Enforce
        };
        let accounts = view.accounts.iter().map(|account| AccountSnapshot {
            account: self.accounts.name(account.account),
            priority: account.class,
            inflight: account.in_flight,
            queued: account.queued,
        });
        let errors = |error: GatewayError| view.gateway_errors[error.index()];
        let would_have = view.would_have.unwrap_or_default();
        LaneSnapshot {
            lane: view.name.clone(),
            mode,
            limit: view.limits.limit,
            effective_limit: view.limits.effective,
            reserve: view.limits.reserve,
            inflight: view.in_flight.iter().sum(),
            inflight_by_priority: by_class(&view.in_flight),
            idle_connections: counts.idle,
            queued,
            queued_by_priority: by_class(&view.queued),
            oldest_wait: view.oldest_wait.unwrap_or_default(),
            waiting_for: view.waiting.map(|waiting| {
                let account = waiting.account.map(|account| self.accounts.name(account));
                let paced = rules.pace.is_some();
                reason::of_wait(waiting.hindrance, waiting.class, account.as_deref(), paced)
            }),
            wait_p50_5m: view.wait_p50.unwrap_or_default(),
            wait_p90_5m: view.wait_p90.unwrap_or_default(),
            queue_timeouts_5m: view.queue_timeouts.into(),
            refusals_5m: view.refusals.into(),
            saturated: view.saturated,
            diagnosis: view.diagnosis,
            accounts: accounts.collect(),
            max_queue: rules.max_queue,
            paused_until: view.pause.map(|pause| timestamp(now, pause.until)),
            would_have_waited_5m: would_have.recent.waited,
            would_have_refused_5m: would_have.recent.refused,
            would_have_timed_out_5m: would_have.recent.expired,
            shadow_queued: would_have.queued,
            shadow_wait_p50_5m: would_have.wait_p50.unwrap_or_default(),
            shadow_wait_p90_5m: would_have.wait_p90.unwrap_or_default(),
            under_limit_5m: errors(GatewayError::ThrottledUnderLimit).into(),
            diagnosis_reason: reason::of(view),
            gateway_errors_5m: GatewayError::ALL
                .into_iter()
                .filter(|error| errors(*error) > 0)
                .map(|error| (error.name().to_owned(), errors(error)))
                .collect(),
            clients_gone_5m: view.gave_up,
            left_queue_5m: view.left,
            first_byte_p50_5m: view.first_byte.p50.unwrap_or_default(),
            first_byte_p90_5m: view.first_byte.p90.unwrap_or_default(),
            first_byte_usual: view.first_byte.usual.unwrap_or_default(),
            adaptive_factor: view.factor.get(),
            paused_by: view.pause.map(|pause| pause.by.name().to_owned()),
            h2_connections: counts.http2,
            preexisting_connections: 0,
            overrides: BTreeMap::new(),
        }
    }

    /// The first [`WAITERS_TOLD`] of each lane. Their commands are for others to look up: the loop reads no files.
    pub(super) fn waiters(&mut self) -> Waiters {
        self.drain();
        let now = kernel::now();
        let mut waiters = Vec::new();
        for (id, lane) in self.lanes.iter() {
            for waiter in self.policy.waiters(now, id).take(WAITERS_TOLD) {
                let Some(view) = self.tables.view(conn_id(waiter.conn)) else {
                    continue;
                };
                waiters.push(Waiter {
                    lane: lane.config.name.clone(),
                    position: waiter.position,
                    priority: waiter.class,
                    effective_priority: waiter.effective_class,
                    account: waiter.account.map(|account| self.accounts.name(account)),
                    pid: waiter.client.0,
                    command: None,
                    destination: SocketAddr::new(view.remote().addr(), view.remote().port()),
                    stage: if view.gate() == Gate::HeldSyn {
                        Stage::Connect
                    } else {
                        Stage::Request
                    },
                    wait: waiter.wait,
                    queue_timeout: lane.config.rules.queue_timeout[waiter.class.index()],
                });
            }
        }
        Waiters {
            generated_at: Timestamp::now(),
            waiters,
        }
    }

    /// Tells the metrics of the payload since the last time: of connections that have ended, which the kernel sums up,
    /// and of present ones. One that ends in between is counted late, never twice.
    fn count_bytes(&mut self, census: &Census) {
        for (id, lane) in self.lanes.iter_mut() {
            let Some(element) = self.tables.lanes.get(u32::from(id.0)) else {
                continue;
            };
            let live = census.lane(id);
            let now = [
                element.tx_bytes.load() + live.sent,
                element.rx_bytes.load() + live.received,
            ];
            for (index, direction) in [Direction::Sent, Direction::Received]
                .into_iter()
                .enumerate()
            {
                let new = now[index].saturating_sub(lane.bytes_told[index]);
                lane.metrics.add_bytes(direction, new);
                lane.bytes_told[index] += new;
            }
        }
    }

    /// Takes the kernel's counters over into the metrics.
    fn count_kernel(&mut self, now: Ns, census: &Census) {
        self.count_refusals(now);
        self.count_bytes(census);
        self.metrics
            .set_kernel_counters(|counter| self.tables.counter(counter).unwrap_or(0));
    }
}

/// The wall-clock time of an instant that is not far away.
pub(super) fn timestamp(now: Ns, at: Ns) -> Timestamp {
    let ahead: Duration = at.since(now);
    Timestamp::now() + ahead
}
