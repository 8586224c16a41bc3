//! A controller that stays attached is followed by another one: what is held stays held, what is in flight stays counted,
//! and no connect goes ungoverned in between.

use std::fs;
use std::net::TcpListener;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use shaper_tests::client::{ProbeReport, Running, finish_all, probe};
use shaper_tests::clock::poll_until;
use shaper_tests::controller::{Controller, ControllerBuilder, Departed};
use shaper_tests::gateway::{Answer, Gateway, Latch};
use shaper_tests::kernel_state::{Maps, attached_under, pins};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::stage::Stage;

const PATIENCE: Duration = Duration::from_secs(30);

/// Longer than TCP waits before it sends a SYN again.
const A_TRY: Duration = Duration::from_millis(1500);

/// A gateway that answers nobody before its latch is open.
fn waiting_for(latch: &Latch) -> Result<Gateway> {
    Gateway::answering(Answer::once_open(latch))
}

fn staying(stage: &Stage, lane: LaneFile) -> Result<ControllerBuilder> {
    Controller::builder(stage)?
        .lane("gateway", lane)?
        .settings("fail_after = \"60s\"")?
        .stays_attached()
}

fn held_connects(gateway: &Gateway) -> LaneFile {
    LaneFile::over(gateway.addresses())
}

/// A client whose call holds the only slot, and others in line behind it, in order.
fn a_queue(
    stage: &Stage,
    controller: &Controller,
    gateway: &Gateway,
    waiters: usize,
) -> Result<Vec<Running<ProbeReport>>> {
    let start =
        |number: usize| probe(gateway.address(), &number.to_string())?.spawn_in(&stage.bulk);
    (0..=waiters)
        .map(|number| {
            let client = start(number)?;
            controller.wait_for("gateway", 1, number)?;
            Ok(client)
        })
        .collect()
}

/// E5, D2: held connects stay held over the end of a controller, and the next one serves them in their order.
fn a_queue_outlives_its_controller(
    lane: impl FnOnce(&Gateway) -> LaneFile,
    end: impl FnOnce(Controller) -> Result<Departed>,
) -> Result<()> {
    const WAITERS: usize = 4;
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = waiting_for(&release)?;
    let controller = staying(&stage, lane(&gateway))?.start()?;
    let mut clients = a_queue(&stage, &controller, &gateway, WAITERS)?;
    let departed = end(controller)?;

    // While nobody is there, a newcomer is held like the others.
    sleep(A_TRY);
    let newcomer = (WAITERS + 1).to_string();
    clients.push(probe(gateway.address(), &newcomer)?.spawn_in(&stage.bulk)?);
    sleep(A_TRY);
    assert_eq!(gateway.tally().requests.len(), 1, "somebody passed");

    let controller = departed.restart()?;
    let lane = controller.lane("gateway")?;
    assert_eq!((lane.inflight, lane.queued), (1, WAITERS + 1));
    assert!(lane.oldest_wait_s >= Some(A_TRY.as_secs_f64()), "{lane:?}");
    release.open();
    for report in finish_all(clients, PATIENCE)? {
        report.answered()?;
    }
    let tally = gateway.tally();
    let order: Vec<_> = (0..=WAITERS + 1).map(|number| number.to_string()).collect();
    assert_eq!(tally.labels(), order);
    assert_eq!(tally.peak_in_service, 1);
    controller.wait_for("gateway", 0, 0)?;
    let kernel = Maps::of(controller.pid())?;
    assert!(kernel.first_lane()?.is_quiet());
    let metrics = controller.metrics()?;
    let drift = metrics.sum("shaper_drift_total", &[]);
    assert_eq!(drift, 0.0, "{}", controller.log());
    let started = metrics.sum("shaper_requests_total", &[]);
    assert_eq!(
        started,
        (WAITERS + 1) as f64,
        "counted once, by who let them go"
    );
    Ok(())
}

/// E5.
#[test]
fn held_connects_stay_held_when_a_controller_is_killed_and_are_served_by_the_next() -> Result<()> {
    a_queue_outlives_its_controller(held_connects, Controller::killed)
}

/// E5: as `systemctl restart` does it.
#[test]
fn held_connects_stay_held_when_a_controller_is_terminated_and_are_served_by_the_next() -> Result<()>
{
    a_queue_outlives_its_controller(held_connects, Controller::terminated)
}

/// E5, A10: the same for requests on connections that are up.
#[test]
fn held_requests_stay_held_when_a_controller_is_killed_and_are_served_by_the_next() -> Result<()> {
    let requests =
        |gateway: &Gateway| LaneFile::over(gateway.addresses()).connect_hold(Duration::ZERO);
    a_queue_outlives_its_controller(requests, Controller::killed)
}

/// C6, E5: a paused lane stays paused, waiters and all.
#[test]
fn a_paused_lane_stays_paused_over_a_kill() -> Result<()> {
    const PAUSE: Duration = Duration::from_secs(8);
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::at_once())?;
    let controller = staying(&stage, held_connects(&gateway).limit(4))?.start()?;
    let paused = controller.command("pause", &["gateway", "--for", "8s"])?;
    assert_eq!(paused.exit_code()?, 0, "{}", paused.stderr);
    let begun = shaper_tests::clock::Moment::now();
    let waiters = (0..2)
        .map(|_| probe(gateway.address(), "waiter")?.spawn_in(&stage.bulk))
        .collect::<Result<Vec<_>>>()?;
    controller.wait_for("gateway", 0, 2)?;
    let controller = controller.killed()?.restart()?;
    let newcomer = probe(gateway.address(), "newcomer")?.spawn_in(&stage.interactive)?;
    let lane = controller.wait_for("gateway", 0, 3)?;
    assert_eq!(lane.diagnosis, "paused");
    for report in finish_all(waiters.into_iter().chain([newcomer]), PATIENCE)? {
        let waited = report.answered()?.connected.since(begun);
        assert!(waited >= PAUSE - Duration::from_millis(500), "{waited:?}");
    }
    Ok(())
}

/// E5, A14: lanes are known by their names. One that is not configured any more lets its waiters go, a new one has
/// nobody's counts.
#[test]
fn a_lane_that_is_gone_lets_its_waiters_go_and_another_keeps_its_own() -> Result<()> {
    let stage = Stage::set()?;
    let release = Latch::shut();
    let (first, second) = (waiting_for(&release)?, waiting_for(&release)?);
    let controller = Controller::builder(&stage)?
        .lane("a-first", held_connects(&first))?
        .lane("b-second", held_connects(&second))?
        .settings("fail_after = \"60s\"")?
        .stays_attached()?
        .start()?;
    let mut clients = Vec::new();
    for (gateway, lane) in [(&first, "a-first"), (&second, "b-second")] {
        for queued in 0..2 {
            clients.push(probe(gateway.address(), lane)?.spawn_in(&stage.bulk)?);
            controller.wait_for(lane, 1, queued)?;
        }
    }
    let lanes = controller.config().join("lanes.d");
    let departed = controller.killed()?;
    fs::rename(lanes.join("a-first.toml"), lanes.join("c-third.toml"))?;

    let controller = departed.restart()?;
    poll_until(PATIENCE, || {
        (first.tally().requests.len() == 2).then_some(())
    })
    .context("the waiter of the lane that is gone goes on")?;
    let kept = controller.lane("b-second")?;
    assert_eq!((kept.inflight, kept.queued), (1, 1));
    assert_eq!(second.tally().requests.len(), 1);
    assert!(controller.lane("c-third")?.is_quiet());
    // The same address is governed again, by the new lane.
    clients.push(probe(first.address(), "third")?.spawn_in(&stage.bulk)?);
    controller.wait_for("c-third", 1, 0)?;
    release.open();
    for report in finish_all(clients, PATIENCE)? {
        report.answered()?;
    }
    Ok(())
}

/// A start that fails changes nothing: what is held stays held, for the next one that succeeds.
#[test]
fn a_start_that_fails_changes_nothing() -> Result<()> {
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = waiting_for(&release)?;
    let controller = staying(&stage, held_connects(&gateway))?.start()?;
    let clients = a_queue(&stage, &controller, &gateway, 2)?;
    let departed = controller.killed()?;
    let before = pins(departed.instance())?;
    assert!(!before.is_empty());
    let taken = TcpListener::bind(departed.http())?;
    let failed = departed.run_to_its_end()?;
    assert_eq!(failed.exit_code()?, 1, "{}", failed.stderr);
    assert!(failed.stderr.contains("--listen"), "{}", failed.stderr);
    assert_eq!(pins(departed.instance())?, before);
    sleep(A_TRY);
    assert_eq!(gateway.tally().requests.len(), 1, "somebody passed");
    drop(taken);
    let controller = departed.restart()?;
    controller.wait_for("gateway", 1, 2)?;
    release.open();
    for report in finish_all(clients, PATIENCE)? {
        report.answered()?;
    }
    Ok(())
}

/// Maps of another ABI cannot be adopted: their gates open, what they held goes on, and the new programs take their place.
#[test]
fn maps_of_another_abi_are_drained_and_replaced() -> Result<()> {
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = waiting_for(&release)?;
    let controller = staying(&stage, held_connects(&gateway))?.start()?;
    let clients = a_queue(&stage, &controller, &gateway, 2)?;
    let departed = controller.killed()?;
    let before = pins(departed.instance())?;
    let ours = before.first().context("something is pinned")?;
    fs::rename(ours, ours.with_file_name("abi-1"))?;

    let controller = departed.restart()?;
    poll_until(PATIENCE, || {
        (gateway.tally().requests.len() == 3).then_some(())
    })
    .context("what was held goes on")?;
    controller.wait_for_log("is replaced")?;
    assert_eq!(pins(controller.instance())?, before);
    let attached = attached_under(stage.cgroups().path())?;
    assert_eq!(attached.len(), 3 * 8, "{attached:?}");
    let governed = probe(gateway.address(), "governed")?.spawn_in(&stage.bulk)?;
    controller.wait_for("gateway", 1, 0)?;
    release.open();
    for report in finish_all(clients.into_iter().chain([governed]), PATIENCE)? {
        report.answered()?;
    }
    Ok(())
}

/// At a terminal, a controller takes over like any other, and takes everything with it.
#[test]
fn one_that_detaches_on_exit_takes_over_and_leaves_nothing() -> Result<()> {
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = waiting_for(&release)?;
    let controller = staying(&stage, held_connects(&gateway))?.start()?;
    let clients = a_queue(&stage, &controller, &gateway, 2)?;
    let instance = controller.instance().to_owned();
    let controller = controller
        .killed()?
        .successor()?
        .goes_with_its_end()?
        .start()?;
    controller.wait_for("gateway", 1, 2)?;
    assert_eq!(pins(&instance)?, Vec::<std::path::PathBuf>::new());
    controller.kill9()?;
    poll_until(PATIENCE, || {
        (gateway.tally().requests.len() == 3).then_some(())
    })
    .context("what was held goes on")?;
    assert_eq!(
        attached_under(stage.cgroups().path())?,
        Vec::<String>::new()
    );
    release.open();
    for report in finish_all(clients, PATIENCE)? {
        report.answered()?;
    }
    Ok(())
}
