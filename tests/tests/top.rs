//! `shaper top` in a terminal, before a lane under load.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use shaper_tests::client::{finish_all, probes};
use shaper_tests::clock::poll_until;
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway, Latch};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::snapshot::Lane;
use shaper_tests::stage::Stage;
use shaper_tests::terminal::{Size, Terminal};
use shaper_tests::tools;

const PATIENCE: Duration = Duration::from_secs(30);
const LANE: &str = "gateway";

fn top(controller: &Controller) -> Result<Terminal> {
    let mut command = Command::new(tools::shaper()?);
    command
        .env_remove("NO_COLOR")
        .arg("top")
        .arg("--control")
        .arg(controller.control());
    let terminal = Terminal::start(command, Size::CLASSIC)?;
    terminal.wait_for(LANE)?;
    Ok(terminal)
}

/// What the screen shows of the lane: the slots in use, the limit, and the waiters.
fn shown(screen: &str) -> Option<[usize; 3]> {
    let row = screen.lines().find(|line| line.contains(LANE))?;
    let words: Vec<&str> = row.split_whitespace().collect();
    let at = words.iter().position(|word| word.contains('/'))?;
    let (in_use, limit) = words[at].split_once('/')?;
    let numbers = [in_use, limit, words.get(at + 1)?];
    let numbers: Vec<usize> = numbers.iter().flat_map(|text| text.parse()).collect();
    numbers.try_into().ok()
}

fn told(lane: &Lane) -> [usize; 3] {
    [lane.inflight, lane.effective_limit, lane.queued]
}

/// D9, A16: while requests come and go, `top` shows what `/api/lanes` says, waiters with class and command included.
#[test]
fn top_shows_the_numbers_of_the_snapshot_under_load() -> Result<()> {
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::answering(Answer::once_open(&release))?;
    let controller = Controller::builder(&stage)?
        .lane(LANE, LaneFile::over(gateway.addresses()).limit(2))?
        .start()?;
    let screen = top(&controller)?;
    let mut held = Vec::new();
    for (interactive, bulk) in [(0, 4), (1, 2), (2, 1)] {
        held.extend(probes(
            gateway.address(),
            &[(&stage.interactive, interactive), (&stage.bulk, bulk)],
        )?);
        let lane = controller.wait_for(LANE, 2, held.len() - 2)?;
        screen.wait_until("the snapshot's numbers", |screen| {
            shown(screen) == Some(told(&lane))
        })?;
    }
    let screen_now = screen.wait_until("a line for each waiter", |screen| {
        screen.matches("shaper-test-pro").count() == held.len() - 2
    })?;
    let waiters = controller.waiters()?;
    assert_eq!(waiters.len(), held.len() - 2);
    for waiter in &waiters {
        let row = screen_now
            .lines()
            .find(|line| line.contains(&format!(" {} ", waiter.pid)))
            .with_context(|| format!("no line for {waiter:?}:\n{screen_now}"))?;
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(words[0], waiter.position.to_string(), "{row}");
        assert_eq!(words[1], waiter.priority, "{row}");
        assert_eq!(waiter.command.as_deref(), Some("shaper-test-pro"), "{row}");
    }
    let first: Vec<_> = waiters.iter().map(|waiter| &waiter.priority[..]).collect();
    assert_eq!(first[..3], ["interactive"; 3], "the urgent ones go first");

    release.open();
    finish_all(held, PATIENCE)?;
    screen.wait_until("an empty lane", |screen| shown(screen) == Some([0, 2, 0]))?;
    Ok(())
}

/// The keys do what the commands do, and say that it is done.
#[test]
fn keys_pause_resume_and_change_the_limit() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::at_once())?;
    let controller = Controller::builder(&stage)?
        .lane(LANE, LaneFile::over(gateway.addresses()).limit(5))?
        .start()?;
    let mut screen = top(&controller)?;
    screen.press("p")?;
    screen.wait_for("pause gateway for: 30s")?;
    screen.press("10m\r")?;
    screen.wait_for("gateway is paused for 10m00s")?;
    assert_eq!(controller.lane(LANE)?.diagnosis, "paused");

    screen.press("r")?;
    screen.wait_for("resume gateway? y/n")?;
    screen.press("y")?;
    screen.wait_for("gateway is not paused any more")?;
    assert_ne!(controller.lane(LANE)?.diagnosis, "paused");

    screen.press("l")?;
    screen.wait_for("max_inflight of gateway (now 5): 5")?;
    screen.press("3\r")?;
    screen.wait_for("max_inflight = 3")?;
    assert_eq!(controller.lane(LANE)?.limit, 3);

    screen.press("l\x7f9\x1b")?;
    screen.wait_for("q quit")?;
    assert_eq!(controller.lane(LANE)?.limit, 3, "called off");
    screen.press("?")?;
    screen.wait_for("change its limit")?;
    Ok(())
}

/// Whatever ends it, the shell gets back the terminal it had.
#[test]
fn the_terminal_is_given_back() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::at_once())?;
    let controller = Controller::builder(&stage)?
        .lane(LANE, LaneFile::over(gateway.addresses()).limit(5))?
        .start()?;
    type End = fn(&mut Terminal) -> Result<()>;
    let ends: [(&str, End); 4] = [
        ("q", |screen| screen.press("q")),
        ("Ctrl-C", |screen| screen.press("p\x03")),
        ("SIGTERM", |screen| screen.signal(Signal::SIGTERM)),
        ("SIGINT", |screen| screen.signal(Signal::SIGINT)),
    ];
    for (how, end) in ends {
        let mut screen = top(&controller)?;
        assert!(screen.is_full_screen() && !screen.is_restored()?, "{how}");
        end(&mut screen)?;
        let status = screen.finish()?;
        assert!(status.success(), "{how}: {status}");
        let restored = poll_until(PATIENCE, || {
            screen.is_restored().is_ok_and(|is| is).then_some(())
        });
        assert!(restored.is_some(), "{how}: {}", screen.screen());
    }
    Ok(())
}

/// A restart of the controller is shown, and is over when it is over; so is a smaller window.
#[test]
fn a_restart_of_the_controller_is_survived() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::at_once())?;
    let directory = tempfile::tempdir()?;
    let start = || {
        Controller::builder(&stage)?
            .lane(LANE, LaneFile::over(gateway.addresses()).limit(5))?
            .control_at(&directory.path().join("control.sock"))?
            .start()
    };
    let controller = start()?;
    let mut screen = top(&controller)?;
    controller.stop()?;
    let away = screen.wait_for("controller not reachable")?;
    assert!(away.contains(LANE), "what was known stays:\n{away}");
    screen.press("p\r")?;
    screen.wait_for("no controller is listening")?;

    let _again = start()?;
    screen.wait_until("the controller", |screen| {
        screen.contains("shaper 0") && !screen.contains("not reachable")
    })?;
    screen.resize(Size::new(12, 60))?;
    screen.wait_until("a screen of 60 columns", |screen| {
        screen.lines().all(|line| line.chars().count() <= 60) && shown(screen) == Some([0, 5, 0])
    })?;
    Ok(())
}

/// Without a terminal there is nothing to draw on, which is said with what to use instead.
#[test]
fn without_a_terminal_it_names_the_other_command() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::at_once())?;
    let controller = Controller::builder(&stage)?
        .lane(LANE, LaneFile::over(gateway.addresses()).limit(5))?
        .start()?;
    let finished = controller.command("top", &[])?;
    assert_eq!(finished.exit_code()?, 1);
    assert!(
        finished.stderr.contains("shaper status"),
        "{}",
        finished.stderr
    );
    Ok(())
}
