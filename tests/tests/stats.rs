//! `shaper stats`: what happened, while the controller runs, after it was killed, and after it was started again.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use shaper_tests::client::{finish_all, probe};
use shaper_tests::controller::{Controller, ControllerBuilder};
use shaper_tests::gateway::{Answer, Gateway};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::process::{Finished, Process};
use shaper_tests::stage::Stage;
use shaper_tests::stats::Stats;
use shaper_tests::tools;

const PATIENCE: Duration = Duration::from_secs(30);
const LANE: &str = "gateway";
const INSTANCE: &str = "stats-test";

fn controller(stage: &Stage, gateway: &Gateway, state: &Path) -> Result<ControllerBuilder> {
    let lane = LaneFile::over(gateway.addresses()).limit(1).queue(3);
    Controller::builder(stage)?
        .lane(LANE, lane.line("abort_hold = \"0s\""))?
        .state_at(state, INSTANCE)
}

/// Lets `count` clients call at once, and sees all of them answered or refused.
fn call(stage: &Stage, gateway: &Gateway, count: usize) -> Result<()> {
    let clients = (0..count)
        .map(|_| probe(gateway.address(), "client")?.spawn_in(&stage.bulk))
        .collect::<Result<Vec<_>>>()?;
    finish_all(clients, PATIENCE)?;
    Ok(())
}

/// `shaper stats` without a controller.
fn stats_of(state: &Path, arguments: &[&str]) -> Result<Finished> {
    let mut stats = Command::new(tools::shaper()?);
    stats
        .args(["stats", "--instance", INSTANCE, "--state"])
        .arg(state)
        .args(arguments);
    Process::spawn("shaper stats", &mut stats)?.finish(PATIENCE)
}

/// C11: starts, refusals and waits by lane and class, the same before a SIGKILL, after it, and in the next run, which
/// adds to them.
#[test]
fn a_killed_controller_leaves_its_history_to_the_next_one() -> Result<()> {
    const SERVICE: Duration = Duration::from_millis(200);
    /// The controller hands its counts over every two seconds.
    const HANDED_OVER: Duration = Duration::from_secs(4);
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::after(SERVICE).closing())?;
    let state = tempfile::tempdir()?;

    let first = controller(&stage, &gateway, state.path())?.start()?;
    call(&stage, &gateway, 6)?;
    first.wait_for(LANE, 0, 0)?;
    let live = Stats::read(&first.command("stats", &["--json"])?)?;
    let bulk = &live.lane(LANE)?.priorities.bulk;
    // One in flight, three that wait; the other two found the queue full, unless they were slow to come.
    assert!(bulk.starts >= 4, "{live:?}");
    assert_eq!(bulk.starts + bulk.refusals, 6, "{live:?}");
    assert_eq!(bulk.peak_starts_60s, bulk.starts, "{live:?}");
    assert_eq!(bulk.completed, bulk.starts, "{live:?}");
    assert!(bulk.wait_p90_s >= SERVICE.as_secs_f64(), "{live:?}");
    assert_eq!(live.problem, None);

    call(&stage, &gateway, 1)?;
    first.wait_for(LANE, 0, 0)?;
    thread::sleep(HANDED_OVER);
    first.kill9()?;
    let left = Stats::read(&stats_of(state.path(), &["--json"])?)?;
    let starts = bulk.starts + 1;
    assert_eq!(left.lane(LANE)?.total.starts, starts, "{left:?}");

    let second = controller(&stage, &gateway, state.path())?.start()?;
    call(&stage, &gateway, 2)?;
    second.wait_for(LANE, 0, 0)?;
    let both = Stats::read(&second.command("stats", &["--json", "--lane", LANE])?)?;
    let lane = both.lane(LANE)?;
    assert_eq!(lane.total.starts, starts + 2, "{both:?}");
    // All within a minute, on both sides of the restart, on a machine that is not very slow.
    let peak = lane.total.peak_starts_60s;
    assert!(peak > bulk.starts && peak <= starts + 2, "{both:?}");
    let table = second.command("stats", &[])?;
    assert!(table.stdout.contains("bulk"), "{}", table.stdout);
    Ok(())
}

/// C11: neither a damaged store nor a full disk keeps the controller from its work, and both are told.
#[test]
fn a_store_that_cannot_be_used_holds_nobody_up() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::at_once().closing())?;
    let state = tempfile::tempdir()?;
    let store = state.path().join(INSTANCE).join("history.redb");

    let first = controller(&stage, &gateway, state.path())?.start()?;
    call(&stage, &gateway, 1)?;
    first.stop()?;
    let length = fs::metadata(&store)?.len();
    let damaged = fs::OpenOptions::new().write(true).open(&store)?;
    // Past the header, over all pages: a store whose checksums are wrong.
    damaged.write_all_at(&vec![0xa5; usize::try_from(length)? - 4096], 4096)?;

    let second = controller(&stage, &gateway, state.path())?.start()?;
    call(&stage, &gateway, 1)?;
    second.wait_for(LANE, 0, 0)?;
    let stats = Stats::read(&second.command("stats", &["--json"])?)?;
    assert_eq!(stats.lane(LANE)?.total.starts, 1, "{stats:?}");
    assert!(second.log().contains("set aside"), "{}", second.log());
    assert!(store.with_extension("damaged").is_file());
    second.stop()?;

    // A file where the directory should be: as good as a disk that takes nothing.
    let blocked = state.path().join("blocked");
    fs::write(&blocked, b"")?;
    let third = controller(&stage, &gateway, &blocked)?.start()?;
    call(&stage, &gateway, 1)?;
    third.wait_for(LANE, 0, 0)?;
    let stats = Stats::read(&third.command("stats", &["--json"])?)?;
    assert_eq!(stats.lane(LANE)?.total.starts, 1, "{stats:?}");
    let problem = stats.problem.context("the history cannot be written")?;
    assert!(problem.contains("blocked"), "{problem}");
    third.stop()?;
    Ok(())
}

/// E9: what there is not is said, with what to do about it.
#[test]
fn a_history_that_is_not_there_is_an_error_with_a_remedy() -> Result<()> {
    let state = tempfile::tempdir()?;
    let finished = stats_of(state.path(), &[])?;
    assert_eq!(finished.exit_code()?, 1);
    for word in ["no controller is listening", "shaper run", "no history in"] {
        assert!(finished.stderr.contains(word), "{}", finished.stderr);
    }
    Ok(())
}
