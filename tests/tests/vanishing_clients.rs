//! Clients that die: what they held or waited for comes back, however they went.

use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use shaper_tests::client::{CurlOutcome, curl, probe};
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway, Latch};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::stage::Stage;

const PATIENCE: Duration = Duration::from_secs(10);

/// A20, D4, E4: a process that dies gives its slot back, and the next waiter gets it.
#[test]
fn a_client_killed_while_it_holds_a_slot_gives_it_to_the_next() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::builder()
        .listen_v4()?
        .answer_by(|request| match request.label.as_deref() {
            Some("killed") => Answer::never(),
            _ => Answer::at_once(),
        })
        .start()?;
    let controller = Controller::builder(&stage)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses())
                .limit(1)
                .line("abort_hold = \"0s\""),
        )?
        .start()?;

    let killed = curl(&gateway.url(), "killed").spawn_in(&stage.bulk)?;
    controller.wait_for("gateway", 1, 0)?;
    let next = curl(&gateway.url(), "next").spawn_in(&stage.bulk)?;
    controller.wait_for("gateway", 1, 1)?;
    killed.kill9()?;

    assert_eq!(next.finish(PATIENCE)?.outcome, CurlOutcome::answered());
    controller.wait_for("gateway", 0, 0)?;
    assert_eq!(gateway.tally().accepted, 2);
    Ok(())
}

/// A9, D5: a client that leaves while queued never reaches the gateway, never takes a slot, and leaves nothing behind.
#[test]
fn a_client_killed_while_it_waits_never_reaches_the_gateway() -> Result<()> {
    // Longer than the kernel takes to resend a SYN, should there be one to resend.
    const QUIET: Duration = Duration::from_secs(2);
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::answering(Answer::once_open(&release))?;
    let controller = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(gateway.addresses()).limit(1))?
        .start()?;

    let holder = curl(&gateway.url(), "holder").spawn_in(&stage.bulk)?;
    controller.wait_for("gateway", 1, 0)?;
    let killed = probe(gateway.address(), "killed")?.spawn_in(&stage.bulk)?;
    controller.wait_for("gateway", 1, 1)?;
    killed.kill9()?;
    controller.wait_for("gateway", 1, 0)?;

    release.open();
    assert_eq!(holder.finish(PATIENCE)?.outcome, CurlOutcome::answered());
    controller.wait_for("gateway", 0, 0)?;
    sleep(QUIET);
    let tally = gateway.tally();
    assert_eq!((tally.accepted, tally.requests.len()), (1, 1), "{tally:?}");
    assert!(controller.lane("gateway")?.is_quiet());
    Ok(())
}
