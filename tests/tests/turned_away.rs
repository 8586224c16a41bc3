//! Who is turned away finds the reason in the log: which limit, the counts at that moment, the setting to change.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::unistd::Pid;
use shaper_tests::client::{ProbeReport, Running, probe};
use shaper_tests::clock::poll_until;
use shaper_tests::controller::Controller;
use shaper_tests::crowd::{Crowd, Habit};
use shaper_tests::gateway::{Answer, Gateway};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::stage::Stage;

const PATIENCE: Duration = Duration::from_secs(30);

/// The line of the log about this client, which has to be turned away.
fn line_about(controller: &Controller, client: Running<ProbeReport>) -> Result<String> {
    let pid = client.pid();
    let report = client.finish(PATIENCE)?;
    ensure!(
        matches!(report, ProbeReport::Failed { .. }),
        "it was not turned away: {report:?}"
    );
    logged(controller, pid).with_context(|| format!("no line about it in\n{}", controller.log()))
}

fn logged(controller: &Controller, pid: Pid) -> Option<String> {
    let field = format!("pid={pid} ");
    poll_until(PATIENCE, || {
        let log = controller.log();
        let line = log.lines().find(|line| line.contains(&field))?;
        Some(line.to_owned())
    })
}

fn assert_has(line: &str, parts: &[&str]) {
    for part in parts {
        assert!(line.contains(part), "{part:?} is not in\n{line}");
    }
}

/// B5: a refused connect's line names the limit that refused it, what is in use and waiting, and where to change it.
#[test]
fn a_refusal_says_which_limit_the_counts_and_the_setting() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::never())?;
    let controller = Controller::builder(&stage)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses()).limit(1).queue(1),
        )?
        .start()?;
    let file = controller.config().join("lanes.d/gateway.toml");
    let _holder = probe(gateway.address(), "holder")?.spawn_in(&stage.default)?;
    controller.wait_for("gateway", 1, 0)?;
    let _waiter = probe(gateway.address(), "waiter")?.spawn_in(&stage.default)?;
    controller.wait_for("gateway", 1, 1)?;

    let acme = stage.cgroups().group("bulk/acme")?;
    let refused = probe(gateway.address(), "refused")?.spawn_in(&acme)?;
    assert_has(
        &line_about(&controller, refused)?,
        &[
            "refused: the queue is full, max_queue = 1; 1 of 1 slot in use; raise `max_queue` or `max_inflight` in",
            &file.display().to_string(),
            "lane=\"gateway\"",
            "class=bulk",
            "account=\"acme\"",
            "errno=\"ECONNREFUSED\"",
            "queued=1",
            "in_flight=1",
        ],
    );
    Ok(())
}

/// A11, B5: a waiter that is ended is told what it waited for: here a cap, although the lane has slots.
#[test]
fn a_queue_timeout_says_which_limit_the_counts_and_the_setting() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::never())?;
    let controller = Controller::builder(&stage)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses())
                .limit(3)
                .line("[class.bulk]\nmax_inflight = 1\nqueue_timeout = \"1s\""),
        )?
        .start()?;
    let file = controller.config().join("lanes.d/gateway.toml");
    let _holder = probe(gateway.address(), "holder")?.spawn_in(&stage.bulk)?;
    controller.wait_for("gateway", 1, 0)?;
    let ended = probe(gateway.address(), "ended")?.spawn_in(&stage.bulk)?;
    assert_has(
        &line_about(&controller, ended)?,
        &[
            "queue timeout: the waiter is ended; class bulk has 1 of its 1 slots in use; raise \
             `class.bulk.max_inflight` or `class.bulk.queue_timeout` in",
            &file.display().to_string(),
            "lane=\"gateway\"",
            "class=bulk",
            "position=1",
            "queued=1",
            "in_flight=1",
        ],
    );
    Ok(())
}

/// B5: a flood of refusals is told in ten lines in 10 s and one number; none of them is lost in the sum.
#[test]
fn a_flood_of_refusals_does_not_fill_the_log() -> Result<()> {
    const REFUSALS: u64 = 200;
    const LINES: usize = 10;
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::never())?;
    let controller = Controller::builder(&stage)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses()).limit(1).queue(0),
        )?
        .start()?;
    let _holder = probe(gateway.address(), "holder")?.spawn_in(&stage.default)?;
    controller.wait_for("gateway", 1, 0)?;

    let crowd = Crowd::new(Habit::Rush, gateway.addresses(), "flood", REFUSALS);
    let report = crowd.client()?.spawn_in(&stage.bulk)?.finish(PATIENCE)?;
    assert_eq!(report.refused, REFUSALS, "{report:?}");
    let numbered = poll_until(PATIENCE, || {
        let log = controller.log();
        let numbers = log.lines().filter_map(left_out);
        let left_out: u64 = numbers.sum();
        let told = log
            .lines()
            .filter(|line| line.contains("the queue is full"));
        let told = told.count();
        (left_out + told as u64 == REFUSALS).then_some(told)
    });
    let told = numbered.with_context(|| format!("some are not told of:\n{}", controller.log()))?;
    // On a machine so slow that the flood lasts longer than 10 s, twice as many.
    assert!((LINES..=2 * LINES).contains(&told), "{told} lines");
    Ok(())
}

/// How many more were refused, if this line of the log says so.
fn left_out(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("left_out=")?;
    rest.split_whitespace().next()?.parse().ok()
}
