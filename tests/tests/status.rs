//! `shaper status` in a terminal.

use std::process::Command;

use anyhow::Result;
use shaper_tests::client::probes;
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::stage::Stage;
use shaper_tests::terminal::{Size, Terminal};
use shaper_tests::tools;

const LANE: &str = "gateway";

fn status(controller: &Controller, no_color: Option<&str>, arguments: &[&str]) -> Result<Terminal> {
    let mut command = Command::new(tools::shaper()?);
    command
        .env_remove("NO_COLOR")
        .envs(no_color.map(|value| ("NO_COLOR", value)))
        .args(["status", "--control"])
        .arg(controller.control())
        .args(arguments);
    Terminal::start(command, Size::CLASSIC)
}

/// A terminal gets colours, unless its user wants none.
#[test]
fn colours_are_for_terminals_that_want_them() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::at_once())?;
    let controller = Controller::builder(&stage)?
        .lane(LANE, LaneFile::over(gateway.addresses()).limit(5))?
        .start()?;
    for (no_color, coloured) in [(None, true), (Some("1"), false)] {
        for arguments in [&[][..], &["--watch"]] {
            let screen = status(&controller, no_color, arguments)?;
            screen.wait_for("0/5")?;
            assert_eq!(screen.is_coloured(), coloured, "{no_color:?} {arguments:?}");
        }
    }
    let piped = controller.command("status", &[])?.stdout;
    assert!(piped.contains("0/5") && !piped.contains('\x1b'), "{piped}");
    Ok(())
}

/// `--watch` shows what changes in the place of what was, and says when the controller is gone.
#[test]
fn a_watch_follows_the_lanes() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::at_once())?;
    let controller = Controller::builder(&stage)?
        .lane(LANE, LaneFile::over(gateway.addresses()).limit(5))?
        .start()?;
    let screen = status(&controller, None, &["--watch"])?;
    screen.wait_for("0/5")?;
    controller.command("pause", &[LANE, "--for", "10m"])?;
    let paused = screen.wait_for("Paused by an operator: nothing starts for 9m5")?;
    assert_eq!(paused.matches(LANE).count(), 1, "drawn over:\n{paused}");
    controller.command("resume", &[LANE])?;
    screen.wait_until("an end of the pause", |screen| {
        screen.contains("0/5") && !screen.contains("paused")
    })?;
    controller.stop()?;
    screen.wait_until("only the error", |screen| {
        screen.contains("no controller is listening") && !screen.contains("0/5")
    })?;
    Ok(())
}

/// A18: what the first in line waits for is said in the same words to people and to programs: here a cap, although the lane
/// has slots.
#[test]
fn a_waiter_is_told_what_it_waits_for() -> Result<()> {
    const WHY: &str = "account acme has 1 of its 1 slots in use";
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::never())?;
    let lane = LaneFile::over(gateway.addresses()).limit(5);
    let controller = Controller::builder(&stage)?
        .lane(LANE, lane.line("[account]\noverrides = { acme = 1 }"))?
        .start()?;
    let acme = stage.cgroups().group("bulk/acme")?;
    let _held = probes(gateway.address(), &[(&acme, 3)])?;
    let lane = controller.wait_for(LANE, 1, 2)?;
    assert_eq!(lane.waiting_for.as_deref(), Some(WHY));
    let said = format!("2 wait on purpose: {WHY}.");
    status(&controller, None, &[])?.wait_for(&said)?;
    let piped = controller.command("status", &[])?.stdout;
    assert!(piped.contains(&said), "{piped}");
    controller.command("pause", &[LANE, "--for", "10m"])?;
    let piped = controller.command("status", &[])?.stdout;
    let note = piped.lines().find(|line| line.contains("Paused by"));
    assert!(
        note.is_some_and(|note| note.ends_with("what is in flight goes on.")),
        "not in one line:\n{piped}"
    );
    Ok(())
}
