//! A slot is for a request in flight: connections that are kept open between requests cost nothing.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway, TlsVersion};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::script::script;
use shaper_tests::stage::{Scale, Stage};

const PATIENCE: Duration = Duration::from_secs(60);

/// What a program with many threads reports.
#[derive(Debug, Deserialize)]
struct Calls {
    statuses: Vec<u16>,
    errors: Vec<String>,
}

/// So many agents at once, each a thread with one connection: a call, a tool for a while, a call.
const AGENTS_WITH_TOOLS: &str = r#"
agents, tool_seconds = int(ARGUMENTS[0]), float(ARGUMENTS[1])
statuses, errors = [], []

def agent():
    try:
        connection = dial()
        statuses.append(call(connection))
        time.sleep(tool_seconds)
        statuses.append(call(connection))
        connection.close()
    except Exception as error:
        errors.append(repr(error))

threads = [threading.Thread(target=agent) for _ in range(agents)]
for thread in threads: thread.start()
for thread in threads: thread.join()
report(statuses=statuses, errors=errors)
"#;

/// `tls`: what the gateway speaks. `answer`: what it answers after the service time.
fn agents_that_run_tools(
    what: &str,
    tls: Option<TlsVersion>,
    answer: impl FnOnce(Answer) -> Answer,
) -> Result<()> {
    const AGENTS: usize = 20;
    const LIMIT: usize = 4;
    const SERVICE: Duration = Duration::from_millis(300);
    let scale = Scale::asked();
    // Longer than all first calls together, so that all agents run their tools at one time.
    let tool = scale.pick(Duration::from_secs(10), Duration::from_millis(2500));
    let stage = Stage::set()?;
    let mut gateway = Gateway::builder()
        .listen_v4()?
        .answer(answer(Answer::after(SERVICE)));
    if let Some(version) = tls {
        gateway = gateway.tls(version);
    }
    let gateway = gateway.start()?;
    let lane = LaneFile::over(gateway.addresses())
        .limit(LIMIT)
        .connect_hold(Duration::from_secs(4))
        .line("idle_release = \"1s\"");
    let controller = Controller::builder(&stage)?
        .lane("gateway", lane)?
        .start()?;

    let agents = script::<Calls>("agents with tools", &gateway, AGENTS_WITH_TOOLS)
        .argument(AGENTS.to_string())
        .argument(tool.as_secs_f64().to_string())
        .spawn_in(&stage.default)?;
    controller
        .wait_until("gateway", |lane| {
            lane.is_quiet() && lane.idle_connections == AGENTS
        })
        .context("waiting for all agents to run their tools, without a slot")?;
    let calls = agents.finish(PATIENCE)?.0;

    assert_eq!(calls.errors, Vec::<String>::new());
    assert_eq!(calls.statuses, [200; 2 * AGENTS]);
    let tally = gateway.tally();
    assert_eq!(tally.peak_in_service, LIMIT);
    // Five waves of first calls, of which the last one's agents are the last to call again.
    let ideal = SERVICE * (AGENTS / LIMIT) as u32 + tool + SERVICE;
    let first = tally.requests.first().context("there were requests")?;
    let last = tally.requests.iter().filter_map(|record| record.answered);
    let took = last
        .max()
        .context("they were answered")?
        .since(first.first_byte);
    let ratio = took.as_secs_f64() / ideal.as_secs_f64();
    println!("{what}: {AGENTS} agents took {took:?}, {ratio:.3} of the ideal {ideal:?}");
    assert!(
        ratio < scale.pick(1.1, 1.4),
        "{what}: {took:?} of {ideal:?}"
    );
    controller.wait_for("gateway", 0, 0)?;
    Ok(())
}

/// A8: agents that keep their connections while they run tools hold no slot and lose no time.
#[test]
fn agents_that_run_tools_between_calls_hold_no_slot() -> Result<()> {
    agents_that_run_tools("in the clear", None, |answer| answer)
}

/// A8: the same over TLS, where chunked answers end visibly.
#[test]
fn agents_that_run_tools_between_calls_hold_no_slot_over_tls() -> Result<()> {
    let events = |answer: Answer| answer.events(2, Duration::ZERO);
    agents_that_run_tools("TLS 1.3", Some(TlsVersion::V1_3), events)
}

/// Each client keeps one connection with a short HEAD and makes its call on a second one.
const HEAD_FIRST: &str = r#"
clients = int(ARGUMENTS[0])
statuses, errors = [], []

def client():
    try:
        first = dial()
        head = b"HEAD / HTTP/1.1\r\nHost: gateway\r\nX-Label: head\r\n\r\n"
        assert len(head) < 100
        first.sendall(head)
        read_response(first, "HEAD")
        second = dial()
        statuses.append(call(second, label="call"))
        second.close()
        first.close()
    except Exception as error:
        errors.append(repr(error))

threads = [threading.Thread(target=client) for _ in range(clients)]
for thread in threads: thread.start()
for thread in threads: thread.join()
report(statuses=statuses, errors=errors)
"#;

fn clients_with_a_second_connection(what: &str, tls: Option<TlsVersion>) -> Result<()> {
    const CLIENTS: usize = 6;
    const SERVICE: Duration = Duration::from_millis(200);
    const GRACE: Duration = Duration::from_millis(1500);
    let stage = Stage::set()?;
    let mut gateway =
        Gateway::builder()
            .listen_v4()?
            .answer_by(|request| match request.label.as_deref() {
                Some("call") => Answer::after(SERVICE),
                _ => Answer::at_once(),
            });
    if let Some(version) = tls {
        gateway = gateway.tls(version);
    }
    let gateway = gateway.start()?;
    let controller = Controller::builder(&stage)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses()).connect_hold(Duration::from_secs(4)),
        )?
        .start()?;

    let calls = script::<Calls>("HEAD first", &gateway, HEAD_FIRST)
        .argument(CLIENTS.to_string())
        .spawn_in(&stage.default)?
        .finish(PATIENCE)?
        .0;

    assert_eq!(calls.errors, Vec::<String>::new());
    assert_eq!(calls.statuses, [200; CLIENTS]);
    let tally = gateway.tally();
    let called = tally
        .requests
        .iter()
        .filter(|record| record.request.label.as_deref() == Some("call"));
    let ends: Vec<_> = called.filter_map(|record| record.answered).collect();
    let first = tally.requests[0].first_byte;
    let took = ends
        .into_iter()
        .max()
        .context("calls were answered")?
        .since(first);
    let ideal = SERVICE * CLIENTS as u32;
    println!("{what}: {CLIENTS} clients with two connections took {took:?}, ideal {ideal:?}");
    assert!(took < ideal + GRACE * CLIENTS as u32, "{what}: {took:?}");
    controller.wait_for("gateway", 0, 0)?;
    Ok(())
}

/// A8: a client that keeps a connection with a tiny request and calls on a second one does not lock itself out.
#[test]
fn a_client_that_calls_on_its_second_connection_is_served() -> Result<()> {
    clients_with_a_second_connection("in the clear", None)
}

/// A8.
#[test]
fn a_client_that_calls_on_its_second_connection_is_served_over_tls() -> Result<()> {
    clients_with_a_second_connection("TLS 1.3", Some(TlsVersion::V1_3))
}
