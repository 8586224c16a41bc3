//! Promises of whole lanes: stories with a made-up clock, and properties under a model of the kernel whose news comes
//! late.

mod bounds;
mod cost;
mod kernel;
mod order;
mod pauses;
mod properties;
mod reload;
mod shadow;
mod signals;
mod starvation;
mod tickets;
mod truth;
mod waiting;
mod world;

use std::{collections::BTreeMap, time::Duration};

use proptest::test_runner::Config as ProptestConfig;

use super::*;
use world::World;

const SECOND: Duration = Duration::from_secs(1);

/// How many cases a property is tried on: `usual` unless `PROPTEST_CASES` says otherwise.
fn cases(usual: u32) -> ProptestConfig {
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => ProptestConfig::default(),
        None => ProptestConfig::with_cases(usual),
    }
}

/// A lane with this limit and nothing else that could stand in the way.
fn rules(max_inflight: u32) -> LaneRules {
    LaneRules {
        max_inflight,
        enforce: true,
        max_queue: 1000,
        queue_timeout: [SECOND * 300; 3],
        interactive_reserve: 0,
        connect_hold: ConnectHold::Always,
        idle_release: SECOND * 2,
        abort_hold: SECOND * 15,
        wake_bytes: 128,
        aging: SECOND * 60,
        ticket_grace: SECOND * 10,
        class_cap: [None; 3],
        account_cap: None,
        account_overrides: BTreeMap::new(),
        pace: None,
        adaptive: None,
        retry_after_max: SECOND * 3600,
    }
}

/// An operator's pause.
fn pause_until(until: Ns) -> Event {
    let by = PausedBy::Operator;
    Event::Pause(Pause { until, by })
}

/// A pace that bounds nothing, to be filled in.
const PACE: Pace = Pace {
    mode: PaceMode::Burst,
    per_second: None,
    per_minute: None,
    min_interval: Duration::ZERO,
    safety_margin: 0.0,
    window_slack: Duration::ZERO,
};
