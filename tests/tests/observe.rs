//! A lane that observes: nobody is held, and what its limit would have done is shown.

use std::time::Duration;

use anyhow::Result;
use shaper_tests::client::{CurlOutcome, curl, finish_all};
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway, Latch};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::stage::Stage;

const PATIENCE: Duration = Duration::from_secs(30);

/// Less than TCP waits before it sends a SYN again: a SYN that was dropped shows.
const AT_ONCE: Duration = Duration::from_millis(900);

/// A21, A2, B7: a limit that is not enforced delays nobody and tells who would have waited, and who would have been
/// refused.
#[test]
fn a_limit_on_paper_delays_nobody_and_tells_who_would_have_waited() -> Result<()> {
    const CLIENTS: usize = 7;
    const LIMIT: usize = 2;
    const QUEUE: usize = 4;
    let stage = Stage::set()?;
    let all_came = Latch::shut();
    let gateway = Gateway::answering(Answer::once_open(&all_came))?;
    let controller = Controller::builder(&stage)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses())
                .limit(LIMIT)
                .queue(QUEUE)
                .line("enforce = false"),
        )?
        .start()?;

    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| curl(&gateway.url(), &number.to_string()).spawn_in(&stage.default))
        .collect::<Result<_>>()?;
    // Nobody is answered before everybody is in flight, which a lane that held somebody would not reach.
    let lane = controller.wait_for("gateway", CLIENTS, 0)?;
    let would_have = (lane.would_have_waited_5m, lane.would_have_refused_5m);
    assert_eq!(would_have, (QUEUE, CLIENTS - LIMIT - QUEUE), "{lane:?}");
    assert_eq!((lane.shadow_queued, lane.limit), (QUEUE, LIMIT));
    assert_eq!((&*lane.mode, &*lane.diagnosis), ("observe", "observe"));
    assert!(!controller.snapshot()?.enabled);

    all_came.open();
    for report in finish_all(clients, PATIENCE)? {
        assert_eq!(report.outcome, CurlOutcome::answered());
        assert!(report.connect < AT_ONCE, "{report:?}");
    }
    assert_eq!(gateway.tally().peak_in_service, CLIENTS);
    let lane = controller.wait_for("gateway", 0, 0)?;
    assert_eq!(lane.shadow_queued, 0, "everybody has left");
    assert_eq!(lane.would_have_waited_5m, QUEUE);
    Ok(())
}
