//! What is not shaper's business.

use std::time::Duration;

use anyhow::Result;
use shaper_tests::client::{CurlOutcome, curl};
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway, Latch};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::metrics::Metrics;
use shaper_tests::stage::Stage;

const PATIENCE: Duration = Duration::from_secs(10);

/// A held connect would last as long as the test; had one SYN been dropped, TCP's next try would come after 1 s.
const NOT_HELD: Duration = Duration::from_millis(500);

/// Everything that an event or a held packet would have moved.
fn traces(metrics: &Metrics) -> Vec<(&'static str, f64)> {
    [
        "shaper_connections_total",
        "shaper_requests_total",
        "shaper_refusals_total",
        "shaper_queue_timeouts_total",
        "shaper_queue_wait_seconds_count",
        "shaper_connect_seconds_count",
        "shaper_bytes_total",
        "shaper_ungoverned_total",
        "shaper_events_lost_total",
    ]
    .map(|name| (name, metrics.sum(name, &[])))
    .to_vec()
}

/// A22, D6: traffic to other endpoints and from other cgroups is never touched, also while the lane is saturated.
#[test]
fn other_ports_and_other_cgroups_pass_a_saturated_lane_untouched() -> Result<()> {
    const EACH: usize = 5;
    let stage = Stage::set()?;
    let release = Latch::shut();
    let holders_answer = Answer::once_open(&release);
    let governed = Gateway::builder()
        .listen_v4()?
        .answer_by(move |request| match request.label.as_deref() {
            Some("holder") => holders_answer.clone(),
            _ => Answer::at_once(),
        })
        .start()?;
    let other = Gateway::builder().listen_v4()?.listen_v6()?.start()?;
    let controller = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(governed.addresses()).limit(1))?
        .start()?;
    let holder = curl(&governed.url(), "holder").spawn_in(&stage.bulk)?;
    controller.wait_for("gateway", 1, 0)?;
    let waiter = curl(&governed.url(), "waiter").spawn_in(&stage.bulk)?;
    controller.wait_for("gateway", 1, 1)?;
    let before = traces(&controller.metrics()?);

    let mut clients = Vec::new();
    for _ in 0..EACH {
        clients.push(curl(&governed.url(), "other cgroup").spawn_in(&stage.outside)?);
        for &address in other.addresses() {
            clients.push(curl(&other.url_of(address), "other port").spawn_in(&stage.bulk)?);
        }
    }
    for client in clients {
        let report = client.finish(PATIENCE)?;
        assert_eq!(report.outcome, CurlOutcome::answered());
        assert!(
            report.connect < NOT_HELD,
            "connect() took {:?}",
            report.connect
        );
    }

    let lane = controller.lane("gateway")?;
    assert_eq!((lane.inflight, lane.queued), (1, 1), "{lane:?}");
    assert_eq!(traces(&controller.metrics()?), before);
    assert_eq!(
        (governed.tally().accepted, other.tally().accepted),
        (1 + EACH, 2 * EACH)
    );
    release.open();
    for client in [holder, waiter] {
        assert_eq!(client.finish(PATIENCE)?.outcome, CurlOutcome::answered());
    }
    Ok(())
}
