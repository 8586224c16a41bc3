//! Caps besides the limit: of accounts and of a class.

use std::time::Duration;

use anyhow::Result;
use nix::errno::Errno;
use shaper_tests::cgroup::Cgroup;
use shaper_tests::client::{ProbeReport, Running, finish_all, probe};
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway, Latch};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::stage::Stage;

const PATIENCE: Duration = Duration::from_secs(10);
const AT_ONCE: Duration = Duration::from_millis(300);

fn call(
    gateway: &Gateway,
    label: &str,
    count: usize,
    cgroup: &Cgroup,
) -> Result<Vec<Running<ProbeReport>>> {
    (0..count)
        .map(|_| probe(gateway.address(), label)?.spawn_in(cgroup))
        .collect()
}

/// B2, B3: an account has at most its own cap in flight, by name or by default, in all classes together; others go on.
#[test]
fn an_account_at_its_cap_waits_while_others_go_on() -> Result<()> {
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::answering(Answer::once_open(&release))?;
    let controller = Controller::builder(&stage)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses())
                .limit(10)
                .line("[account]\nmax_inflight = 1\noverrides = { acme = 2 }"),
        )?
        .start()?;
    let group = |name| stage.cgroups().group(name);

    let mut clients = call(&gateway, "acme", 5, &group("bulk/acme")?)?;
    controller.wait_for("gateway", 2, 3)?;
    clients.extend(call(&gateway, "other", 3, &group("bulk/other")?)?);
    controller.wait_for("gateway", 3, 5)?;
    clients.extend(call(&gateway, "third", 2, &group("default/third")?)?);
    controller.wait_for("gateway", 4, 6)?;
    // Work in the class cgroup itself belongs to no account.
    clients.extend(call(&gateway, "none", 3, &stage.bulk)?);
    controller.wait_for("gateway", 7, 6)?;
    // A process below an account's cgroup is the account's.
    clients.extend(call(&gateway, "acme", 1, &group("bulk/acme/worker")?)?);
    controller.wait_for("gateway", 7, 7)?;

    release.open();
    for report in finish_all(clients, PATIENCE)? {
        report.answered()?;
    }
    controller.wait_for("gateway", 0, 0)?;
    let tally = gateway.tally();
    let peak = |account| tally.peak_of(|request| request.label.as_deref() == Some(account));
    assert_eq!(
        ["acme", "other", "third", "none"].map(peak),
        [2, 1, 1, 3],
        "the peaks at the gateway; {tally:?}"
    );
    assert_eq!(tally.served(), 14);
    Ok(())
}

/// B2, D3: an account that shaper has not seen before takes a free slot also in a lane in which nobody may wait; and where
/// nobody may wait, an account at its cap is refused at once.
#[test]
fn a_new_account_needs_no_place_in_the_queue() -> Result<()> {
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::answering(Answer::once_open(&release))?;
    let controller = Controller::builder(&stage)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses())
                .limit(4)
                .queue(0)
                .line("[account]\nmax_inflight = 1"),
        )?
        .start()?;
    let acme = stage.cgroups().group("bulk/acme")?;

    let mut clients = call(&gateway, "acme", 1, &acme)?;
    controller.wait_for("gateway", 1, 0)?;
    for report in finish_all(call(&gateway, "acme", 2, &acme)?, PATIENCE)? {
        assert!(
            matches!(report, ProbeReport::Failed { errno, .. } if errno == Errno::ECONNREFUSED as i32),
            "{report:?}"
        );
    }
    let other = stage.cgroups().group("bulk/other")?;
    clients.extend(call(&gateway, "other", 1, &other)?);
    controller.wait_for("gateway", 2, 0)?;
    release.open();
    for report in finish_all(clients, PATIENCE)? {
        report.answered()?;
    }
    Ok(())
}

/// B4: what a capped class may not use is there for the others.
#[test]
fn slots_that_bulk_may_not_use_serve_others_at_once() -> Result<()> {
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::answering(Answer::once_open(&release))?;
    let controller = Controller::builder(&stage)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses())
                .limit(3)
                .line("[class.bulk]\nmax_inflight = 1"),
        )?
        .start()?;

    let bulk = call(&gateway, "bulk", 4, &stage.bulk)?;
    controller.wait_for("gateway", 1, 3)?;
    let others = call(&gateway, "default", 2, &stage.default)?;
    controller.wait_for("gateway", 3, 3)?;
    release.open();
    for report in finish_all(others, PATIENCE)? {
        let times = report.answered()?;
        let held = times.connected.since(times.started);
        assert!(held < AT_ONCE, "a default connect was held {held:?}");
    }
    for report in finish_all(bulk, PATIENCE)? {
        report.answered()?;
    }
    let tally = gateway.tally();
    let of_bulk = tally.peak_of(|request| request.label.as_deref() == Some("bulk"));
    assert_eq!((of_bulk, tally.peak_in_service), (1, 3), "{tally:?}");
    controller.wait_for("gateway", 0, 0)?;
    Ok(())
}
