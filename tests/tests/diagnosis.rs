//! Is it us or the gateway? What status, snapshot and metrics say.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use shaper_tests::client::{PythonReport, Running};
use shaper_tests::clock::{Moment, poll_until};
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::script::script;
use shaper_tests::snapshot::Lane;
use shaper_tests::stage::Stage;

/// Within which a slowdown is to be told.
const TOLD_WITHIN: Duration = Duration::from_secs(30);
const USUAL: Duration = Duration::from_millis(200);

/// Calls again and again, on a connection of its own each time.
const CALLS_AGAIN: &str = r#"
while True:
    connection = dial()
    call(connection, label="client")
    connection.close()
"#;

type Caller = Running<PythonReport<()>>;

/// A gateway with a usual service time, and a tenfold one once it is told to be slow.
fn gateway() -> Result<(Gateway, Arc<AtomicBool>)> {
    let slow = Arc::new(AtomicBool::new(false));
    let is_slow = Arc::clone(&slow);
    let gateway = Gateway::builder()
        .listen_v4()?
        .answer_by(move |_| match is_slow.load(Ordering::Relaxed) {
            true => Answer::after(USUAL * 10),
            false => Answer::after(USUAL),
        })
        .start()?;
    Ok((gateway, slow))
}

fn callers(stage: &Stage, gateway: &Gateway, count: usize) -> Result<Vec<Caller>> {
    (0..count)
        .map(|_| script("caller", gateway, CALLS_AGAIN).spawn_in(&stage.default))
        .collect()
}

/// Waits until the lane has a usual first byte to compare with.
fn learnt(controller: &Controller) -> Result<()> {
    poll_until(Duration::from_secs(120), || {
        let lane = controller.lane("gateway").ok()?;
        (lane.first_byte_usual_s > 0.0).then_some(())
    })
    .context("no usual first byte")
}

/// Waits until the controller's log has these words.
fn logged(controller: &Controller, words: &str, patience: Duration) -> Result<()> {
    poll_until(patience, || controller.log().contains(words).then_some(()))
        .with_context(|| format!("{words:?} is not in\n{}", controller.log()))
}

/// The diagnosis is the same in status, snapshot and metrics.
fn shown_everywhere(controller: &Controller, lane: &Lane, words: &str) -> Result<()> {
    let metrics = controller.metrics()?;
    let series = [("lane", "gateway"), ("diagnosis", lane.diagnosis.as_str())];
    assert_eq!(metrics.sum("shaper_diagnosis", &series), 1.0);
    assert_eq!(metrics.sum("shaper_diagnosis", &[("lane", "gateway")]), 1.0);
    let status = controller.command("status", &[])?.stdout;
    assert!(status.contains(&lane.diagnosis), "{status}");
    assert!(status.contains(words), "{status}");
    Ok(())
}

/// A18: a gateway slowed tenfold with slots free is degraded within 30 s, and well again when it is.
#[test]
fn a_gateway_slowed_tenfold_is_told_within_30_seconds() -> Result<()> {
    let stage = Stage::set()?;
    let (gateway, slow) = gateway()?;
    let controller = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(gateway.addresses()).limit(8))?
        .start()?;
    let _callers = callers(&stage, &gateway, 3)?;
    learnt(&controller)?;
    assert_eq!(controller.lane("gateway")?.diagnosis, "ok");

    slow.store(true, Ordering::Relaxed);
    let slowed = Moment::now();
    let lane = poll_until(TOLD_WITHIN, || {
        let lane = controller.lane("gateway").ok()?;
        (lane.diagnosis == "gateway_degraded").then_some(lane)
    })
    .with_context(|| format!("not told: {:?}", controller.lane("gateway")))?;
    println!(
        "told after {:?}: {:?}",
        Moment::now().since(slowed),
        lane.diagnosis_reason
    );
    let reason = lane.diagnosis_reason.clone().context("a reason")?;
    assert!(reason.starts_with("first bytes take"), "{reason}");
    shown_everywhere(&controller, &lane, "Gateway degraded: first bytes take")?;

    logged(
        &controller,
        "the gateway is degraded: first bytes take",
        TOLD_WITHIN,
    )?;

    slow.store(false, Ordering::Relaxed);
    poll_until(TOLD_WITHIN, || {
        (controller.lane("gateway").ok()?.diagnosis == "ok").then_some(())
    })
    .context("not well again")?;
    logged(
        &controller,
        "the gateway does not count as degraded any more",
        TOLD_WITHIN,
    )
}

/// A18: a full queue on a healthy gateway is ours.
#[test]
fn a_full_queue_on_a_healthy_gateway_is_ours() -> Result<()> {
    let stage = Stage::set()?;
    let (gateway, _) = gateway()?;
    let controller = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(gateway.addresses()).limit(2))?
        .start()?;
    let first = callers(&stage, &gateway, 1)?;
    learnt(&controller)?;
    drop(first);
    let _callers = callers(&stage, &gateway, 10)?;
    let lane = controller.wait_until("gateway", |lane| lane.inflight == 2 && lane.queued >= 6)?;
    assert_eq!(lane.diagnosis, "local_queue");
    shown_everywhere(&controller, &lane, "wait on purpose: 2 of 2 slots in use.")?;
    Ok(())
}
