//! Requests that wait on connections that are up: they arrive whole and at once, or not at all.

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::thread::{self, sleep};
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use shaper_tests::clock::{median, poll_until};
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway, GatewayBuilder, Latch};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::netns::{Netns, VethPair};
use shaper_tests::script::script;
use shaper_tests::stage::{Scale, Stage};

const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, Deserialize)]
struct Call {
    status: u16,
}

/// A call with a label and a body of so many bytes.
const CALLS: &str = r#"
connection = dial(timeout=300)
report(status=call(connection, label=ARGUMENTS[0], body=int(ARGUMENTS[1])))
"#;

/// Uploads of 1 MB wait behind one call for a while, then each hands the slot to the next.
fn uploads_arrive_whole_and_at_once(
    stage: &Stage,
    what: &str,
    gateway: GatewayBuilder,
    clients_live_in: Option<&Netns>,
) -> Result<()> {
    const BYTES: usize = 1024 * 1024;
    let scale = Scale::asked();
    let uploads = scale.pick(20, 4);
    let held = scale.pick(Duration::from_secs(30), Duration::from_secs(3));
    let release = Latch::shut();
    let holders_answer = Answer::once_open(&release);
    let gateway = gateway
        .answer_by(move |request| match request.label.as_deref() {
            Some("holder") => holders_answer.clone(),
            _ => Answer::at_once(),
        })
        .start()?;
    let controller = Controller::builder(stage)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses()).connect_hold(Duration::ZERO),
        )?
        .start()?;
    let start = |label: &str, bytes: usize| {
        let client = script::<Call>(label, &gateway, CALLS)
            .argument(label)
            .argument(bytes.to_string());
        let client = match clients_live_in {
            Some(netns) => client.in_netns(netns)?,
            None => client,
        };
        client.spawn_in(&stage.bulk)
    };
    let holder = start("holder", 1024)?;
    controller.wait_for("gateway", 1, 0)?;
    let waiting = (0..uploads)
        .map(|_| start("upload", BYTES))
        .collect::<Result<Vec<_>>>()?;
    controller.wait_for("gateway", 1, uploads)?;
    sleep(held);
    assert_eq!(
        gateway.tally().requests.len(),
        1,
        "a byte of a held request arrived"
    );
    release.open();
    for client in waiting.into_iter().chain([holder]) {
        assert_eq!(client.finish(PATIENCE)?.0.status, 200);
    }

    let tally = gateway.tally();
    assert_eq!((tally.peak_in_service, tally.served()), (1, uploads + 1));
    let mut delays = Vec::new();
    for pair in tally.requests.windows(2) {
        assert_eq!(pair[1].body_bytes, BYTES);
        let released = pair[0].answered.context("every request was answered")?;
        let arrived = pair[1].last_byte.context("every request arrived")?;
        delays.push(arrived.since(released));
    }
    let median = median(&delays);
    println!("{what}: 1 MB held {held:?} arrived {median:?} after its release, of {delays:?}");
    let bound = scale.pick(Duration::from_millis(100), Duration::from_millis(500));
    assert!(median < bound, "{what}: {median:?}; all: {delays:?}");
    Ok(())
}

/// A10: an upload held on a connection that is up arrives whole, and soon after its turn has come.
#[test]
fn a_held_upload_arrives_whole_and_at_once_on_ipv4() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::builder().listen_v4()?;
    uploads_arrive_whole_and_at_once(&stage, "loopback, IPv4", gateway, None)
}

/// A10.
#[test]
fn a_held_upload_arrives_whole_and_at_once_on_ipv6() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::builder().listen_v6()?;
    uploads_arrive_whole_and_at_once(&stage, "loopback, IPv6", gateway, None)
}

fn in_a_namespace(what: &str, gateway_address: impl Fn(&Netns) -> IpAddr) -> Result<()> {
    let stage = Stage::set()?;
    let pair = VethPair::create()?;
    let address = SocketAddr::from((gateway_address(&pair.gateway), 0));
    let gateway = Gateway::builder().listen_in(&pair.gateway, address)?;
    uploads_arrive_whole_and_at_once(&stage, what, gateway, Some(&pair.client))
}

/// A10.
#[test]
fn a_held_upload_arrives_whole_and_at_once_in_a_network_namespace_on_ipv4() -> Result<()> {
    in_a_namespace("veth, IPv4", |gateway| gateway.v4.into())
}

/// A10.
#[test]
fn a_held_upload_arrives_whole_and_at_once_in_a_network_namespace_on_ipv6() -> Result<()> {
    in_a_namespace("veth, IPv6", |gateway| gateway.v6.into())
}

/// A10: the hold outlasts a host that gives up on unanswered packets after a few seconds.
#[test]
fn a_held_request_outlasts_a_low_tcp_retries2() -> Result<()> {
    let held = Scale::asked().pick(Duration::from_secs(20), Duration::from_secs(5));
    let stage = Stage::set()?;
    let pair = VethPair::create()?;
    // TCP by itself gives up after 3 s.
    pair.client.set("net/ipv4/tcp_retries2", "4")?;
    let release = Latch::shut();
    let address = SocketAddr::from((pair.gateway.v4, 0));
    let gateway = Gateway::builder()
        .listen_in(&pair.gateway, address)?
        .answer(Answer::once_open(&release))
        .start()?;
    let controller = Controller::builder(&stage)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses()).connect_hold(Duration::ZERO),
        )?
        .start()?;
    let start = |label: &str| {
        script::<Call>(label, &gateway, CALLS)
            .argument(label)
            .argument("1024")
            .in_netns(&pair.client)?
            .spawn_in(&stage.bulk)
    };
    let holder = start("holder")?;
    controller.wait_for("gateway", 1, 0)?;
    let waiter = start("waiter")?;
    controller.wait_for("gateway", 1, 1)?;
    sleep(held);
    controller.wait_for("gateway", 1, 1)?;
    release.open();
    for client in [holder, waiter] {
        assert_eq!(client.finish(PATIENCE)?.0.status, 200);
    }
    assert_eq!(gateway.tally().peak_in_service, 1);
    Ok(())
}

/// A9, D5: a client that is killed while its request waits: the gateway never sees a byte of it, and the connection
/// ends.
#[test]
fn the_gateway_never_sees_a_byte_of_a_killed_clients_request() -> Result<()> {
    // The kernel would try again within a second or two if the request were still there.
    const QUIET: Duration = Duration::from_secs(2);
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::answering(Answer::once_open(&release))?;
    let controller = Controller::builder(&stage)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses()).connect_hold(Duration::ZERO),
        )?
        .start()?;
    let start = |label: &str| {
        script::<Call>(label, &gateway, CALLS)
            .argument(label)
            .argument("200000")
            .spawn_in(&stage.bulk)
    };
    let holder = start("holder")?;
    controller.wait_for("gateway", 1, 0)?;
    let killed = start("killed")?;
    controller.wait_for("gateway", 1, 1)?;
    poll_until(PATIENCE, || (gateway.tally().accepted == 2).then_some(()))
        .context("the waiter's connection is up")?;
    sleep(Duration::from_millis(300));
    killed.kill9()?;
    controller.wait_for("gateway", 1, 0)?;
    poll_until(PATIENCE, || (gateway.connections() == 1).then_some(()))
        .context("the killed client's connection ends")?;
    release.open();
    assert_eq!(holder.finish(PATIENCE)?.0.status, 200);
    controller.wait_for("gateway", 0, 0)?;
    sleep(QUIET);
    let tally = gateway.tally();
    assert_eq!((tally.accepted, tally.requests.len()), (2, 1), "{tally:?}");
    Ok(())
}

/// C9: a client that closes before its answer keeps its slot for `abort_hold`: the gateway may still be at work.
#[test]
fn an_abandoned_request_keeps_its_slot_for_abort_hold() -> Result<()> {
    const ABORT_HOLD: Duration = Duration::from_secs(2);
    let stage = Stage::set()?;
    let gateway = Gateway::builder()
        .listen_v4()?
        .answer_by(|request| match request.label.as_deref() {
            Some("abandons") => Answer::never(),
            _ => Answer::at_once(),
        })
        .start()?;
    let lane = LaneFile::over(gateway.addresses())
        .connect_hold(Duration::ZERO)
        .line("abort_hold = \"2s\"");
    let controller = Controller::builder(&stage)?
        .lane("gateway", lane)?
        .start()?;
    let start = |label: &str| {
        script::<Call>(label, &gateway, CALLS)
            .argument(label)
            .argument("1024")
            .spawn_in(&stage.bulk)
    };
    let abandons = start("abandons")?;
    poll_until(PATIENCE, || {
        let arrived = gateway.tally().requests;
        arrived.first()?.last_byte.map(drop)
    })
    .context("the request arrives")?;
    let next = start("next")?;
    controller.wait_for("gateway", 1, 1)?;
    let left = shaper_tests::clock::Moment::now();
    abandons.kill9()?;
    controller
        .wait_for("gateway", 1, 1)
        .context("the slot stays")?;
    assert_eq!(next.finish(PATIENCE)?.0.status, 200);
    let waited = gateway.tally().requests[1].first_byte.since(left);
    println!("the slot of an abandoned request went {waited:?} after its client");
    assert!(
        (ABORT_HOLD..ABORT_HOLD + Duration::from_secs(1)).contains(&waited),
        "{waited:?}"
    );
    controller.wait_for("gateway", 0, 0)?;
    Ok(())
}

/// Makes a call that is never answered.
const CALLS_IN_VAIN: &str = r#"
connection = plain()
try:
    connection.sendall(request())
    read_response(connection)
except (EOFError, OSError) as error:
    report(error=repr(error))
"#;

#[derive(Debug, Deserialize)]
struct Ended {
    error: String,
}

/// What the gateway does to a connection on which a request waits.
#[derive(Clone, Copy, Debug)]
enum Ending {
    Closes,
    Resets,
}

/// D4: a gateway that ends a connection while a request waits on it ends the waiter, which never takes a slot.
fn the_gateway_ends_a_waiting_connection(how: Ending) -> Result<()> {
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::answering(Answer::once_open(&release))?;
    // On this port of the lane connections are accepted, and ended after a while.
    let unfriendly = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("cannot listen")?;
    let address = unfriendly.local_addr()?;
    let lane = LaneFile::over(&[gateway.address(), address]).connect_hold(Duration::ZERO);
    let controller = Controller::builder(&stage)?
        .lane("gateway", lane)?
        .start()?;
    let ending = thread::spawn(move || -> Result<Vec<u8>> {
        let (mut connection, _) = unfriendly.accept()?;
        sleep(Duration::from_secs(1));
        connection.set_nonblocking(true)?;
        let mut seen = vec![0; 4096];
        let count = connection.read(&mut seen).unwrap_or(0);
        seen.truncate(count);
        end(connection, how)?;
        Ok(seen)
    });

    let holder = script::<Call>("holder", &gateway, CALLS)
        .argument("holder")
        .argument("1024")
        .spawn_in(&stage.bulk)?;
    controller.wait_for("gateway", 1, 0)?;
    let port = address.port();
    let waiter = script::<Ended>(
        "waiter",
        &gateway,
        &format!("PORT = {port}\n{CALLS_IN_VAIN}"),
    )
    .spawn_in(&stage.bulk)?;
    controller.wait_for("gateway", 1, 1)?;
    controller
        .wait_for("gateway", 1, 0)
        .context("the waiter ends")?;
    let seen = ending.join().expect("the listener does not panic")?;
    assert_eq!(seen, b"", "{how:?}: the gateway saw a byte of the request");
    println!(
        "{how:?}: the client saw {}",
        waiter.finish(PATIENCE)?.0.error
    );
    release.open();
    assert_eq!(holder.finish(PATIENCE)?.0.status, 200);
    let admitted = controller
        .metrics()?
        .sum("shaper_requests_total", &[("lane", "gateway")]);
    controller.wait_for("gateway", 0, 0)?;
    assert_eq!(admitted, 1.0, "slots taken");
    Ok(())
}

fn end(connection: TcpStream, how: Ending) -> Result<()> {
    if let Ending::Resets = how {
        let linger = nix::libc::linger {
            l_onoff: 1,
            l_linger: 0,
        };
        nix::sys::socket::setsockopt(&connection, nix::sys::socket::sockopt::Linger, &linger)?;
    }
    drop(connection);
    Ok(())
}

/// D4.
#[test]
fn a_gateway_that_closes_while_a_request_waits_ends_the_waiter() -> Result<()> {
    the_gateway_ends_a_waiting_connection(Ending::Closes)
}

/// D4.
#[test]
fn a_gateway_that_resets_while_a_request_waits_ends_the_waiter() -> Result<()> {
    the_gateway_ends_a_waiting_connection(Ending::Resets)
}
