//! `shaper status` in a terminal.

use std::process::Command;

use anyhow::Result;
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
    let paused = screen.wait_for("paused for")?;
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
