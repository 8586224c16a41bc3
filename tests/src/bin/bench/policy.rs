//! `policy`: events a second of the pure policy, by the number of waiters.

use std::{env, process::Command};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::{
    report::{Cell, Goal, Report, Table, Unit},
    spread::Spread,
};

/// Names the program of `shaper-user/benches/policy.rs`.
const PROGRAM: &str = "SHAPER_POLICY_BENCH";

/// What that program prints for each number of waiters.
#[derive(Deserialize)]
struct Measured {
    waiters: u64,
    nanos_an_event: Vec<f64>,
}

pub fn run() -> Result<Report> {
    let program = env::var_os(PROGRAM)
        .with_context(|| format!("{PROGRAM} is not set: run `cargo xtask bench policy`"))?;
    let output = Command::new(&program)
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    ensure!(
        output.status.success(),
        "the policy's benchmark failed:\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let measured: Vec<Measured> = serde_json::from_slice(&output.stdout)
        .context("the policy's benchmark printed no figures")?;

    let mut table = Table::new(
        "One lane of 50 slots and 100 accounts: a slot comes free, its successor starts, somebody arrives.",
        &["waiters", "an event", "events"],
    );
    for Measured {
        waiters,
        nanos_an_event,
    } in &measured
    {
        let nanos = Spread::of(nanos_an_event.iter().copied());
        let rate = Cell::Value(1e9 / nanos.median, Unit::PerSecond);
        table.push(
            waiters.to_string(),
            [Cell::Spread(nanos, Unit::Nanoseconds), rate],
        );
    }
    Ok(Report {
        goals: goal(&measured).into_iter().collect(),
        tables: vec![table],
    })
}

/// What grows with the logarithm of the number is a tree's depth and the caches that it misses.
fn goal(measured: &[Measured]) -> Option<Goal> {
    const BOUND: f64 = 10.0;
    let (few, many) = (measured.first()?, measured.last()?);
    let rounds = many.nanos_an_event.iter().zip(&few.nanos_an_event);
    let growth = Spread::of(rounds.map(|(many, few)| many / few));
    Some(Goal {
        promise: format!(
            "an event with {} waiters, to one with {}",
            many.waiters, few.waiters
        ),
        wanted: "under 10×: no growth but a tree's".to_owned(),
        measured: Cell::Spread(growth, Unit::Ratio),
        met: growth.median < BOUND,
    })
}
