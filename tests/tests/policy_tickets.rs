//! Places in line that outlive a socket.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use shaper_tests::client::{probe, python};
use shaper_tests::clock::poll_until;
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway, Latch};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::stage::Stage;

const PATIENCE: Duration = Duration::from_secs(20);

/// Connects with a timeout of its own and tries again when that is over, as the SDKs do.
const PROGRAM: &str = r#"
import json, socket, sys

host, port, timeout = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
attempts = 0
while True:
    attempts += 1
    try:
        connection = socket.create_connection((host, port), timeout)
        break
    except TimeoutError:
        print("gave up", file=sys.stderr, flush=True)
connection.settimeout(None)
body = b"." * 1024
head = b"POST / HTTP/1.1\r\nHost: gateway\r\nX-Label: patient\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
connection.sendall(head % len(body) + body)
answer = b"".join(iter(lambda: connection.recv(65536), b""))
print(json.dumps({"attempts": attempts, "answered": answer.startswith(b"HTTP/1.1 200 ")}))
"#;

#[derive(Debug, Deserialize)]
struct Patient {
    attempts: u32,
    answered: bool,
}

/// The connect timeout of the common SDKs is 5 s; scaled down.
const CONNECT_TIMEOUT: &str = "1.5";

/// A13, E3: a client that gives its connect up and tries again is the same request: it goes before those that came after
/// its first attempt, takes one slot, and reaches the gateway once.
#[test]
fn a_client_that_connects_again_keeps_its_place_in_line() -> Result<()> {
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::answering(Answer::once_open(&release))?;
    let controller = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(gateway.addresses()).limit(1))?
        .start()?;

    let holder = probe(gateway.address(), "holder")?.spawn_in(&stage.default)?;
    controller.wait_for("gateway", 1, 0)?;
    let patient = python::<Patient>("patient", PROGRAM)
        .argument(gateway.address().ip().to_string())
        .argument(gateway.address().port().to_string())
        .argument(CONNECT_TIMEOUT)
        .spawn_in(&stage.default)?;
    controller.wait_for("gateway", 1, 1)?;
    let later = probe(gateway.address(), "later")?.spawn_in(&stage.default)?;
    controller.wait_for("gateway", 1, 2)?;

    poll_until(PATIENCE, || {
        patient.said().contains("gave up").then_some(())
    })
    .context("the first attempt was never given up")?;
    controller.wait_for("gateway", 1, 2)?;
    release.open();
    let report = patient.finish(PATIENCE)?.0;
    holder.finish(PATIENCE)?.answered()?;
    later.finish(PATIENCE)?.answered()?;

    assert!(report.answered && report.attempts >= 2, "{report:?}");
    let tally = gateway.tally();
    assert_eq!(tally.labels(), ["holder", "patient", "later"]);
    assert_eq!((tally.accepted, tally.peak_in_service), (3, 1));
    controller.wait_for("gateway", 0, 0)?;
    Ok(())
}
