//! What an operator does to a running controller: `shaper pause`, `resume` and `set`.

use std::time::Duration;

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;
use shaper_tests::client::{ProbeReport, Running, finish_all, probe};
use shaper_tests::clock::{Moment, poll_until};
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway, Latch};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::stage::Stage;

const PATIENCE: Duration = Duration::from_secs(30);

/// Runs the command, which has to succeed, and returns what it printed.
fn done(controller: &Controller, command: &str, arguments: &[&str]) -> Result<String> {
    let finished = controller.command(command, arguments)?;
    ensure!(
        finished.exit_code()? == 0,
        "shaper {command} {arguments:?} failed: {}",
        finished.stderr
    );
    Ok(finished.stdout)
}

/// Runs the command, which has to be refused with exit code 1, and returns why.
fn refused(controller: &Controller, command: &str, arguments: &[&str]) -> Result<String> {
    let finished = controller.command(command, arguments)?;
    ensure!(
        finished.exit_code()? == 1,
        "shaper {command} {arguments:?} was not refused: {}",
        finished.stdout
    );
    Ok(finished.stderr)
}

fn clients(stage: &Stage, gateway: &Gateway, count: usize) -> Result<Vec<Running<ProbeReport>>> {
    (0..count)
        .map(|_| probe(gateway.address(), "client")?.spawn_in(&stage.bulk))
        .collect()
}

/// A pause holds everybody, whatever is free; `resume` lets all of them go.
#[test]
fn a_pause_holds_everybody_until_it_is_ended() -> Result<()> {
    const CLIENTS: usize = 3;
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::at_once())?;
    let controller = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(gateway.addresses()).limit(5))?
        .start()?;
    let said = done(&controller, "pause", &["gateway", "--for", "10m"])?;
    assert!(said.contains("10m"), "{said}");
    assert_eq!(controller.lane("gateway")?.diagnosis, "paused");

    let held = clients(&stage, &gateway, CLIENTS)?;
    controller.wait_for("gateway", 0, CLIENTS)?;
    assert_eq!(gateway.tally().accepted, 0);
    done(&controller, "resume", &["gateway"])?;
    for report in finish_all(held, PATIENCE)? {
        report.answered()?;
    }
    let lane = controller.wait_for("gateway", 0, 0)?;
    assert_ne!(lane.diagnosis, "paused");
    let log = controller.log();
    for words in [
        "paused by an operator: nothing starts for 10m00s, until ",
        "the pause by an operator was ended by hand",
    ] {
        let line = log.lines().find(|line| line.contains(words));
        assert!(
            line.is_some_and(|line| line.contains("lane=\"gateway\"")),
            "no line with {words:?} in\n{log}"
        );
    }
    Ok(())
}

/// A pause ends by itself, and not early.
#[test]
fn a_pause_ends_by_itself() -> Result<()> {
    const PAUSE: Duration = Duration::from_secs(2);
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::at_once())?;
    let controller = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(gateway.addresses()).limit(5))?
        .start()?;
    let before = Moment::now();
    done(&controller, "pause", &["gateway", "--for", "2s"])?;
    for report in finish_all(clients(&stage, &gateway, 2)?, PATIENCE)? {
        let times = report.answered()?;
        let wait = times.connected.since(before);
        assert!(wait >= PAUSE, "connected {wait:?} after the pause began");
    }
    Ok(())
}

/// A shorter pause does not end a longer one, and is not confirmed as if it did.
#[test]
fn a_pause_that_changes_nothing_says_so() -> Result<()> {
    let stage = Stage::set()?;
    let nobody = ([127, 0, 0, 1], 4000).into();
    let controller = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(&[nobody]).limit(5))?
        .start()?;
    let said = done(&controller, "pause", &["gateway", "--for", "10m"])?;
    assert_eq!(said, "gateway is paused for 10m00s\n");
    let said = done(&controller, "pause", &["gateway", "--for", "30s"])?;
    assert!(said.contains("paused for 9m5"), "{said}");
    assert!(said.contains("shaper resume gateway"), "{said}");
    let said = done(&controller, "pause", &["gateway", "--for", "1h"])?;
    assert_eq!(said, "gateway is paused for 1h00m\n");
    done(&controller, "resume", &["gateway"])?;
    let said = done(&controller, "pause", &["gateway", "--for", "30s"])?;
    assert_eq!(said, "gateway is paused for 30s\n");
    Ok(())
}

/// A14: several settings are one change, whatever their order: a lane that observes is given its limit so.
#[test]
fn settings_take_effect_together_or_not_at_all() -> Result<()> {
    let stage = Stage::set()?;
    let file = |limit| format!("endpoints = [\"127.0.0.1:4001\"]\nmax_inflight = {limit}");
    let controller = Controller::builder(&stage)?
        .lane("first", file(0).replace("4001", "4000"))?
        .lane("watched", file(0))?
        .start()?;
    let wanted = ["max_inflight=4", "max_queue=64", "queue_timeout=300s"];
    let alone = refused(&controller, "set", &["watched", wanted[0]])?;
    assert!(
        alone.contains(wanted[1].split_once('=').unwrap().0),
        "{alone}"
    );
    assert!(
        alone.contains(wanted[2].split_once('=').unwrap().0),
        "{alone}"
    );

    let bad_last = [&["watched"][..], &wanted, &["aging=soon"]].concat();
    let said = refused(&controller, "set", &bad_last)?;
    assert!(said.contains("aging"), "{said}");
    let lane = controller.lane("watched")?;
    assert_eq!((&*lane.mode, lane.limit), ("observe", 0));
    assert!(lane.overrides.is_empty(), "{lane:?}");

    done(&controller, "set", &[&["first"][..], &wanted].concat())?;
    let reversed: Vec<_> = wanted.into_iter().rev().collect();
    done(&controller, "set", &[&["watched"], &*reversed].concat())?;
    for name in ["first", "watched"] {
        let lane = controller.lane(name)?;
        assert_eq!((&*lane.mode, lane.limit), ("enforce", 4), "{name}");
    }
    Ok(())
}

/// What was set is told from what the file says, until that changes; a doubtful setting is told to who makes it.
#[test]
fn what_is_set_by_hand_is_seen_and_warned_of() -> Result<()> {
    let stage = Stage::set()?;
    let nobody = ([127, 0, 0, 1], 4000).into();
    let lane = |limit| LaneFile::over(&[nobody]).limit(limit);
    let controller = Controller::builder(&stage)?
        .lane("gateway", lane(6))?
        .start()?;
    assert!(controller.lane("gateway")?.overrides.is_empty());
    let finished = controller.command("set", &["gateway", "interactive_reserve=9"])?;
    assert_eq!(finished.exit_code()?, 0, "{}", finished.stderr);
    assert_eq!(finished.stdout, "gateway: interactive_reserve = 9\n");
    for word in ["warning", "interactive_reserve", "5 is used"] {
        assert!(finished.stderr.contains(word), "{}", finished.stderr);
    }
    done(&controller, "set", &["gateway", "max_inflight=7"])?;
    let set = controller.lane("gateway")?.overrides;
    let expected = [("interactive_reserve", "9"), ("max_inflight", "7")];
    let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(set, expected.into());
    let table = done(&controller, "status", &[])?;
    assert!(
        table.contains("set by hand: interactive_reserve = 9, max_inflight = 7"),
        "{table}"
    );
    let json = done(&controller, "status", &["--json"])?;
    assert!(json.contains("\"max_inflight\":\"7\""), "{json}");

    controller.write_lane("gateway", lane(8))?;
    let lane = controller.wait_until("gateway", |lane| lane.limit == 8)?;
    assert!(lane.overrides.is_empty(), "{lane:?}");
    Ok(())
}

/// A14: a limit that is set is in force at once, survives the reading of the unchanged file, and ends with the file's
/// next change.
#[test]
fn a_set_limit_holds_until_the_file_changes() -> Result<()> {
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::answering(Answer::once_open(&release))?;
    let lane = |limit| LaneFile::over(gateway.addresses()).limit(limit);
    let controller = Controller::builder(&stage)?
        .lane("gateway", lane(1))?
        .start()?;
    let held = clients(&stage, &gateway, 6)?;
    controller.wait_for("gateway", 1, 5)?;
    done(
        &controller,
        "set",
        &["gateway", "max_inflight=3", "queue_timeout=90s"],
    )?;
    assert_eq!(controller.wait_for("gateway", 3, 3)?.limit, 3);

    controller.signal(Signal::SIGHUP)?;
    let unchanged = poll_until(PATIENCE, || {
        let metrics = controller.metrics().ok()?;
        let count = metrics.sum("shaper_config_reloads_total", &[("result", "unchanged")]);
        (count == 1.0).then_some(())
    });
    assert!(unchanged.is_some(), "{}", controller.log());
    assert_eq!(controller.lane("gateway")?.limit, 3, "after SIGHUP");

    controller.write_lane("gateway", lane(2))?;
    let lane = controller.wait_until("gateway", |lane| lane.limit == 2)?;
    assert_eq!(lane.inflight, 3, "held slots are not revoked");
    release.open();
    for report in finish_all(held, PATIENCE)? {
        report.answered()?;
    }
    controller.wait_for("gateway", 0, 0)?;
    Ok(())
}

/// E9: what cannot be done is refused, with the key or lane at fault and what would be right, and changes nothing.
#[test]
fn a_mistake_is_refused_with_what_would_be_right() -> Result<()> {
    let stage = Stage::set()?;
    let controller = Controller::builder(&stage)?
        .lane(
            "gateway",
            LaneFile::over(&[([127, 0, 0, 1], 4000).into()]).limit(4),
        )?
        .lane(
            "watched",
            "endpoints = [\"127.0.0.1:4001\"]\nmax_inflight = 0",
        )?
        .start()?;
    for (command, arguments, words) in [
        (
            "set",
            &["gateway", "max_inflight=many"][..],
            &["max_inflight", "0 to"][..],
        ),
        (
            "set",
            &["gateway", "max_inflght=3"],
            &["max_inflght", "max_inflight"],
        ),
        ("set", &["gateway", "endpoints=[]"], &["endpoints", "file"]),
        (
            "set",
            &["nowhere", "max_inflight=3"],
            &["nowhere", "gateway"],
        ),
        (
            "pause",
            &["nowhere", "--for", "1s"],
            &["nowhere", "gateway"],
        ),
        (
            "pause",
            &["watched", "--for", "1s"],
            &["watched", "observes"],
        ),
        ("resume", &["nowhere"], &["nowhere", "gateway"]),
    ] {
        let said = refused(&controller, command, arguments)?;
        for word in words {
            assert!(said.contains(word), "{command} {arguments:?}: {said}");
        }
    }
    assert_eq!(controller.lane("gateway")?.limit, 4);
    Ok(())
}
