//! A controller leaves the host as it found it: programs, links, maps, pins, cgroups, control files.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use anyhow::Result;
use nix::sys::signal::Signal;
use shaper_tests::client::probe;
use shaper_tests::controller::{Controller, ControllerBuilder};
use shaper_tests::gateway::{Answer, Gateway};
use shaper_tests::host_listing::HostListing;
use shaper_tests::lane_file::LaneFile;
use shaper_tests::stage::Stage;

const PATIENCE: Duration = Duration::from_secs(20);

/// One that makes a class cgroup, with a parent, and has its control socket where it belongs.
fn builder(stage: &Stage, gateway: &Gateway) -> Result<ControllerBuilder> {
    let name = format!("{}-made/inner", stage.bulk.relative());
    Controller::builder(stage)?
        .class_pattern("bulk", &name)?
        .lane("gateway", LaneFile::over(gateway.addresses()))?
        .default_control()
}

/// A lane with one call in flight and one held.
fn at_work(stage: &Stage, gateway: &Gateway, controller: &Controller) -> Result<()> {
    let made = HostListing::now()?;
    assert!(
        !made.with("made/inner").is_empty(),
        "the class cgroup is made"
    );
    assert!(
        !made.with(controller.instance()).is_empty(),
        "control files"
    );
    let open = probe(gateway.address(), "open")?.spawn_in(&stage.bulk)?;
    controller.wait_for("gateway", 1, 0)?;
    let held = probe(gateway.address(), "held")?.spawn_in(&stage.bulk)?;
    controller.wait_for("gateway", 1, 1)?;
    for client in [open, held] {
        client.kill9()?;
    }
    Ok(())
}

/// After a clean end at a terminal.
#[test]
fn a_clean_end_leaves_the_host_as_it_was() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::never())?;
    let before = HostListing::at_rest()?;
    let controller = builder(&stage, &gateway)?.start()?;
    at_work(&stage, &gateway, &controller)?;
    controller.stop_by(Signal::SIGINT)?;
    before.ensure_unchanged()
}

/// After a clean end as under a service manager, and `shaper detach`.
#[test]
fn an_end_that_stays_attached_and_a_detach_leave_the_host_as_it_was() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::never())?;
    // The bpf file system is mounted by the first that needs it, and stays mounted.
    drop(builder(&stage, &gateway)?.stays_attached()?.start()?);
    let before = HostListing::at_rest()?;
    let controller = builder(&stage, &gateway)?.stays_attached()?.start()?;
    at_work(&stage, &gateway, &controller)?;
    let detached = controller.terminated()?.detach()?;
    assert_eq!(detached.exit_code()?, 0, "{}", detached.stderr);
    before.ensure_unchanged()
}

/// After SIGKILL and `shaper detach`, whose clients go on at once.
#[test]
fn a_kill_and_a_detach_leave_the_host_as_it_was() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::builder()
        .listen_v4()?
        .answer_by(|request| match request.label.as_deref() {
            Some("holder") => Answer::never(),
            _ => Answer::at_once(),
        })
        .start()?;
    drop(builder(&stage, &gateway)?.stays_attached()?.start()?);
    let before = HostListing::at_rest()?;
    let controller = builder(&stage, &gateway)?
        .settings("on_controller_loss = \"closed\"")?
        .stays_attached()?
        .start()?;
    let holder = probe(gateway.address(), "holder")?.spawn_in(&stage.bulk)?;
    controller.wait_for("gateway", 1, 0)?;
    let held = probe(gateway.address(), "held")?.spawn_in(&stage.bulk)?;
    controller.wait_for("gateway", 1, 1)?;
    let detached = controller.killed()?.detach()?;
    assert_eq!(detached.exit_code()?, 0, "{}", detached.stderr);
    assert!(
        detached.stdout.contains("1 held connection"),
        "{}",
        detached.stdout
    );
    held.finish(PATIENCE)?.answered()?;
    holder.kill9()?;
    before.ensure_unchanged()
}

/// `shaper detach` asks a controller that runs.
#[test]
fn a_running_controller_ends_when_it_is_told_to_detach() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::never())?;
    drop(builder(&stage, &gateway)?.stays_attached()?.start()?);
    let before = HostListing::at_rest()?;
    let controller = builder(&stage, &gateway)?.stays_attached()?.start()?;
    at_work(&stage, &gateway, &controller)?;
    let detached = controller.detach()?;
    assert_eq!(detached.exit_code()?, 0, "{}", detached.stderr);
    before.ensure_unchanged()
}

/// After a start that failed, early and late.
#[test]
fn a_failed_start_leaves_the_host_as_it_was() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::never())?;
    drop(builder(&stage, &gateway)?.stays_attached()?.start()?);
    let before = HostListing::at_rest()?;
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address: SocketAddr = taken.local_addr()?;
    let early = builder(&stage, &gateway)?
        .stays_attached()?
        .http_at(address)?
        .run_to_its_end()?;
    assert_eq!(early.exit_code()?, 1, "{}", early.stderr);
    before.ensure_unchanged()?;

    // Its programs are loaded and pinned when it finds that another instance has its cgroups.
    let other = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(gateway.addresses()))?
        .start()?;
    let with_the_other = HostListing::now()?;
    let late = builder(&stage, &gateway)?
        .stays_attached()?
        .run_to_its_end()?;
    assert_eq!(late.exit_code()?, 1, "{}", late.stderr);
    with_the_other.ensure_unchanged()?;
    other.stop()?;
    before.ensure_unchanged()
}
