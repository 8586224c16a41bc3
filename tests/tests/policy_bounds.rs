//! The bounds of the queue: how long, and how many.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, bail};
use nix::errno::Errno;
use serde::Deserialize;
use shaper_tests::client::{ProbeReport, Running, finish_all, probe};
use shaper_tests::clock::poll_until;
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway, Latch};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::script::script;
use shaper_tests::stage::Stage;

const PATIENCE: Duration = Duration::from_secs(10);

/// The errno of a call that failed, and after what time.
fn failure(report: &ProbeReport) -> Result<(Errno, Duration)> {
    match *report {
        ProbeReport::Failed {
            started,
            failed,
            errno,
        } => Ok((Errno::from_raw(errno), failed.since(started))),
        ProbeReport::Answered(_) => bail!("the call was answered"),
    }
}

/// A3, A11, A12: a waiter is ended when its class may wait no longer. It sees ECONNABORTED, the log says who waited how
/// long and what to change, and nothing is tried again.
#[test]
fn a_waiter_is_ended_at_the_queue_timeout_of_its_class_and_the_log_says_so() -> Result<()> {
    const TOLERANCE: Duration = Duration::from_millis(300);
    const TIMEOUT: Duration = Duration::from_secs(3);
    const BULK_TIMEOUT: Duration = Duration::from_secs(1);
    // Longer than the kernel takes to resend a SYN, should there be one to resend.
    const QUIET: Duration = Duration::from_millis(1500);
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::answering(Answer::once_open(&release))?;
    let controller = Controller::builder(&stage)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses())
                .limit(1)
                .timeout(TIMEOUT)
                .line("ticket_grace = \"0s\"")
                .line("[class.bulk]\nqueue_timeout = \"1s\""),
        )?
        .start()?;
    let holder = probe(gateway.address(), "holder")?.spawn_in(&stage.interactive)?;
    controller.wait_for("gateway", 1, 0)?;
    let first = probe(gateway.address(), "default")?.spawn_in(&stage.default)?;
    controller.wait_for("gateway", 1, 1)?;
    let second = probe(gateway.address(), "bulk")?.spawn_in(&stage.bulk)?;
    let pids = [first.pid(), second.pid()];

    for (client, timeout) in [(second, BULK_TIMEOUT), (first, TIMEOUT)] {
        let (errno, after) = failure(&client.finish(PATIENCE)?)?;
        assert_eq!(errno, Errno::ECONNABORTED);
        assert!(
            after.abs_diff(timeout) < TOLERANCE,
            "ended after {after:?} instead of {timeout:?}"
        );
    }
    release.open();
    holder.finish(PATIENCE)?.answered()?;
    controller.wait_for("gateway", 0, 0)?;
    sleep(QUIET);
    let tally = gateway.tally();
    assert_eq!((tally.accepted, tally.requests.len()), (1, 1), "{tally:?}");

    let metrics = controller.metrics()?;
    for class in ["default", "bulk"] {
        let labels = [("lane", "gateway"), ("priority", class)];
        assert_eq!(metrics.sum("shaper_queue_timeouts_total", &labels), 1.0);
    }
    let log = controller.log();
    for (class, pid, wait, position) in [
        ("bulk", pids[1], "wait=1", "position=2"),
        ("default", pids[0], "wait=3", "position=1"),
    ] {
        let words = [
            "gateway",
            "queue_timeout",
            &format!("pid={pid}"),
            wait,
            position,
        ];
        let told = log.lines().any(|line| {
            line.contains(&format!("class={class}")) && words.iter().all(|word| line.contains(word))
        });
        assert!(told, "no line with {class} and {words:?} in\n{log}");
    }
    Ok(())
}

#[derive(Debug, Deserialize)]
struct Ended {
    errno: i32,
}

/// Binds its socket to an interface while its connect is held, which takes no privilege.
const BINDS_WHILE_IT_WAITS: &str = r#"
connection = socket.socket()
connection.setblocking(False)
connection.connect_ex((HOST, PORT))
connection.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
select.select([], [connection], [], 30)
report(errno=connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
"#;

/// A3: so is one whose socket has hidden from look-ups by its addresses.
#[test]
fn a_waiter_that_binds_to_an_interface_is_ended_all_the_same() -> Result<()> {
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::answering(Answer::once_open(&release))?;
    let lane = LaneFile::over(gateway.addresses())
        .limit(1)
        .timeout(Duration::from_secs(1));
    let controller = Controller::builder(&stage)?
        .lane("gateway", lane)?
        .start()?;
    let holder = probe(gateway.address(), "holder")?.spawn_in(&stage.default)?;
    controller.wait_for("gateway", 1, 0)?;
    let ended = script::<Ended>("binds", &gateway, BINDS_WHILE_IT_WAITS)
        .spawn_in(&stage.default)?
        .finish(PATIENCE)?;
    assert_eq!(Errno::from_raw(ended.0.errno), Errno::ECONNABORTED);
    controller.wait_for("gateway", 1, 0)?;
    release.open();
    holder.finish(PATIENCE)?.answered()?;
    Ok(())
}

/// B5, D3: a connect over `max_queue`, and none below it, fails at once, with the errno of `on_full`.
#[test]
fn what_is_over_the_queue_fails_at_once_with_the_errno_that_the_operator_chose() -> Result<()> {
    const LIMIT: usize = 2;
    const QUEUE: usize = 3;
    const CLIENTS: usize = 9;
    const AT_ONCE: Duration = Duration::from_millis(300);
    let choices = [
        ("refuse", Errno::ECONNREFUSED),
        ("unreachable", Errno::EHOSTUNREACH),
        ("timeout", Errno::ETIMEDOUT),
    ];
    let stage = Stage::set()?;
    let release = Latch::shut();
    let mut builder = Controller::builder(&stage)?;
    let mut gateways = Vec::new();
    for (on_full, _) in choices {
        let gateway = Gateway::answering(Answer::once_open(&release))?;
        let file = LaneFile::over(gateway.addresses())
            .limit(LIMIT)
            .queue(QUEUE)
            .line(&format!("on_full = \"{on_full}\""));
        builder = builder.lane(on_full, file)?;
        gateways.push(gateway);
    }
    let controller = builder.start()?;

    for ((on_full, errno), gateway) in choices.into_iter().zip(&gateways) {
        let mut waiting: Vec<Running<ProbeReport>> = Vec::new();
        for number in 0..CLIENTS {
            let client = probe(gateway.address(), &number.to_string())?.spawn_in(&stage.default)?;
            if number < LIMIT + QUEUE {
                waiting.push(client);
                let queued = waiting.len().saturating_sub(LIMIT);
                controller.wait_for(on_full, waiting.len() - queued, queued)?;
            } else {
                let (seen, after) = failure(&client.finish(PATIENCE)?)?;
                assert_eq!(seen, errno, "on_full = {on_full}");
                assert!(
                    after < AT_ONCE,
                    "on_full = {on_full} failed after {after:?}"
                );
            }
        }
        controller.wait_for(on_full, LIMIT, QUEUE)?;
        // A waiter that leaves makes room for exactly one.
        if let Some(leaver) = waiting.pop() {
            leaver.kill9()?;
        }
        controller.wait_for(on_full, LIMIT, QUEUE - 1)?;
        waiting.push(probe(gateway.address(), "heir")?.spawn_in(&stage.default)?);
        controller.wait_for(on_full, LIMIT, QUEUE)?;
        let refused = controller.metrics()?.sum(
            "shaper_refusals_total",
            &[("lane", on_full), ("reason", "queue_full")],
        );
        assert_eq!(refused, (CLIENTS - LIMIT - QUEUE) as f64);
        drop(waiting);
        controller.wait_until(on_full, |lane| lane.queued == 0)?;
    }
    Ok(())
}

/// A2, A21: an observing lane holds nobody and counts everybody.
#[test]
fn an_observing_lane_holds_nobody_and_counts_everybody() -> Result<()> {
    const CLIENTS: usize = 6;
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::answering(Answer::once_open(&release))?;
    let controller = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(gateway.addresses()).limit(0))?
        .start()?;
    assert!(!controller.snapshot()?.enabled);

    let clients = (0..CLIENTS)
        .map(|number| probe(gateway.address(), &number.to_string())?.spawn_in(&stage.bulk))
        .collect::<Result<Vec<_>>>()?;
    let lane = controller.wait_for("gateway", CLIENTS, 0)?;
    assert_eq!(
        (lane.mode.as_str(), lane.diagnosis.as_str()),
        ("observe", "observe")
    );
    let all_came = poll_until(PATIENCE, || {
        (gateway.tally().requests.len() == CLIENTS).then_some(())
    });
    assert!(all_came.is_some(), "at the gateway: {:?}", gateway.tally());
    release.open();
    for report in finish_all(clients, PATIENCE)? {
        report.answered()?;
    }
    controller.wait_for("gateway", 0, 0)?;
    let metrics = controller.metrics()?;
    let labels = [("lane", "gateway"), ("priority", "bulk")];
    assert_eq!(
        metrics.sum("shaper_requests_total", &labels),
        CLIENTS as f64
    );
    assert_eq!(metrics.sum("shaper_refusals_total", &labels), 0.0);
    Ok(())
}
