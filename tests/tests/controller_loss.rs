//! The controller is killed while connects are held: `on_controller_loss` says what becomes of them.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use shaper_tests::client::{ProbeReport, Running, finish_all, probe};
use shaper_tests::clock::Moment;
use shaper_tests::controller::{Controller, Departed};
use shaper_tests::gateway::{Answer, Gateway, Latch};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::stage::{Scale, Stage};

const WAITERS: usize = 20;
/// Its default.
const CONNECT_HOLD: Duration = Duration::from_secs(4);
/// Its default.
const FAIL_AFTER: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(60);

struct Scene {
    stage: Stage,
    gateway: Gateway,
    release: Latch,
    clients: Vec<Running<ProbeReport>>,
    departed: Departed,
    killed: Moment,
}

/// Twenty connects are held behind one that is open, for `held`, when the controller is killed.
fn killed_with_twenty_held(connect_hold: Duration, on_loss: &str, held: Duration) -> Result<Scene> {
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gated = release.clone();
    let gateway = Gateway::builder()
        .listen_v4()?
        .answer_by(move |request| match request.label.as_deref() {
            Some("holder") => Answer::once_open(&gated),
            _ => Answer::at_once(),
        })
        .start()?;
    let controller = Controller::builder(&stage)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses()).connect_hold(connect_hold),
        )?
        .settings(&format!("on_controller_loss = \"{on_loss}\""))?
        .stays_attached()?
        .start()?;
    let mut clients = vec![probe(gateway.address(), "holder")?.spawn_in(&stage.bulk)?];
    controller.wait_for("gateway", 1, 0)?;
    for number in 0..WAITERS {
        let label = format!("{number:02}");
        clients.push(probe(gateway.address(), &label)?.spawn_in(&stage.bulk)?);
        controller.wait_for("gateway", 1, number + 1)?;
    }
    sleep(held);
    let departed = controller.killed()?;
    Ok(Scene {
        stage,
        gateway,
        release,
        clients,
        departed,
        killed: Moment::now(),
    })
}

/// With `open`, everything goes on when the controller has been gone for `fail_after`, and soon after that.
fn all_go_on(connect_hold: Duration, held: Duration) -> Result<()> {
    let mut scene = killed_with_twenty_held(connect_hold, "open", held)?;
    let holder = scene.clients.remove(0);
    let mut last = Duration::ZERO;
    for report in finish_all(scene.clients, PATIENCE)? {
        let times = report.answered()?;
        let waited = times.answered.since(scene.killed);
        assert!(
            waited + Duration::from_secs(1) > FAIL_AFTER,
            "{waited:?}: too early"
        );
        last = last.max(waited);
    }
    println!(
        "connect_hold {connect_hold:?}, held {held:?}: the last went on {last:?} after the kill"
    );
    let slack = Scale::asked().pick(Duration::from_secs(3), Duration::from_secs(10));
    assert!(last <= FAIL_AFTER + slack, "{last:?}");
    scene.release.open();
    holder.finish(PATIENCE)?.answered()?;
    drop(scene.stage);
    Ok(())
}

/// A controller that is gone holds nobody up: connects that were held for a moment.
#[test]
fn with_open_connects_held_for_a_moment_go_on_after_fail_after() -> Result<()> {
    all_go_on(CONNECT_HOLD, Duration::ZERO)
}

/// The same for connects that have been let through since, and whose requests are held.
#[test]
fn with_open_requests_held_for_long_go_on_after_fail_after() -> Result<()> {
    all_go_on(Duration::from_millis(500), Duration::from_secs(9))
}

/// With `closed`, everything stays held for as long as it takes, and is served in order when the controller is back.
#[test]
fn with_closed_all_stay_held_and_are_served_in_order_by_the_next_controller() -> Result<()> {
    let away = FAIL_AFTER + Scale::asked().pick(Duration::from_secs(30), Duration::from_secs(4));
    let scene = killed_with_twenty_held(CONNECT_HOLD, "closed", Duration::ZERO)?;
    sleep(away);
    assert_eq!(scene.gateway.tally().requests.len(), 1, "somebody passed");
    let newcomer = probe(scene.gateway.address(), "newcomer")?.spawn_in(&scene.stage.bulk)?;
    sleep(Duration::from_secs(2));
    let controller = scene.departed.restart()?;
    controller.wait_for("gateway", 1, WAITERS + 1)?;
    scene.release.open();
    for report in finish_all(scene.clients.into_iter().chain([newcomer]), PATIENCE)? {
        report.answered()?;
    }
    let tally = scene.gateway.tally();
    let mut order: Vec<_> = (0..WAITERS).map(|number| format!("{number:02}")).collect();
    order.insert(0, "holder".to_owned());
    order.push("newcomer".to_owned());
    assert_eq!(tally.labels(), order);
    assert_eq!(tally.peak_in_service, 1);
    Ok(())
}
