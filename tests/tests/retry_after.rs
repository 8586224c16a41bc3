//! A gateway that asks for less: pauses by `Retry-After`, adaptation, and both over a restart.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use shaper_tests::client::{CurlReport, Running, curl, finish_all};
use shaper_tests::clock::{Moment, poll_until};
use shaper_tests::controller::{Controller, ControllerBuilder};
use shaper_tests::gateway::{Answer, Gateway, Outcome};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::stage::{Scale, Stage};

const PATIENCE: Duration = Duration::from_secs(60);
/// One start per interval after the pause.
const INTERVAL: Duration = Duration::from_millis(500);
const PER_MINUTE: u32 = 120;
/// What one start may be sooner at the gateway than its own interval, because the one before was late.
const JITTER: Duration = Duration::from_millis(150);

/// Turns the first request away, and serves the others.
fn gateway(retry_after: Duration) -> Result<Gateway> {
    let seen = AtomicUsize::new(0);
    Gateway::builder()
        .listen_v4()?
        .answer_by(move |_| match seen.fetch_add(1, Ordering::Relaxed) {
            0 => Answer::too_many_requests(retry_after),
            _ => Answer::at_once(),
        })
        .start()
}

fn controller(stage: &Stage, gateway: &Gateway, state: &Path) -> Result<ControllerBuilder> {
    let pace = format!("[pace]\nmode = \"even\"\nper_minute = {PER_MINUTE}");
    Controller::builder(stage)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses()).limit(10).line(&pace),
        )?
        .state_at(state, "retry-after-test")
}

fn clients(stage: &Stage, gateway: &Gateway, count: usize) -> Result<Vec<Running<CurlReport>>> {
    (0..count)
        .map(|_| curl(&gateway.url(), "client").spawn_in(&stage.default))
        .collect()
}

/// The first line of the controller's log that has these words.
fn logged(controller: &Controller, words: &str) -> Result<String> {
    let line = || {
        let log = controller.log();
        let line = log.lines().find(|line| line.contains(words))?;
        Some(line.to_owned())
    };
    poll_until(PATIENCE, line)
        .with_context(|| format!("no line with {words:?} in\n{}", controller.log()))
}

/// C6, C10: nothing for the time that the gateway named, then one start per interval. With `restart`, another controller
/// takes over in the pause.
fn nothing_is_sent_then_starts_are_spaced(restart: bool) -> Result<()> {
    let retry_after = Duration::from_secs(Scale::asked().pick(7, 4));
    let stage = Stage::set()?;
    let gateway = gateway(retry_after)?;
    let state = tempfile::tempdir()?;
    let mut running = controller(&stage, &gateway, state.path())?.start()?;

    finish_all(clients(&stage, &gateway, 1)?, PATIENCE)?;
    let lane = running.wait_until("gateway", |lane| lane.diagnosis == "paused")?;
    assert_eq!(lane.gateway_errors_5m.len(), 1, "{lane:?}");
    let length = format!("nothing starts for {}.0s, until ", retry_after.as_secs());
    let line = logged(&running, "paused by its gateway (Retry-After)")?;
    for part in ["WARN", &length, "`retry_after_max` = ", "lane=\"gateway\""] {
        assert!(line.contains(part), "{part:?} is not in\n{line}");
    }
    if restart {
        running.stop()?;
        running = controller(&stage, &gateway, state.path())?.start()?;
        assert_eq!(running.lane("gateway")?.diagnosis, "paused");
    }
    let held = clients(&stage, &gateway, 4)?;
    finish_all(held, PATIENCE)?;

    let requests = gateway.tally().requests;
    let turned_away = requests
        .iter()
        .find(|request| request.outcome == Outcome::TurnedAway)
        .and_then(|request| request.answered)
        .context("the first request was turned away")?;
    let starts: Vec<Moment> = requests[1..]
        .iter()
        .map(|request| request.first_byte)
        .collect();
    assert_eq!(starts.len(), 4, "{}", running.log());
    let pause = starts[0].since(turned_away);
    println!("restart {restart}: nothing for {pause:?}, asked for {retry_after:?}");
    // The answer was on its way for a moment when the pause began.
    assert!(
        pause + Duration::from_millis(20) >= retry_after,
        "{pause:?}"
    );
    assert!(pause <= retry_after * 3, "{pause:?}");
    logged(
        &running,
        "the pause by its gateway (Retry-After) is over; starts are spaced",
    )?;
    let gaps: Vec<Duration> = starts
        .windows(2)
        .map(|pair| pair[1].since(pair[0]))
        .collect();
    println!("gaps: {gaps:?}");
    assert!(gaps.iter().all(|gap| *gap + JITTER >= INTERVAL), "{gaps:?}");
    Ok(())
}

/// C6, C10.
#[test]
fn nothing_is_sent_until_the_gateway_said_and_then_not_all_at_once() -> Result<()> {
    nothing_is_sent_then_starts_are_spaced(false)
}

/// C6, C10, E5.
#[test]
fn a_pause_goes_on_over_a_restart() -> Result<()> {
    nothing_is_sent_then_starts_are_spaced(true)
}

/// C7: a refusal lowers the limit, and the next controller goes on with that; a damaged file is set aside, and no more.
#[test]
fn a_lowered_limit_survives_a_kill_and_a_damaged_file_does_not_matter() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::throttled())?;
    let state = tempfile::tempdir()?;
    let start = || {
        Controller::builder(&stage)?
            .lane(
                "gateway",
                LaneFile::over(gateway.addresses())
                    .limit(10)
                    .line("[adaptive]"),
            )?
            .state_at(state.path(), "adaptive-test")?
            .start()
    };
    let controller = start()?;
    finish_all(clients(&stage, &gateway, 1)?, PATIENCE)?;
    controller.wait_until("gateway", |lane| lane.effective_limit == 7)?;
    let line = logged(
        &controller,
        "limit lowered from 10 to 7, 70% of what is configured: the gateway answered 429",
    )?;
    assert!(line.contains("lane=\"gateway\""), "{line}");
    let file = state.path().join("adaptive-test/lanes.json");
    poll_until(PATIENCE, || file.exists().then_some(())).context("no file")?;
    controller.kill9()?;
    let controller = start()?;
    assert_eq!(controller.lane("gateway")?.effective_limit, 7);
    controller.stop()?;

    std::fs::write(&file, "{\"version\": 1, \"lanes\": {\"gat")?;
    let controller = start()?;
    assert_eq!(controller.lane("gateway")?.effective_limit, 10);
    assert!(file.with_extension("json.damaged").exists());
    assert!(
        controller.log().contains("lanes.json.damaged"),
        "{}",
        controller.log()
    );
    Ok(())
}
