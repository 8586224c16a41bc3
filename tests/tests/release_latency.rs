//! How soon a held connect goes on once its turn has come: on loopback and through a veth pair, IPv4 and IPv6.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use shaper_tests::client::{ProbeTimes, probe};
use shaper_tests::clock::median;
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway, GatewayBuilder, Latch};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::netns::{Netns, VethPair};
use shaper_tests::stage::{Stage, a_while};

const PATIENCE: Duration = Duration::from_secs(30);

/// Ten times the promise, for machines that are busy or slow. TCP's own retransmission, which would hide that the
/// replay of the SYN does not work, takes ten times as long again.
const BOUND: Duration = Duration::from_millis(50);

const HOLDER: &str = "holder";

/// Fifty clients wait behind one for a while; then each hands the only slot to the next. `client_sees` turns the
/// gateway's address into the one that clients call.
fn fifty_held_connects_go_on_at_once(
    stage: &Stage,
    what: &str,
    gateway: GatewayBuilder,
    clients_live_in: Option<&Netns>,
    client_sees: impl Fn(SocketAddr) -> SocketAddr,
) -> Result<()> {
    const WAITERS: usize = 50;
    let release = Latch::shut();
    let holders_answer = Answer::once_open(&release);
    let gateway = gateway
        .answer_by(move |request| match request.label.as_deref() {
            Some(HOLDER) => holders_answer.clone(),
            _ => Answer::at_once(),
        })
        .start()?;
    let controller = Controller::builder(stage)?
        .lane("gateway", LaneFile::over(gateway.addresses()).limit(1))?
        .start()?;
    let start = |label: &str| {
        let client = probe(client_sees(gateway.address()), label)?;
        let client = match clients_live_in {
            Some(netns) => client.in_netns(netns)?,
            None => client,
        };
        client.spawn_in(&stage.bulk)
    };

    let holder = start(HOLDER)?;
    controller.wait_for("gateway", 1, 0)?;
    let mut waiters = Vec::new();
    for number in 0..WAITERS {
        let label = format!("waiter {number}");
        let client = start(&label)?;
        waiters.push((label, client));
    }
    controller.wait_for("gateway", 1, WAITERS)?;
    let held = a_while();
    sleep(held);
    release.open();

    holder.finish(PATIENCE)?.answered()?;
    let mut times = HashMap::<String, ProbeTimes>::new();
    for (label, client) in waiters {
        let report = client
            .finish(PATIENCE)?
            .answered()
            .with_context(|| label.clone())?;
        assert!(
            report.connected.since(report.started) >= held,
            "{label} was not held: {report:?}"
        );
        times.insert(label, report);
    }
    // From the last piece of one answer to the return of the next connect(): a little more than from the slot's
    // release, which the client's reading and closing comes before.
    let tally = gateway.tally();
    assert_eq!((tally.peak_in_service, tally.served()), (1, WAITERS + 1));
    let mut delays = Vec::new();
    for pair in tally.requests.windows(2) {
        let released = pair[0].answered.context("every request was answered")?;
        let label = pair[1]
            .request
            .label
            .as_deref()
            .context("every client has a label")?;
        delays.push(times[label].connected.since(released));
    }
    let median = median(&delays);
    println!(
        "{what}: connect() returned {median:?} after the slot's release at the median of {}",
        delays.len()
    );
    assert!(
        median <= BOUND,
        "{what}: {median:?} at the median; all: {delays:?}"
    );
    Ok(())
}

#[test]
fn a_held_connect_goes_on_within_milliseconds_on_ipv4() -> Result<()> {
    let stage = Stage::set()?;
    fifty_held_connects_go_on_at_once(
        &stage,
        "loopback, IPv4",
        Gateway::builder().listen_v4()?,
        None,
        |gateway| gateway,
    )
}

#[test]
fn a_held_connect_goes_on_within_milliseconds_on_ipv6() -> Result<()> {
    let stage = Stage::set()?;
    fifty_held_connects_go_on_at_once(
        &stage,
        "loopback, IPv6",
        Gateway::builder().listen_v6()?,
        None,
        |gateway| gateway,
    )
}

/// An IPv6 socket that calls `::ffff:127.0.0.1` sends IPv4 packets and belongs to the lane of the IPv4 address.
#[test]
fn a_held_connect_goes_on_within_milliseconds_on_a_v4_mapped_address() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::builder().listen_v4()?;
    fifty_held_connects_go_on_at_once(&stage, "loopback, IPv4 mapped", gateway, None, |gateway| {
        match gateway {
            SocketAddr::V4(v4) => SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port())),
            SocketAddr::V6(_) => gateway,
        }
    })
}

fn in_a_namespace(what: &str, gateway_address: impl Fn(&Netns) -> IpAddr) -> Result<()> {
    let stage = Stage::set()?;
    let pair = VethPair::create()?;
    let address = SocketAddr::from((gateway_address(&pair.gateway), 0));
    let gateway = Gateway::builder().listen_in(&pair.gateway, address)?;
    fifty_held_connects_go_on_at_once(&stage, what, gateway, Some(&pair.client), |gateway| gateway)
}

#[test]
fn a_held_connect_goes_on_within_milliseconds_in_a_network_namespace_on_ipv4() -> Result<()> {
    in_a_namespace("veth, IPv4", |gateway| gateway.v4.into())
}

#[test]
fn a_held_connect_goes_on_within_milliseconds_in_a_network_namespace_on_ipv6() -> Result<()> {
    in_a_namespace("veth, IPv6", |gateway| gateway.v6.into())
}
