//! The configuration changes while connections are open: nothing breaks, nothing is forgotten, and what is wrong is told.

use std::fs::{self, File};
use std::io::Write;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use nix::sys::signal::Signal;
use serde::Deserialize;
use shaper_tests::client::{finish_all, probe, python};
use shaper_tests::clock::{Moment, poll_until};
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway, Latch, RequestRecord};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::snapshot::Snapshot;
use shaper_tests::stage::{Scale, Stage};

const PATIENCE: Duration = Duration::from_secs(30);

/// Sixty threads that call again and again, each call on a connection of its own, until a file appears.
const CROWD: &str = r#"
import http.client, json, os, sys, threading

host, port, stop = sys.argv[1], int(sys.argv[2]), sys.argv[3]
served, errors, lock = [], [], threading.Lock()

def call():
    connection = http.client.HTTPConnection(host, port)
    connection.request("POST", "/v1/messages", body="word " * 200)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status

def client():
    while not os.path.exists(stop):
        try:
            status = call()
            with lock:
                served.append(status)
        except OSError as error:
            with lock:
                errors.append(repr(error))

threads = [threading.Thread(target=client) for _ in range(int(sys.argv[4]))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(json.dumps({"served": served.count(200), "errors": errors}))
"#;

#[derive(Debug, Deserialize)]
struct Crowd {
    served: usize,
    errors: Vec<String>,
}

/// Limits from 2 to 20 as if at random, each other than the one before, the same in every run.
fn limits() -> impl Iterator<Item = usize> {
    let mut state = 0x5eed_u64;
    let mut last = 0;
    std::iter::from_fn(move || {
        loop {
            // Knuth's MMIX generator.
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let limit = 2 + (state >> 33) as usize % 19;
            if limit != last {
                last = limit;
                return Some(limit);
            }
        }
    })
}

/// The most requests in service at one time between `from` and `to`, as the gateway saw it.
fn peak(requests: &[RequestRecord], from: Moment, to: Moment) -> usize {
    let in_service_at = |moment: Moment| {
        requests
            .iter()
            .filter(|r| r.first_byte <= moment && r.answered.is_none_or(|end| end > moment))
            .count()
    };
    // It only rises when a request begins.
    let begun = requests.iter().map(|r| r.first_byte);
    begun
        .filter(|begun| (from..to).contains(begun))
        .chain([from])
        .map(in_service_at)
        .max()
        .unwrap_or(0)
}

/// A14: held slots are not revoked, no connection breaks, and the gateway never sees more than the larger of the two
/// limits around a change.
#[test]
fn a_limit_changes_again_and_again_under_load_and_nothing_breaks() -> Result<()> {
    const FIRST: usize = 6;
    let changes_wanted = Scale::asked().pick(50, 20);
    let connections = Scale::asked().pick(200_usize, 60);
    let stage = Stage::set()?;
    let latch = Latch::shut();
    let counted = Answer::once_open(&latch);
    let gateway = Gateway::builder()
        .listen_v4()?
        .answer_by(move |request| match request.label.as_deref() {
            Some("counted") => counted.clone(),
            _ => Answer::after(Duration::from_millis(60)).closing(),
        })
        .start()?;
    let lane = |limit| {
        LaneFile::over(gateway.addresses())
            .limit(limit)
            .queue(connections)
            .line("abort_hold = \"0s\"")
    };
    let controller = Controller::builder(&stage)?
        .lane("gateway", lane(FIRST))?
        .start()?;
    let stop = controller.config().join("stop");
    let crowd = python::<Crowd>("crowd", CROWD)
        .argument(gateway.address().ip().to_string())
        .argument(gateway.address().port().to_string())
        .argument(stop.to_string_lossy())
        .argument(connections.to_string())
        .spawn_in(&stage.bulk)?;
    controller.wait_until("gateway", |lane| lane.queued > 0)?;

    let mut changes = vec![(FIRST, Moment::now())];
    for limit in limits().take(changes_wanted) {
        changes.push((limit, Moment::now()));
        controller.write_lane("gateway", lane(limit))?;
        controller.wait_until("gateway", |lane| {
            lane.limit == limit && lane.inflight <= limit
        })?;
    }
    let end = Moment::now();
    File::create(&stop).context("cannot stop the crowd")?;
    let crowd = crowd.finish(PATIENCE)?.0;
    assert_eq!(crowd.errors, Vec::<String>::new(), "refused or broken");

    let tally = gateway.tally();
    assert_eq!(
        (tally.served(), tally.aborted()),
        (crowd.served, 0),
        "served and aborted at the gateway"
    );
    for (number, pair) in changes.windows(2).enumerate() {
        let [(before, _), (after, from)] = pair else {
            continue;
        };
        let to = changes.get(number + 2).map_or(end, |(_, next)| *next);
        let seen = peak(&tally.requests, *from, to);
        assert!(
            seen <= *before.max(after),
            "{seen} in service around the change from {before} to {after}"
        );
    }

    // No drift: exactly as many as the limit says get through.
    controller.wait_for("gateway", 0, 0)?;
    controller.write_lane("gateway", lane(3))?;
    controller.wait_until("gateway", |lane| lane.limit == 3)?;
    let mut clients = Vec::new();
    for _ in 0..5 {
        clients.push(probe(gateway.address(), "counted")?.spawn_in(&stage.bulk)?);
    }
    controller.wait_for("gateway", 3, 2)?;
    latch.open();
    for report in finish_all(clients, PATIENCE)? {
        report.answered()?;
    }
    controller.wait_for("gateway", 0, 0)?;
    Ok(())
}

fn reloads(controller: &Controller, result: &str) -> Result<f64> {
    let metrics = controller.metrics()?;
    Ok(metrics.sum("shaper_config_reloads_total", &[("result", result)]))
}

/// A controller over one lane `gateway` with this limit, at an address where nobody listens.
fn idle(stage: &Stage, limit: usize) -> Result<Controller> {
    Controller::builder(stage)?
        .lane("gateway", idle_lane(limit))?
        .start()
}

fn idle_lane(limit: usize) -> LaneFile {
    LaneFile::over(&[([127, 0, 0, 1], 4000).into()]).limit(limit)
}

/// An editor that writes in place leaves half a file for a moment.
#[test]
fn a_file_that_is_edited_in_a_hurry_is_read_when_it_is_whole() -> Result<()> {
    let stage = Stage::set()?;
    let controller = idle(&stage, 1)?;
    let path = controller.config().join("lanes.d/gateway.toml");
    for limit in 2..=20 {
        let text = idle_lane(limit).toml();
        let (half, rest) = text.split_at(text.len() / 2);
        let mut file = File::create(&path).context("cannot write the lane's file")?;
        file.write_all(half.as_bytes())?;
        sleep(Duration::from_millis(10));
        file.write_all(rest.as_bytes())?;
    }
    controller.wait_until("gateway", |lane| lane.limit == 20)?;
    assert_eq!(
        reloads(&controller, "rejected")?,
        0.0,
        "half a file was read"
    );
    assert_eq!(reloads(&controller, "applied")?, 1.0);
    Ok(())
}

/// Configuration management replaces directories whole; a watch alone would stay with the old one.
#[test]
fn a_replaced_directory_is_followed() -> Result<()> {
    let stage = Stage::set()?;
    let controller = idle(&stage, 1)?;
    let lanes = controller.config().join("lanes.d");
    let next = controller.config().join("next");
    for limit in [2, 3] {
        fs::create_dir(&next)?;
        fs::write(next.join("gateway.toml"), idle_lane(limit).toml())?;
        fs::rename(&lanes, controller.config().join(format!("old-{limit}")))?;
        fs::rename(&next, &lanes)?;
        controller.wait_until("gateway", |lane| lane.limit == limit)?;
    }
    controller.write_lane("gateway", idle_lane(4))?;
    controller.wait_until("gateway", |lane| lane.limit == 4)?;
    Ok(())
}

fn until(
    controller: &Controller,
    what: &str,
    wanted: impl Fn(&Snapshot) -> bool,
) -> Result<Snapshot> {
    poll_until(PATIENCE, || {
        controller
            .snapshot()
            .ok()
            .filter(|snapshot| wanted(snapshot))
    })
    .ok_or_else(|| anyhow!("not {what}; the log:\n{}", controller.log()))
}

/// A14, E9: a bad file keeps what is in force, and is logged, counted and shown until it is mended.
#[test]
fn a_bad_file_changes_nothing_and_is_shown_until_it_is_mended() -> Result<()> {
    let stage = Stage::set()?;
    let controller = idle(&stage, 5)?;
    let bad = idle_lane(9).line("max_inflght = 3");
    controller.write_lane("gateway", bad)?;
    let snapshot = until(&controller, "rejected", |s| s.last_reload_error.is_some())?;
    let error = snapshot.last_reload_error.unwrap_or_default();
    for word in [
        "gateway.toml",
        "max_inflght",
        "did you mean `max_inflight`?",
    ] {
        assert!(error.contains(word), "{word:?} is missing in:\n{error}");
    }
    assert_eq!(controller.lane("gateway")?.limit, 5, "the old limit");
    assert_eq!(reloads(&controller, "rejected")?, 1.0);
    let rejected = || anyhow::Ok(controller.metrics()?.sum("shaper_config_rejected", &[]));
    assert_eq!(rejected()?, 1.0);
    let status = controller.command("status", &[])?;
    assert!(status.stdout.contains("max_inflght"), "{}", status.stdout);
    assert!(controller.log().contains("max_inflght"));

    controller.write_lane("gateway", idle_lane(5))?;
    until(&controller, "mended", |s| s.last_reload_error.is_none())?;
    assert_eq!(reloads(&controller, "unchanged")?, 1.0);
    assert_eq!(rejected()?, 0.0);
    Ok(())
}

/// A14: SIGHUP reads the files again; what has not changed is left alone.
#[test]
fn an_identical_configuration_is_left_alone() -> Result<()> {
    let stage = Stage::set()?;
    let controller = idle(&stage, 5)?;
    for times in 1..=3 {
        controller.signal(Signal::SIGHUP)?;
        until(&controller, "read again", |_| {
            reloads(&controller, "unchanged").is_ok_and(|count| count == f64::from(times))
        })?;
    }
    assert_eq!(reloads(&controller, "applied")?, 0.0);
    Ok(())
}

/// A14, E4: a removed lane lets its waiters go and breaks nothing; back again, it still knows who is in flight.
#[test]
fn a_removed_lane_lets_its_waiters_go_and_comes_back_with_what_is_open() -> Result<()> {
    const WAITERS: usize = 3;
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::answering(Answer::once_open(&release))?;
    let lane = || LaneFile::over(gateway.addresses()).limit(1);
    let controller = Controller::builder(&stage)?
        .lane("gateway", lane())?
        .start()?;
    let client = || probe(gateway.address(), "client")?.spawn_in(&stage.bulk);
    let mut clients = vec![client()?];
    controller.wait_for("gateway", 1, 0)?;
    for _ in 0..WAITERS {
        clients.push(client()?);
    }
    controller.wait_for("gateway", 1, WAITERS)?;

    fs::remove_file(controller.config().join("lanes.d/gateway.toml"))?;
    until(&controller, "removed", |s| s.lanes.is_empty())?;
    poll_until(PATIENCE, || {
        (gateway.tally().requests.len() == 1 + WAITERS).then_some(())
    })
    .with_context(|| format!("not all waiters were let go:\n{}", controller.log()))?;
    clients.push(client()?);
    poll_until(PATIENCE, || {
        (gateway.tally().requests.len() == 2 + WAITERS).then_some(())
    })
    .context("a client of a removed lane is held")?;
    let series = controller.metrics()?;
    assert_eq!(
        series.sum("shaper_requests_total", &[("lane", "gateway")]),
        0.0,
        "the removed lane's series"
    );

    controller.write_lane("gateway", lane())?;
    until(&controller, "back", |s| !s.lanes.is_empty())?;
    controller
        .wait_for("gateway", 1, 0)
        .context("the first client is still in flight")?;
    clients.push(client()?);
    controller.wait_for("gateway", 1, 1)?;
    release.open();
    for report in finish_all(clients, PATIENCE)? {
        report.answered()?;
    }
    controller.wait_for("gateway", 0, 0)?;
    Ok(())
}

/// Lanes come while the controller runs, and an endpoint moves from one to another.
#[test]
fn an_endpoint_moves_to_a_new_lane() -> Result<()> {
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::answering(Answer::once_open(&release))?;
    let controller = Controller::builder(&stage)?
        .lane("old", LaneFile::over(gateway.addresses()).limit(5))?
        .start()?;
    let lanes = controller.config().join("lanes.d");
    fs::rename(lanes.join("old.toml"), lanes.join("new.toml"))?;
    until(&controller, "renamed", |s| {
        s.lanes.iter().map(|lane| lane.lane.as_str()).eq(["new"])
    })?;
    controller.write_lane("new", LaneFile::over(gateway.addresses()).limit(1))?;
    controller.wait_until("new", |lane| lane.limit == 1)?;
    let client = || probe(gateway.address(), "client")?.spawn_in(&stage.bulk);
    let clients = vec![client()?, client()?];
    controller.wait_for("new", 1, 1)?;
    release.open();
    for report in finish_all(clients, PATIENCE)? {
        report.answered()?;
    }
    Ok(())
}

/// Class cgroups may change while the controller runs; what may not is said to need a restart.
#[test]
fn a_class_gets_another_cgroup_and_scope_needs_a_restart() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::never())?;
    let controller = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(gateway.addresses()).limit(1))?
        .start()?;
    let path = controller.config().join("shaper.toml");
    let settings = fs::read_to_string(&path)?;
    let moved = settings.replace(stage.bulk.relative(), stage.outside.relative());
    fs::write(&path, format!("scope = \"host\"\n{moved}"))?;
    until(&controller, "applied", |_| {
        reloads(&controller, "applied").is_ok_and(|count| count == 1.0)
    })?;
    let log = controller.log();
    for word in ["`scope`", "restart", "no class any more"] {
        assert!(log.contains(word), "{word:?} is missing in:\n{log}");
    }

    let _outside = probe(gateway.address(), "outside")?.spawn_in(&stage.outside)?;
    let lane = controller.wait_for("gateway", 1, 0)?;
    assert_eq!(lane.inflight_by_priority["bulk"], 1);
    Ok(())
}
