//! `shaper run --record` and `shaper simulate`: what happened, and what would have.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use shaper_tests::client::{finish_all, probe};
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::process::Process;
use shaper_tests::stage::Stage;
use shaper_tests::terminal::{Size, Terminal};
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

/// Long work shows how far it is to people who watch, and only the report to whoever reads its output.
#[test]
fn a_long_simulation_shows_its_progress_on_terminals_only() -> Result<()> {
    const REQUESTS: usize = 100_000;
    let directory = tempfile::tempdir()?;
    let config = directory.path().join("config");
    fs::create_dir_all(config.join("lanes.d"))?;
    let lane = LaneFile::over(&[([127, 0, 0, 1], 9).into()]).limit(4);
    fs::write(config.join("lanes.d/gateway.toml"), lane.toml())?;
    let trace = directory.path().join("trace.jsonl");
    let request = |number| {
        let arrival = number as f64 / 10.0;
        format!(
            "{{\"arrival_s\": {arrival}, \"lane\": \"gateway\", \"priority\": \"bulk\", \"service_s\": 0.3}}\n"
        )
    };
    fs::write(&trace, (0..REQUESTS).map(request).collect::<String>())?;
    let simulate = || -> Result<Command> {
        let mut simulate = Command::new(tools::shaper()?);
        simulate.arg("simulate").arg("--config").arg(&config);
        simulate.arg(&trace);
        Ok(simulate)
    };

    let mut terminal = Terminal::start(simulate()?, Size::CLASSIC)?;
    terminal.wait_for("% of 100000 requests")?;
    let report = terminal.wait_for("100000 requests in")?;
    ensure!(
        !report.contains("% of 100000"),
        "the bar is still there:\n{report}"
    );
    terminal.finish()?;

    let piped = Process::spawn("shaper simulate", &mut simulate()?)?.finish(PATIENCE)?;
    assert_eq!(piped.exit_code()?, 0, "{}", piped.stderr);
    assert_eq!(piped.stderr, "");
    assert!(
        piped.stdout.starts_with("100000 requests in"),
        "{}",
        piped.stdout
    );
    Ok(())
}
