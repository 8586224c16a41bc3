//! The live page in a real browser, before a lane under load.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;
use std::{fs, thread};

use anyhow::{Context, Result};
use serde::Deserialize;
use shaper_tests::browser::Browser;
use shaper_tests::client::{finish_all, probes};
use shaper_tests::clock::poll_until;
use shaper_tests::controller::{Controller, ControllerBuilder};
use shaper_tests::gateway::{Answer, Gateway, Latch};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::snapshot::{Lane, Snapshot};
use shaper_tests::stage::Stage;

const PATIENCE: Duration = Duration::from_secs(60);
const LANE: &str = "gateway";
const TOKEN: &str = "a-token-of-some-length";

/// What one card of the page says, read in one turn of the page's script.
#[derive(Debug, Deserialize)]
struct Card {
    generated: String,
    fields: BTreeMap<String, String>,
    /// Cells of the bar of slots and of the queue, by class of style.
    slots: BTreeMap<String, usize>,
    queue: BTreeMap<String, usize>,
}

const READ: &str = r#"(() => {
    const card = document.querySelector('[data-lane="gateway"]');
    const count = (bar) => {
        const counts = {};
        for (const cell of card.querySelectorAll(`[data-cells="${bar}"] .cell`)) {
            const kind = cell.classList[1];
            counts[kind] = (counts[kind] ?? 0) + 1;
        }
        return counts;
    };
    const fields = {};
    for (const field of card.querySelectorAll("[data-field]")) fields[field.dataset.field] = field.textContent;
    return { generated: document.body.dataset.generated, fields, slots: count("slots"), queue: count("queue") };
})()"#;

const SHOWN: &str = r#"document.querySelector('[data-lane="gateway"]')"#;

/// The snapshot that the page shows: the same document, told by the moment it was made.
fn same_generation(browser: &mut Browser, controller: &Controller) -> Result<(Card, Lane)> {
    let mut snapshots: Vec<Snapshot> = Vec::new();
    poll_until(PATIENCE, || {
        let mut look = || -> Result<Option<(Card, Lane)>> {
            snapshots.push(controller.snapshot()?);
            let card: Card = browser.evaluate(READ)?;
            let same = snapshots
                .iter()
                .find(|snapshot| snapshot.generated_at == card.generated)
                .and_then(|snapshot| snapshot.lanes.iter().find(|lane| lane.lane == LANE));
            Ok(same.cloned().map(|lane| (card, lane)))
        };
        look().transpose()
    })
    .context("the page never showed a snapshot that /api/lanes served")?
}

fn counts(by_class: &BTreeMap<String, usize>) -> BTreeMap<String, usize> {
    let some = by_class.iter().filter(|(_, count)| **count > 0);
    some.map(|(class, count)| (class.clone(), *count)).collect()
}

/// A16, D9: while requests come and go the page shows the numbers of `/api/lanes`, from the same moment.
#[test]
fn the_page_shows_the_numbers_of_the_snapshot_under_load() -> Result<()> {
    const LIMIT: usize = 4;
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::answering(Answer::once_open(&release))?;
    let lane = LaneFile::over(gateway.addresses()).limit(LIMIT);
    let controller = Controller::builder(&stage)?
        .lane(LANE, lane.line("interactive_reserve = 1"))?
        .start()?;
    let mut browser = Browser::start()?;
    browser.open(&controller.url("/"))?;
    browser.wait_for(SHOWN)?;
    let mut held = Vec::new();
    for (interactive, bulk, waiting) in [(0, 2, 0), (0, 4, 3), (2, 1, 5)] {
        held.extend(probes(
            gateway.address(),
            &[(&stage.interactive, interactive), (&stage.bulk, bulk)],
        )?);
        controller.wait_for(LANE, held.len() - waiting, waiting)?;
        // Somebody comes or goes all the while, so that a snapshot of another moment would differ.
        let (card, lane) = same_generation(&mut browser, &controller)?;
        for (field, told) in [
            ("lane", LANE.to_owned()),
            ("inflight", lane.inflight.to_string()),
            ("of_limit", format!(" of {}", lane.effective_limit)),
            ("queued", lane.queued.to_string()),
            ("idle_connections", lane.idle_connections.to_string()),
        ] {
            assert_eq!(card.fields[field], told, "{field} of {card:?}");
        }
        let mut slots = card.slots.clone();
        let free = ["free", "reserved"].map(|kind| slots.remove(kind).unwrap_or(0));
        assert_eq!(slots, counts(&lane.inflight_by_priority), "{card:?}");
        assert_eq!(
            free.iter().sum::<usize>(),
            LIMIT - lane.inflight,
            "{card:?}"
        );
        assert_eq!(card.queue, counts(&lane.queued_by_priority), "{card:?}");
    }
    browser.wait_for(&format!(
        r#"{SHOWN}.querySelector('[data-state="local_queue"]') && {SHOWN}.innerText.includes("on purpose")"#
    ))?;
    browser.evaluate::<bool>(&format!("{SHOWN}.querySelector('.waiters').open = true"))?;
    browser.wait_for(&format!(
        "{SHOWN}.querySelectorAll('.waiters tbody tr').length === 5"
    ))?;
    let rows: Vec<Vec<String>> = browser.evaluate(&format!(
        "[...{SHOWN}.querySelectorAll('.waiters tbody tr')].map((row) => [...row.cells].map((cell) => cell.textContent))"
    ))?;
    for (row, waiter) in rows.iter().zip(controller.waiters()?) {
        let pid = waiter.pid.to_string();
        let command = waiter.command.unwrap_or_default();
        assert_eq!(
            (&row[0], &row[3], &row[4]),
            (&waiter.position.to_string(), &command, &pid)
        );
        assert!(row[1].ends_with(&waiter.priority), "{row:?}");
    }

    release.open();
    finish_all(held, PATIENCE)?;
    browser.wait_for(&format!(
        r#"{SHOWN}.querySelector('[data-field="inflight"]').textContent === "0""#
    ))?;
    assert_eq!(browser.complaints()?, [""; 0]);
    Ok(())
}

fn with_token(builder: ControllerBuilder) -> Result<ControllerBuilder> {
    let path = builder.directory().join("token");
    fs::write(&path, format!("{TOKEN}\n"))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    builder.settings(&format!("token_file = {path:?}"))
}

/// Without a token there is nothing to press; with one, the buttons do what the commands do.
#[test]
fn the_page_changes_a_lane_for_those_who_have_the_token() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::at_once())?;
    let lane = || LaneFile::over(gateway.addresses()).limit(5);
    let mut browser = Browser::start()?;

    let only_shows = Controller::builder(&stage)?.lane(LANE, lane())?.start()?;
    browser.open(&only_shows.url("/"))?;
    browser.wait_for(SHOWN)?;
    assert!(browser.evaluate("document.getElementById('unlock').hidden")?);
    let refused: u16 = browser.evaluate(
        "fetch('api/lanes/gateway/resume', { method: 'POST' }).then((response) => response.status)",
    )?;
    assert_eq!(refused, 403);
    only_shows.stop()?;

    let controller = with_token(Controller::builder(&stage)?.lane(LANE, lane())?)?.start()?;
    let mut browser = Browser::start()?;
    browser.open(&controller.url("/"))?;
    browser.wait_for(&format!(
        "document.getElementById('unlock')?.hidden === false && {SHOWN}"
    ))?;
    let unlock = |browser: &mut Browser, token: &str| -> Result<()> {
        browser.evaluate::<bool>(&format!(
            "document.getElementById('unlock').click(),
             document.getElementById('token').value = {token:?},
             document.querySelector('#ask button[value=ok]').click(), true"
        ))?;
        browser.wait_for(&format!(
            "{SHOWN}.querySelector('.changes').hidden === false"
        ))
    };
    let press = |browser: &mut Browser, what: &str, says: &str| -> Result<()> {
        browser.evaluate::<bool>(&format!(
            "{SHOWN}.querySelector('[data-do={what}]').click(), true"
        ))?;
        browser.wait_for(&format!(
            "{SHOWN}.querySelector('output').textContent.includes({says:?})"
        ))
    };
    unlock(&mut browser, "another-token-of-some-length")?;
    press(&mut browser, "pause", "token_file")?;
    assert_ne!(controller.lane(LANE)?.diagnosis, "paused");

    unlock(&mut browser, TOKEN)?;
    press(&mut browser, "pause", "paused for 30s")?;
    assert_eq!(controller.lane(LANE)?.diagnosis, "paused");
    browser.wait_for(&format!(
        "!{SHOWN}.querySelector('[data-do=resume]').disabled"
    ))?;
    press(&mut browser, "resume", "not paused")?;
    assert_ne!(controller.lane(LANE)?.diagnosis, "paused");
    browser.evaluate::<bool>(&format!(
        "{SHOWN}.querySelector('[name=limit]').value = '3', true"
    ))?;
    press(&mut browser, "limit", "max_inflight = 3")?;
    assert_eq!(controller.lane(LANE)?.limit, 3);
    assert!(
        !controller.log().contains(TOKEN),
        "E7: {}",
        controller.log()
    );
    Ok(())
}

/// A restart of the controller is shown, and is over when it is over.
#[test]
fn the_page_survives_a_restart() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::at_once())?;
    let start = |builder: ControllerBuilder| -> Result<Controller> {
        builder
            .lane(LANE, LaneFile::over(gateway.addresses()).limit(5))?
            .start()
    };
    let controller = start(Controller::builder(&stage)?)?;
    let http = controller.http();
    let mut browser = Browser::start()?;
    browser.open(&controller.url("/"))?;
    browser.wait_for(SHOWN)?;
    controller.stop()?;
    browser.wait_for("document.getElementById('link').dataset.link === 'lost'")?;
    thread::sleep(Duration::from_secs(1));
    let _again = start(Controller::builder(&stage)?.http_at(http)?)?;
    browser.wait_for("document.getElementById('link').dataset.link === 'live'")?;
    Ok(())
}

/// The page fits a telephone and a desk, in the light and in the dark.
#[test]
fn the_page_fits_every_width() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::never())?;
    let controller = Controller::builder(&stage)?
        .lane(LANE, LaneFile::over(gateway.addresses()).limit(40))?
        .start()?;
    let held = probes(
        gateway.address(),
        &[(&stage.interactive, 0), (&stage.bulk, 12)],
    )?;
    controller.wait_for(LANE, held.len(), 0)?;
    let mut browser = Browser::start()?;
    browser.open(&controller.url("/"))?;
    browser.wait_for(SHOWN)?;
    for (width, scheme) in [(360, "light"), (360, "dark"), (1280, "dark")] {
        browser.emulate(width, 800, scheme)?;
        let overflow: bool =
            browser.evaluate("document.documentElement.scrollWidth > window.innerWidth")?;
        assert!(!overflow, "{width} {scheme}");
    }
    // Every control is a native one and has a name.
    let nameless: Vec<String> = browser.evaluate(
        "[...document.querySelectorAll('button, input, select, summary, [role=img]')]
            .filter((element) => !(element.textContent.trim() || element.labels?.length || element.getAttribute('aria-label')))
            .map((element) => element.outerHTML)",
    )?;
    assert_eq!(nameless, [""; 0]);
    Ok(())
}
