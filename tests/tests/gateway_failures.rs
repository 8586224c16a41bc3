//! How a gateway's failures are told apart: in the metrics, and in the snapshot.

use std::net::TcpListener;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::socket::{Backlog, listen};
use serde::Deserialize;
use shaper_tests::client::{CurlOutcome, curl};
use shaper_tests::clock::poll_until;
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, BreakOff, Gateway};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::script::script;
use shaper_tests::stage::Stage;

const PATIENCE: Duration = Duration::from_secs(30);

/// The stub's answers, by the label of the request.
fn stub() -> Result<Gateway> {
    Gateway::builder()
        .listen_v4()?
        .answer_by(|request| match request.label.as_deref() {
            Some("reset") => Answer::broken_off(BreakOff::Reset),
            Some("close") => Answer::broken_off(BreakOff::Close),
            Some("error") => Answer::internal_server_error(),
            Some("throttle") => Answer::throttled(),
            Some("hang") => Answer::never(),
            _ => Answer::at_once(),
        })
        .start()
}

/// Polls until the counter of `kind` is `count`, and no other kind is counted.
fn counted(controller: &Controller, kind: &str, count: usize) -> Result<()> {
    let errors = |labels: &[(&str, &str)]| {
        let metrics = controller.metrics().ok()?;
        Some(metrics.sum("shaper_gateway_errors_total", labels) as usize)
    };
    poll_until(PATIENCE, || {
        (errors(&[("kind", kind)])? == count && errors(&[])? == count).then_some(())
    })
    .with_context(|| {
        format!(
            "not {count} times {kind:?}: {:?}; the log:\n{}",
            controller
                .lane("gateway")
                .map(|lane| lane.gateway_errors_5m),
            controller.log()
        )
    })
}

/// A18: each way in which a gateway fails is told by its name, once for each request; what it serves is no failure.
#[test]
fn each_failure_is_counted_by_its_kind() -> Result<()> {
    for (label, kind) in [
        ("fine", None),
        ("reset", Some("reset")),
        ("close", Some("unanswered")),
        ("error", Some("server_error")),
        ("throttle", Some("throttled")),
    ] {
        let stage = Stage::set()?;
        let gateway = stub()?;
        let controller = Controller::builder(&stage)?
            .lane("gateway", LaneFile::over(gateway.addresses()))?
            .start()?;
        for _ in 0..2 {
            curl(&gateway.url(), label)
                .spawn_in(&stage.default)?
                .finish(PATIENCE)?;
        }
        match kind {
            Some(kind) => counted(&controller, kind, 2)?,
            None => counted(&controller, "reset", 0)?,
        }
        // In a lane with slots to spare the controller reads the news at leisure.
        let made = || {
            let metrics = controller.metrics().ok()?;
            let made = metrics.sum("shaper_connect_seconds_count", &[]);
            (made == 2.0).then_some(metrics)
        };
        let metrics = poll_until(PATIENCE, made)
            .with_context(|| format!("{label}: not two connects that were made"))?;
        let failed = metrics.sum("shaper_connections_total", &[("outcome", "failed")]);
        let broken = matches!(label, "reset" | "close");
        assert_eq!(failed, if broken { 2.0 } else { 0.0 }, "{label}");
    }
    Ok(())
}

/// A18: a refused connect is the gateway's, whether its SYN had been held or not.
#[test]
fn a_refused_connect_is_counted() -> Result<()> {
    let stage = Stage::set()?;
    let nobody = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let controller = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(&[nobody]).limit(1))?
        .start()?;
    let clients: Vec<_> = (0..3)
        .map(|_| curl(&format!("http://{nobody}/"), "client").spawn_in(&stage.default))
        .collect::<Result<_>>()?;
    for client in clients {
        assert_eq!(client.finish(PATIENCE)?.outcome, CurlOutcome::refused());
    }
    counted(&controller, "refused", 3)
}

#[derive(Debug, Deserialize)]
struct GaveUp {
    error: String,
}

/// A18: a SYN that nobody answers is told once its client gives up.
#[test]
fn a_syn_without_an_answer_is_counted() -> Result<()> {
    const GIVES_UP: &str = r#"
try:
    plain(timeout=2.5)
    report(error="none")
except OSError as error:
    report(error=type(error).__name__)
"#;
    let stage = Stage::set()?;
    // A listener whose queue is full drops SYNs (`tcp_conn_request`: `sk_acceptq_is_full`).
    let gateway = Gateway::answering(Answer::at_once())?;
    let deaf = TcpListener::bind("127.0.0.1:0")?;
    listen(&deaf, Backlog::new(0)?)?;
    let address = deaf.local_addr()?;
    let _fills_the_queue = std::net::TcpStream::connect(address)?;
    let controller = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(&[address]))?
        .start()?;
    let program = format!("PORT = {}\n{GIVES_UP}", address.port());
    let client = script::<GaveUp>("client", &gateway, &program).spawn_in(&stage.default)?;
    assert_eq!(client.finish(PATIENCE)?.0.error, "TimeoutError");
    counted(&controller, "connect_timeout", 1)
}

/// A18: a client that gives up on its answer is counted, whether its slot lingers or not, and is no error of the gateway.
#[test]
fn clients_that_leave_before_the_first_byte_are_counted() -> Result<()> {
    const LEAVES: &str = r#"
connection = dial()
connection.sendall(request(label="hang"))
time.sleep(0.3)
connection.close()
report(error="none")
"#;
    for abort_hold in ["0s", "1s"] {
        let stage = Stage::set()?;
        let gateway = stub()?;
        let lane = LaneFile::over(gateway.addresses());
        let controller = Controller::builder(&stage)?
            .lane(
                "gateway",
                lane.line(&format!("abort_hold = \"{abort_hold}\"")),
            )?
            .start()?;
        for _ in 0..2 {
            script::<GaveUp>("client", &gateway, LEAVES)
                .spawn_in(&stage.default)?
                .finish(PATIENCE)?;
        }
        let lane = controller.wait_until("gateway", |lane| lane.clients_gone_5m == 2)?;
        assert!(lane.gateway_errors_5m.is_empty(), "{lane:?}");
        controller.wait_for("gateway", 0, 0)?;
        let abandoned = [("outcome", "abandoned")];
        let metrics = controller.metrics()?;
        assert_eq!(metrics.sum("shaper_connections_total", &abandoned), 2.0);
        assert_eq!(metrics.sum("shaper_connections_total", &[]), 2.0);
    }
    Ok(())
}
