//! The controller comes and goes; the host's traffic stays.

use std::time::Duration;

use anyhow::Result;
use nix::sys::signal::Signal;
use shaper_tests::client::{finish_all, probe};
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway};
use shaper_tests::kernel_state::{LoadedPrograms, attached_under};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::stage::Stage;

/// TCP's next try of a SYN is at most a few seconds away.
const PATIENCE: Duration = Duration::from_secs(20);

/// Five connects are held behind one that is open when `end` ends the controller.
fn every_held_connect_goes_on_after(end: impl FnOnce(Controller) -> Result<()>) -> Result<()> {
    const WAITERS: usize = 5;
    let stage = Stage::set()?;
    let before = LoadedPrograms::now()?;
    let gateway = Gateway::builder()
        .listen_v4()?
        .answer_by(|request| match request.label.as_deref() {
            Some("holder") => Answer::never(),
            _ => Answer::at_once(),
        })
        .start()?;
    let controller = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(gateway.addresses()).limit(1))?
        .start()?;
    assert!(
        !attached_under(stage.cgroups().path())?.is_empty(),
        "a running controller has attached its programs"
    );

    let mut holder = probe(gateway.address(), "holder")?.spawn_in(&stage.bulk)?;
    controller.wait_for("gateway", 1, 0)?;
    let mut waiters = Vec::new();
    for _ in 0..WAITERS {
        waiters.push(probe(gateway.address(), "waiter")?.spawn_in(&stage.bulk)?);
    }
    controller.wait_for("gateway", 1, WAITERS)?;
    end(controller)?;

    for report in finish_all(waiters, PATIENCE)? {
        report.answered()?;
    }
    assert!(
        holder.still_runs()?,
        "the connection that was open stays open"
    );
    assert_eq!(gateway.tally().served(), WAITERS);
    before.ensure_nothing_left(stage.cgroups())
}

/// A clean stop lets every held connect go and leaves nothing in the kernel.
#[test]
fn every_held_connect_goes_on_when_the_controller_is_terminated() -> Result<()> {
    every_held_connect_goes_on_after(|controller| controller.stop_by(Signal::SIGTERM).map(drop))
}

/// The same by Ctrl-C.
#[test]
fn every_held_connect_goes_on_when_the_controller_is_interrupted() -> Result<()> {
    every_held_connect_goes_on_after(|controller| controller.stop_by(Signal::SIGINT).map(drop))
}

/// The kernel takes a killed controller's programs away, and TCP's next try of each SYN goes through: the host's
/// network does not depend on the controller.
#[test]
fn every_held_connect_goes_on_when_the_controller_is_killed() -> Result<()> {
    every_held_connect_goes_on_after(Controller::kill9)
}
