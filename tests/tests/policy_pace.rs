//! Pace: when starts reach the gateway.

use std::time::Duration;

use anyhow::Result;
use shaper_tests::client::{finish_all, probe};
use shaper_tests::clock::{Moment, median};
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::stage::Stage;

const PATIENCE: Duration = Duration::from_secs(15);

/// Lets `count` clients loose at once on a lane with this pace and room for all of them. Returns when the first bytes
/// of their requests reached the gateway.
fn starts(count: usize, pace: &str) -> Result<Vec<Moment>> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::at_once())?;
    let controller = Controller::builder(&stage)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses())
                .limit(count)
                .line(&format!("[pace]\nsafety_margin = 0\n{pace}")),
        )?
        .start()?;
    let clients = (1..=count)
        .map(|number| probe(gateway.address(), &number.to_string())?.spawn_in(&stage.default))
        .collect::<Result<Vec<_>>>()?;
    for report in finish_all(clients, PATIENCE)? {
        report.answered()?;
    }
    controller.wait_for("gateway", 0, 0)?;
    Ok(gateway.tally().arrivals())
}

/// C3: one start per interval, 250 ms at 240 a minute.
#[test]
fn an_even_pace_of_240_per_minute_reaches_the_gateway_every_250_ms() -> Result<()> {
    const INTERVAL: Duration = Duration::from_millis(250);
    // By the promise on a quiet machine; a busy one delays single starts, the next one not with them.
    const SHORTEST: Duration = Duration::from_millis(200);
    const MEDIAN_OFF: Duration = Duration::from_millis(50);
    let starts = starts(10, "mode = \"even\"\nper_minute = 240")?;
    let gaps: Vec<Duration> = starts
        .windows(2)
        .map(|pair| pair[1].since(pair[0]))
        .collect();
    println!("gaps at the gateway: {gaps:?}");
    let shortest = gaps.iter().min().copied().unwrap_or_default();
    let median = median(&gaps);
    assert!(shortest >= SHORTEST, "{gaps:?}");
    assert!(median.abs_diff(INTERVAL) <= MEDIAN_OFF, "{gaps:?}");
    Ok(())
}

/// C2, C4: no second sees more starts than `per_second`, whatever the second; within it they may bunch.
#[test]
fn no_second_at_the_gateway_sees_more_starts_than_the_window_allows() -> Result<()> {
    const PER_SECOND: usize = 5;
    const SECOND: Duration = Duration::from_secs(1);
    // What one start may be later at the gateway than another.
    let starts = starts(3 * PER_SECOND, "per_second = 5\nwindow_slack = \"200ms\"")?;
    for (first, &from) in starts.iter().enumerate() {
        let within = starts[first..]
            .iter()
            .filter(|start| start.since(from) < SECOND)
            .count();
        assert!(
            within <= PER_SECOND,
            "{within} starts in a second: {starts:?}"
        );
    }
    let bunch = starts[PER_SECOND - 1].since(starts[0]);
    assert!(bunch < SECOND, "the first ones took {bunch:?}: {starts:?}");
    let all = starts[starts.len() - 1].since(starts[0]);
    assert!(all < SECOND * 4, "all of them took {all:?}: {starts:?}");
    Ok(())
}
