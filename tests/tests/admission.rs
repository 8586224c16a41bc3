//! Who is admitted, who waits, who is refused: real `curl` processes before a gateway that counts.

use std::time::Duration;

use anyhow::Result;
use shaper_tests::client::{CurlOutcome, curl, finish_all};
use shaper_tests::clock::poll_until;
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway, GatewayBuilder, Latch};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::stage::Stage;

const PATIENCE: Duration = Duration::from_secs(30);

/// Forty clients at once before a lane with limit 6 and queue 8 over one gateway, each request held 2 s by it. The
/// clients take the gateway's addresses in turn.
fn forty_at_once(listening: GatewayBuilder) -> Result<()> {
    const CLIENTS: usize = 40;
    const LIMIT: usize = 6;
    const QUEUE: usize = 8;
    let stage = Stage::set()?;
    let all_came = Latch::shut();
    let gateway = listening
        .answer(Answer::after(Duration::from_secs(2)).not_before(&all_came))
        .start()?;
    let controller = Controller::builder(&stage)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses())
                .limit(LIMIT)
                .queue(QUEUE),
        )?
        .start()?;

    let mut clients = Vec::new();
    for number in 0..CLIENTS {
        let address = gateway.addresses()[number % gateway.addresses().len()];
        clients.push(curl(&gateway.url_of(address), &number.to_string()).spawn_in(&stage.bulk)?);
    }
    // "At once" on a slow machine: no slot comes free before the last client has had its answer from connect(). Whether
    // the right ones are left is for the assertions.
    poll_until(Duration::from_secs(10), || {
        let left = clients
            .iter_mut()
            .filter_map(|client| client.still_runs().ok());
        (left.filter(|&runs| runs).count() <= LIMIT + QUEUE).then_some(())
    });
    all_came.open();
    let outcomes: Vec<CurlOutcome> = finish_all(clients, PATIENCE)?
        .into_iter()
        .map(|report| report.outcome)
        .collect();

    let count = |wanted: &CurlOutcome| outcomes.iter().filter(|outcome| *outcome == wanted).count();
    let tally = gateway.tally();
    let lane = controller.wait_for("gateway", 0, 0)?;
    assert_eq!(
        (
            count(&CurlOutcome::answered()),
            count(&CurlOutcome::refused())
        ),
        (LIMIT + QUEUE, CLIENTS - LIMIT - QUEUE),
        "answered and refused with ECONNREFUSED; all outcomes: {outcomes:?}"
    );
    assert_eq!(
        tally.peak_in_service, LIMIT,
        "peak at the gateway; the lane is now {lane:?}"
    );
    assert_eq!(
        (tally.accepted, tally.served()),
        (LIMIT + QUEUE, LIMIT + QUEUE)
    );
    let refusals = controller.metrics()?.sum(
        "shaper_refusals_total",
        &[("lane", "gateway"), ("priority", "bulk")],
    );
    assert_eq!(refusals, 26.0, "shaper_refusals_total");
    Ok(())
}

/// D10, D2, D3: the gateway sees at most 6 at once, the overflow is refused at `connect()`, nobody gets another error.
#[test]
fn of_forty_clients_six_are_in_flight_eight_wait_and_the_rest_are_refused() -> Result<()> {
    forty_at_once(Gateway::builder().listen_v4()?)
}

/// D7: two surfaces of one upstream share one limit and one queue.
#[test]
fn two_ports_of_one_lane_share_its_limit_and_its_queue() -> Result<()> {
    forty_at_once(Gateway::builder().listen_v4()?.listen_v4()?)
}

/// D7 across the address families: a name's IPv4 and IPv6 addresses are one upstream.
#[test]
fn both_address_families_of_one_lane_share_its_limit_and_its_queue() -> Result<()> {
    forty_at_once(Gateway::builder().listen_v4()?.listen_v6()?)
}

/// A5, D8, E2: strict order by class, by arrival inside a class, whichever port they wait for.
#[test]
fn an_interactive_client_goes_before_queued_bulk_and_bulk_keeps_its_order() -> Result<()> {
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::builder()
        .listen_v4()?
        .listen_v4()?
        .answer(Answer::once_open(&release))
        .start()?;
    let controller = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(gateway.addresses()).limit(1))?
        .start()?;

    let mut clients = vec![curl(&gateway.url(), "first").spawn_in(&stage.bulk)?];
    controller.wait_for("gateway", 1, 0)?;
    for number in 1..=9 {
        let address = gateway.addresses()[number % 2];
        let label = format!("bulk {number}");
        clients.push(curl(&gateway.url_of(address), &label).spawn_in(&stage.bulk)?);
        controller.wait_for("gateway", 1, number)?;
    }
    clients.push(curl(&gateway.url(), "interactive").spawn_in(&stage.interactive)?);
    let lane = controller.wait_for("gateway", 1, 10)?;
    assert_eq!(
        (
            lane.queued_by_priority["interactive"],
            lane.queued_by_priority["bulk"]
        ),
        (1, 9)
    );
    release.open();
    for report in finish_all(clients, PATIENCE)? {
        assert_eq!(report.outcome, CurlOutcome::answered());
    }

    let bulk = (1..=9).map(|number| format!("bulk {number}"));
    let expected: Vec<String> = ["first", "interactive"]
        .map(str::to_owned)
        .into_iter()
        .chain(bulk)
        .collect();
    let tally = gateway.tally();
    assert_eq!(
        tally.labels(),
        expected,
        "the order in which requests reached the gateway"
    );
    assert_eq!(tally.peak_in_service, 1);
    Ok(())
}
