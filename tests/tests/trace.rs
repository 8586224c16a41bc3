//! `shaper run --record` and `shaper simulate`: what happened, and what would have.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use shaper_tests::client::{finish_all, probe};
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::process::Process;
use shaper_tests::stage::Stage;
use shaper_tests::tools;

const PATIENCE: Duration = Duration::from_secs(30);

/// A recording has one record for each request, with its wait and service time, and simulating it under the same rules
/// finds the same waits.
#[test]
fn a_recording_says_what_happened_and_can_be_simulated() -> Result<()> {
    const CLIENTS: usize = 4;
    const SERVICE: Duration = Duration::from_millis(500);
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::after(SERVICE).closing())?;
    let directory = tempfile::tempdir()?;
    let trace = directory.path().join("trace.jsonl");
    let controller = Controller::builder(&stage)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses())
                .limit(1)
                .queue(CLIENTS - 1)
                .line("abort_hold = \"0s\""),
        )?
        .record_to(&trace)
        .start()?;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(probe(gateway.address(), "client")?.spawn_in(&stage.bulk)?);
    }
    for report in finish_all(clients, PATIENCE)? {
        report.answered()?;
    }
    controller.wait_for("gateway", 0, 0)?;
    let config = directory.path().join("config");
    fs::create_dir(&config)?;
    fs::copy(
        controller.config().join("shaper.toml"),
        config.join("shaper.toml"),
    )?;
    fs::create_dir(config.join("lanes.d"))?;
    fs::copy(
        controller.config().join("lanes.d/gateway.toml"),
        config.join("lanes.d/gateway.toml"),
    )?;
    controller.stop()?;

    let text = fs::read_to_string(&trace)?;
    let records = text
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<Vec<Value>, _>>()
        .with_context(|| text.clone())?;
    assert_eq!(records.len(), CLIENTS, "{text}");
    for record in &records {
        assert_eq!(record["lane"], "gateway");
        assert_eq!(record["priority"], "bulk");
        assert_eq!(record["outcome"], "served");
        let service = record["service_s"].as_f64().context("a service time")?;
        let expected = SERVICE.as_secs_f64();
        assert!((expected..expected + 0.4).contains(&service), "{text}");
    }

    let mut simulate = Command::new(tools::shaper()?);
    simulate
        .args(["simulate", "--json", "--config"])
        .arg(&config)
        .arg(&trace);
    let finished = Process::spawn("shaper simulate", &mut simulate)?.finish(PATIENCE)?;
    assert_eq!(finished.exit_code()?, 0, "{}", finished.stderr);
    let report: Value = serde_json::from_str(&finished.stdout)?;
    let class = &report["lanes"][0]["classes"][0];
    assert_eq!(class["served"], CLIENTS, "{report}");
    let recorded = records
        .iter()
        .filter_map(|record| record["wait_s"].as_f64())
        .fold(0.0, f64::max);
    let simulated = class["wait_max_s"].as_f64().context("a wait")?;
    assert!(
        (recorded - simulated).abs() < 0.2,
        "recorded {recorded} s, simulated {simulated} s: {text}"
    );
    Ok(())
}
