//! Under a supervisor that waits for news, as systemd does.

use std::time::{Duration, Instant};

use anyhow::Result;
use nix::sys::signal::Signal;
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::stage::Stage;
use shaper_tests::supervisor::Supervisor;

/// Ready means governed, a reload is told when it begins and when it is in force, signs of life keep coming, and the end is
/// announced.
#[test]
fn a_supervisor_hears_of_the_start_of_reloads_of_life_and_of_the_end() -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(1);
    let stage = Stage::set()?;
    let supervisor = Supervisor::new()?;
    let gateway = Gateway::answering(Answer::at_once())?;
    let lane = || LaneFile::over(gateway.addresses());
    let controller = Controller::builder(&stage)?
        .lane("gateway", lane())?
        .environment("NOTIFY_SOCKET", supervisor.path())
        .environment("WATCHDOG_USEC", PATIENCE.as_micros().to_string())
        .start()?;
    assert_eq!(
        supervisor.wait_for("READY=1")?,
        ["READY=1", "STATUS=lanes: 1, enforced: 1"]
    );

    let begun = Instant::now();
    for _ in 0..3 {
        supervisor.wait_for("WATCHDOG=1")?;
    }
    // Two intervals of half the patience, on a busy machine.
    assert!(begun.elapsed() < PATIENCE * 10, "{:?}", begun.elapsed());

    controller.write_lane("other", "endpoints = [\"127.0.0.1:9\"]\nmax_inflight = 0")?;
    controller.signal(Signal::SIGHUP)?;
    let reloading = supervisor.wait_for("RELOADING=1")?;
    assert!(
        reloading
            .iter()
            .any(|line| line.starts_with("MONOTONIC_USEC=")),
        "{reloading:?}"
    );
    assert_eq!(
        supervisor.wait_for("READY=1")?[1],
        "STATUS=lanes: 2, enforced: 1"
    );
    controller.write_lane("other", "endpoints = 3")?;
    controller.signal(Signal::SIGHUP)?;
    let rejected =
        "STATUS=lanes: 2, enforced: 1; the latest configuration is rejected, see `shaper status`";
    while supervisor.wait_for("READY=1")?[1] != rejected {}

    controller.stop()?;
    supervisor.wait_for("STOPPING=1")?;
    Ok(())
}
