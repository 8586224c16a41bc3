//! Who goes next: classes, the interactive reserve, aging, and lanes that do not know of each other.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use shaper_tests::client::{finish_all, probe};
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway, Latch};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::stage::Stage;

const PATIENCE: Duration = Duration::from_secs(10);

/// Longer than a connect that nobody holds takes on a busy machine, and shorter than any hold in here.
const AT_ONCE: Duration = Duration::from_millis(300);

/// A gateway that answers interactive work at once and all other when the latch is open.
fn patient_with_interactive(release: &Latch) -> Result<Gateway> {
    let release = release.clone();
    Gateway::builder()
        .listen_v4()?
        .answer_by(move |request| match request.label.as_deref() {
            Some("interactive") => Answer::at_once(),
            _ => Answer::once_open(&release),
        })
        .start()
}

/// A5: a child has the class of the cgroup it is in, the deepest class cgroup decides, and what is in none is default.
#[test]
fn the_deepest_class_cgroup_decides_and_untagged_work_is_default() -> Result<()> {
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::answering(Answer::once_open(&release))?;
    let group = |name| stage.cgroups().group(name);
    let controller = Controller::builder(&stage)?
        .settings("scope = \"host\"")?
        .class("interactive", &group("bulk/urgent")?)?
        .class("bulk", &group("bulk/urgent/job/batch")?)?
        .lane("gateway", LaneFile::over(gateway.addresses()).limit(20))?
        .start()?;

    let mut clients = Vec::new();
    let mut expected = [("interactive", 0), ("default", 0), ("bulk", 0)];
    for (cgroup, class) in [
        ("outside", "default"),
        ("outside/deeper", "default"),
        ("default/acme/worker", "default"),
        ("interactive", "interactive"),
        ("bulk/acme", "bulk"),
        ("bulk/urgent", "interactive"),
        ("bulk/urgent/job", "interactive"),
        ("bulk/urgent/job/batch", "bulk"),
        ("bulk/urgent/job/batch/worker", "bulk"),
    ] {
        clients.push(probe(gateway.address(), cgroup)?.spawn_in(&group(cgroup)?)?);
        let lane = controller.wait_for("gateway", clients.len(), 0)?;
        for (name, count) in &mut expected {
            *count += usize::from(*name == class);
            assert_eq!(
                lane.inflight_by_priority[*name], *count,
                "{name} after a client in {cgroup}: {lane:?}"
            );
        }
    }
    release.open();
    for report in finish_all(clients, PATIENCE)? {
        report.answered()?;
    }
    Ok(())
}

/// A4: however much bulk work there is, the reserved slot stays free, and interactive work finds it free.
#[test]
fn a_bulk_flood_never_takes_the_reserved_slot_and_an_interactive_client_gets_it_at_once()
-> Result<()> {
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = patient_with_interactive(&release)?;
    let controller = Controller::builder(&stage)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses())
                .limit(3)
                .line("interactive_reserve = 1"),
        )?
        .start()?;

    let flood = (1..=8)
        .map(|number| probe(gateway.address(), &format!("bulk {number}"))?.spawn_in(&stage.bulk))
        .collect::<Result<Vec<_>>>()?;
    controller.wait_for("gateway", 2, 6)?;
    for _ in 0..3 {
        let times = probe(gateway.address(), "interactive")?
            .spawn_in(&stage.interactive)?
            .finish(PATIENCE)?
            .answered()?;
        let held = times.connected.since(times.started);
        assert!(held < AT_ONCE, "an interactive connect was held {held:?}");
        // What it leaves behind is the reserve again.
        controller.wait_for("gateway", 2, 6)?;
    }
    release.open();
    for report in finish_all(flood, PATIENCE)? {
        report.answered()?;
    }
    let tally = gateway.tally();
    let of_bulk = |label: Option<&str>| label.is_some_and(|label| label.starts_with("bulk"));
    assert_eq!(
        (
            tally.peak_of(|request| of_bulk(request.label.as_deref())),
            tally.peak_in_service
        ),
        (2, 3),
        "the peaks of bulk and of all work at the gateway: {tally:?}"
    );
    controller.wait_for("gateway", 0, 0)?;
    Ok(())
}

/// A6, A4: a bulk waiter that has waited for the aging time goes before default work that has just come. It never gets
/// the reserve, however long it waits.
#[test]
fn an_aged_bulk_waiter_passes_fresh_default_work_and_leaves_the_reserve_alone() -> Result<()> {
    const AGING: Duration = Duration::from_secs(1);
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = patient_with_interactive(&release)?;
    let controller = Controller::builder(&stage)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses())
                .limit(2)
                .line("interactive_reserve = 1")
                .line("aging = \"1s\""),
        )?
        .start()?;

    let call = |label: &str, cgroup| probe(gateway.address(), label)?.spawn_in(cgroup);
    let mut clients = vec![call("holder", &stage.default)?];
    controller.wait_for("gateway", 1, 0)?;
    clients.push(call("aged bulk", &stage.bulk)?);
    controller.wait_for("gateway", 1, 1)?;
    // It counts as interactive now, as far as order goes.
    sleep(AGING * 2 + AGING / 4);
    clients.push(call("fresh default", &stage.default)?);
    controller.wait_for("gateway", 1, 2)?;
    let times = call("interactive", &stage.interactive)?
        .finish(PATIENCE)?
        .answered()?;
    let held = times.connected.since(times.started);
    assert!(held < AT_ONCE, "an interactive connect was held {held:?}");

    release.open();
    for report in finish_all(clients, PATIENCE)? {
        report.answered()?;
    }
    assert_eq!(
        gateway.tally().labels(),
        ["holder", "interactive", "aged bulk", "fresh default"],
        "the order in which requests reached the gateway"
    );
    Ok(())
}

/// A6: before the aging time is over, order is by class.
#[test]
fn a_bulk_waiter_that_has_not_aged_lets_default_work_pass() -> Result<()> {
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::answering(Answer::once_open(&release))?;
    let controller = Controller::builder(&stage)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses())
                .limit(1)
                .line("aging = \"30s\""),
        )?
        .start()?;

    let mut clients = Vec::new();
    for (label, cgroup) in [
        ("holder", &stage.bulk),
        ("bulk", &stage.bulk),
        ("default", &stage.default),
        ("interactive", &stage.interactive),
    ] {
        clients.push(probe(gateway.address(), label)?.spawn_in(cgroup)?);
        controller.wait_for("gateway", 1, clients.len() - 1)?;
    }
    release.open();
    for report in finish_all(clients, PATIENCE)? {
        report.answered()?;
    }
    assert_eq!(
        gateway.tally().labels(),
        ["holder", "interactive", "default", "bulk"]
    );
    Ok(())
}

/// D6: the queue of one gateway is not in the way of another.
#[test]
fn a_full_lane_does_not_hold_the_clients_of_another() -> Result<()> {
    let stage = Stage::set()?;
    let full = Gateway::answering(Answer::never())?;
    let free = Gateway::answering(Answer::at_once())?;
    let controller = Controller::builder(&stage)?
        .lane("full", LaneFile::over(full.addresses()).limit(1))?
        .lane("free", LaneFile::over(free.addresses()).limit(1))?
        .start()?;

    let _waiting = (1..=4)
        .map(|number| probe(full.address(), &number.to_string())?.spawn_in(&stage.interactive))
        .collect::<Result<Vec<_>>>()?;
    controller.wait_for("full", 1, 3)?;
    for number in 1..=5 {
        let times = probe(free.address(), &number.to_string())?
            .spawn_in(&stage.bulk)?
            .finish(PATIENCE)?
            .answered()?;
        let held = times.connected.since(times.started);
        assert!(
            held < AT_ONCE,
            "a connect to the free lane was held {held:?}"
        );
    }
    controller.wait_for("free", 0, 0)?;
    controller.wait_for("full", 1, 3)?;
    assert_eq!(full.tally().accepted, 1);
    Ok(())
}
