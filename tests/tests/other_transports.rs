//! Ways past a plain TCP connect: governed as well, or refused, or at least counted.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use shaper_tests::client::{CurlOutcome, curl, uring};
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway, GatewayBuilder, Latch, TlsVersion};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::netns::VethPair;
use shaper_tests::script::script;
use shaper_tests::stage::Stage;

const PATIENCE: Duration = Duration::from_secs(20);

/// Long enough that a request without a slot would be seen.
const A_MOMENT: Duration = Duration::from_millis(500);

#[derive(Debug, Deserialize)]
struct Call {
    status: u16,
}

/// Both ways to send a datagram, and what each says.
const SENDS_DATAGRAMS: &str = r#"
import errno

def attempt(way):
    datagrams = socket.socket(FAMILY, socket.SOCK_DGRAM)
    try:
        way(datagrams)
        return "passed"
    except OSError as error:
        return errno.errorcode[error.errno]

report(
    connect=attempt(lambda datagrams: datagrams.connect((HOST, PORT))),
    sendto=attempt(lambda datagrams: datagrams.sendto(b"." * 1200, (HOST, PORT))),
)
"#;

fn datagrams_to(gateway: GatewayBuilder, limit: usize, udp: &str, outcome: &str) -> Result<()> {
    let stage = Stage::set()?;
    let gateway = gateway.start()?;
    let lane = LaneFile::over(gateway.addresses())
        .limit(limit)
        .line(&format!("udp = \"{udp}\""));
    let _controller = Controller::builder(&stage)?
        .lane("gateway", lane)?
        .start()?;
    let sends = || script::<BTreeMap<String, String>>("datagrams", &gateway, SENDS_DATAGRAMS);
    let outcomes = sends().spawn_in(&stage.default)?.finish(PATIENCE)?.0;
    for (way, result) in &outcomes {
        assert_eq!(result, outcome, "{way} with udp = {udp:?}, limit {limit}");
    }
    assert_eq!(outcomes.len(), 2);
    let outside = sends().spawn_in(&stage.outside)?.finish(PATIENCE)?.0;
    assert!(
        outside.values().all(|result| result == "passed"),
        "{outside:?}"
    );
    Ok(())
}

/// A1: QUIC would bypass the lane, so datagrams to its endpoints are refused and clients fall back to TCP.
#[test]
fn datagrams_to_a_lane_are_refused() -> Result<()> {
    datagrams_to(Gateway::builder().listen_v4()?, 1, "block", "ECONNREFUSED")
}

/// A1.
#[test]
fn datagrams_to_a_lane_are_refused_on_ipv6() -> Result<()> {
    datagrams_to(Gateway::builder().listen_v6()?, 1, "block", "ECONNREFUSED")
}

#[test]
fn datagrams_to_a_lane_pass_where_they_are_allowed() -> Result<()> {
    datagrams_to(Gateway::builder().listen_v4()?, 1, "allow", "passed")
}

/// A2: a lane that only observes changes nothing.
#[test]
fn datagrams_to_a_lane_that_only_observes_pass() -> Result<()> {
    datagrams_to(Gateway::builder().listen_v4()?, 0, "block", "passed")
}

/// Sends its request with the SYN.
const CALLS_WITH_FAST_OPEN: &str = r#"
connection = socket.socket(FAMILY, socket.SOCK_STREAM)
connection.sendto(request(label=ARGUMENTS[0]), socket.MSG_FASTOPEN, (HOST, PORT))
report(status=read_response(connection)[0])
"#;

/// A7: a request that travels with the SYN (TCP Fast Open) waits as any other, and holds its slot as any other.
#[test]
fn requests_sent_with_the_syn_are_governed() -> Result<()> {
    // Longer than a connection may be unused, or silent, before it is parked.
    const SERVICE: Duration = Duration::from_millis(2500);
    let stage = Stage::set()?;
    let pair = VethPair::create()?;
    for netns in [&pair.client, &pair.gateway] {
        // Client and server, and for both without a cookie: the first SYN carries data, and the gateway takes it.
        netns.set("net/ipv4/tcp_fastopen", "1543")?;
    }
    let gateway = Gateway::builder()
        .listen_in(&pair.gateway, SocketAddr::from((pair.gateway.v4, 0)))?
        .answer(Answer::after(SERVICE))
        .start()?;
    let lane = LaneFile::over(gateway.addresses())
        .connect_hold(Duration::ZERO)
        .line("idle_release = \"1s\"");
    let controller = Controller::builder(&stage)?
        .lane("gateway", lane)?
        .start()?;
    let start = |label: &str| {
        script::<Call>(label, &gateway, CALLS_WITH_FAST_OPEN)
            .argument(label)
            .in_netns(&pair.client)?
            .spawn_in(&stage.default)
    };
    let mut clients = vec![start("first")?];
    controller.wait_for("gateway", 1, 0)?;
    sleep(A_MOMENT);
    assert_eq!(
        gateway.tally().requests.len(),
        1,
        "no data came with the SYN"
    );
    clients.extend([start("second")?, start("third")?]);
    controller.wait_for("gateway", 1, 2)?;
    for client in clients {
        assert_eq!(client.finish(PATIENCE)?.0.status, 200);
    }
    let tally = gateway.tally();
    assert_eq!((tally.served(), tally.peak_in_service), (3, 1));
    controller.wait_for("gateway", 0, 0)?;
    Ok(())
}

/// A19: a connect through io_uring is governed as one by system call.
#[test]
fn connects_through_io_uring_are_governed() -> Result<()> {
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::answering(Answer::once_open(&release))?;
    let controller = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(gateway.addresses()))?
        .start()?;
    let first = uring(gateway.address(), "first")?.spawn_in(&stage.default)?;
    controller.wait_for("gateway", 1, 0)?;
    let second = uring(gateway.address(), "second")?.spawn_in(&stage.default)?;
    controller.wait_for("gateway", 1, 1)?;
    sleep(A_MOMENT);
    assert_eq!(gateway.tally().accepted, 1);
    release.open();
    for client in [first, second] {
        client.finish(PATIENCE)?.answered()?;
    }
    assert_eq!(gateway.tally().peak_of(|_| true), 1);
    controller.wait_for("gateway", 0, 0)?;
    Ok(())
}

/// Calls through Multipath TCP.
const CALLS_THROUGH_MPTCP: &str = r#"
connection = socket.socket(FAMILY, socket.SOCK_STREAM, socket.IPPROTO_MPTCP)
connection.connect((HOST, PORT))
report(status=call(connection, label="mptcp"))
"#;

/// A19: a connection of Multipath TCP waits as any other: its subflow connects through the same programs.
#[test]
fn connects_through_mptcp_are_governed() -> Result<()> {
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::answering(Answer::once_open(&release))?;
    let lane = LaneFile::over(gateway.addresses()).connect_hold(Duration::ZERO);
    let controller = Controller::builder(&stage)?
        .lane("gateway", lane)?
        .start()?;
    let start = || script::<Call>("mptcp", &gateway, CALLS_THROUGH_MPTCP).spawn_in(&stage.default);
    let first = start()?;
    controller.wait_for("gateway", 1, 0)?;
    let second = start()?;
    controller.wait_for("gateway", 1, 1)?;
    sleep(A_MOMENT);
    assert_eq!(gateway.tally().requests.len(), 1);
    release.open();
    for client in [first, second] {
        assert_eq!(client.finish(PATIENCE)?.0.status, 200);
    }
    assert_eq!(gateway.tally().peak_of(|_| true), 1);
    let ungoverned = controller.metrics()?.sum("shaper_ungoverned_total", &[]);
    assert_eq!(ungoverned, 0.0, "shaper_ungoverned_total");
    controller.wait_for("gateway", 0, 0)?;
    Ok(())
}

/// The warning that a lane's clients speak HTTP/2.
const WARNING: &str = "HTTP/2";

/// Clients that offer HTTP/2 share a connection between requests, which a lane cannot see: they are counted, and the
/// operator is warned once for the lane.
#[test]
fn clients_that_offer_http2_are_counted_and_warned_of_once() -> Result<()> {
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::builder()
        .listen_v4()?
        .tls(TlsVersion::V1_3)
        .answer(Answer::once_open(&release))
        .start()?;
    let lane = LaneFile::over(gateway.addresses())
        .limit(2)
        .connect_hold(Duration::ZERO);
    let controller = Controller::builder(&stage)?
        .lane("gateway", lane)?
        .start()?;
    let call = |protocol: &str| {
        curl(&gateway.url(), protocol)
            .argument("--insecure")
            .argument(protocol)
            .spawn_in(&stage.default)
    };
    let clients = [call("--http2")?, call("--http1.1")?, call("--http2")?];
    controller
        .wait_until("gateway", |lane| {
            lane.inflight == 2 && lane.queued == 1 && lane.h2_connections == 2
        })
        .context("two of three clients offer HTTP/2")?;
    release.open();
    for client in clients {
        assert_eq!(client.finish(PATIENCE)?.outcome, CurlOutcome::answered());
    }
    controller.wait_for("gateway", 0, 0)?;
    let log = controller.log();
    assert_eq!(log.matches(WARNING).count(), 1, "{log}");
    Ok(())
}

/// Speaks HTTP/2 in the clear with prior knowledge: its preface and settings, then a request.
const SPEAKS_HTTP2: &str = r#"
connection = plain()
connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
time.sleep(0.2)
connection.sendall(bytes([0, 4, 0, 1, 4, 0, 0, 0, 1]) + b"." * 1024)
signal.pause()
"#;

/// The same for HTTP/2 in the clear, whether the connection has a slot or waits for one.
#[test]
fn clients_that_speak_http2_in_the_clear_are_counted_and_warned_of_once() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::never())?;
    // Takes the bytes and says nothing: what the stub gateway makes of HTTP/2 would only disturb.
    let silent = std::net::TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
    let lane =
        LaneFile::over(&[gateway.address(), silent.local_addr()?]).connect_hold(Duration::ZERO);
    let controller = Controller::builder(&stage)?
        .lane("gateway", lane)?
        .start()?;
    let port = silent.local_addr()?.port();
    let program = format!("PORT = {port}\n{SPEAKS_HTTP2}");
    let start = || script::<Call>("HTTP/2", &gateway, &program).spawn_in(&stage.default);
    let open = start()?;
    controller
        .wait_until("gateway", |lane| {
            lane.inflight == 1 && lane.h2_connections == 1
        })
        .context("the first has a slot")?;
    let waits = start()?;
    controller
        .wait_until("gateway", |lane| {
            lane.queued == 1 && lane.h2_connections == 2
        })
        .context("the second waits for one")?;
    for client in [waits, open] {
        client.kill9()?;
    }
    let log = controller.log();
    assert_eq!(log.matches(WARNING).count(), 1, "{log}");
    Ok(())
}

/// Leaves the SYN to its first write, as TCP_FASTOPEN_CONNECT (30) asks for.
const CONNECTS_WITH_ITS_FIRST_WRITE: &str = r#"
connection = socket.socket(FAMILY, socket.SOCK_STREAM)
connection.setsockopt(socket.IPPROTO_TCP, 30, 1)
connection.connect((HOST, PORT))
time.sleep(float(ARGUMENTS[1]))
report(status=call(connection, label=ARGUMENTS[0]))
"#;

/// D7: a connect that TCP has put off has its place in the queue, however late the first write comes.
#[test]
fn connects_that_come_with_the_first_write_are_governed() -> Result<()> {
    // Twice as long as the records of connects that TCP never began are kept.
    const LATE: Duration = Duration::from_secs(10);
    let stage = Stage::set()?;
    let pair = VethPair::create()?;
    for netns in [&pair.client, &pair.gateway] {
        netns.set("net/ipv4/tcp_fastopen", "1543")?;
    }
    let release = Latch::shut();
    let gateway = Gateway::builder()
        .listen_in(&pair.gateway, (pair.gateway.v4, 0).into())?
        .answer(Answer::once_open(&release))
        .start()?;
    let controller = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(gateway.addresses()))?
        .start()?;
    let calls = |label: &str, after: Duration| {
        script::<Call>("first write", &gateway, CONNECTS_WITH_ITS_FIRST_WRITE)
            .argument(label)
            .argument(after.as_secs().to_string())
            .in_netns(&pair.client)?
            .spawn_in(&stage.default)
    };
    let holder = calls("holder", Duration::ZERO)?;
    controller.wait_for("gateway", 1, 0)?;
    let late = calls("late", LATE)?;
    controller.wait_for("gateway", 1, 1)?;
    sleep(LATE + A_MOMENT);
    controller.wait_for("gateway", 1, 1)?;
    assert_eq!(gateway.tally().labels(), ["holder"]);
    release.open();
    for client in [holder, late] {
        assert_eq!(client.finish(PATIENCE)?.0.status, 200);
    }
    let ungoverned = controller.metrics()?.sum("shaper_ungoverned_total", &[]);
    assert_eq!(ungoverned, 0.0);
    Ok(())
}

/// A1, D7: an unspecified address leads to this host, so a client that writes one reaches a lane over a loopback address,
/// and waits in it.
#[test]
fn connects_to_an_unspecified_address_are_governed() -> Result<()> {
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::builder()
        .listen_v4()?
        .listen_v6()?
        .answer(Answer::once_open(&release))
        .start()?;
    let [v4, v6] = [0, 1].map(|number: usize| gateway.addresses()[number].port());
    let controller = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(gateway.addresses()))?
        .start()?;
    let holder = curl(&gateway.url(), "holder").spawn_in(&stage.bulk)?;
    controller.wait_for("gateway", 1, 0)?;
    let urls = [
        format!("http://0.0.0.0:{v4}/"),
        format!("http://[::]:{v6}/"),
        format!("http://[::ffff:0.0.0.0]:{v4}/"),
    ];
    let mut waiters = Vec::new();
    for (before, url) in urls.iter().enumerate() {
        waiters.push(curl(url, url).spawn_in(&stage.bulk)?);
        controller.wait_for("gateway", 1, before + 1)?;
    }
    release.open();
    for client in waiters.into_iter().chain([holder]) {
        assert_eq!(client.finish(PATIENCE)?.outcome, CurlOutcome::answered());
    }
    assert_eq!(gateway.tally().peak_of(|_| true), 1);
    let ungoverned = controller.metrics()?.sum("shaper_ungoverned_total", &[]);
    assert_eq!(ungoverned, 0.0);
    Ok(())
}

/// The own address of a socket that is bound comes before the loopback address.
const CONNECTS_FROM_ITS_OWN: &str = r#"
connection = socket.socket(FAMILY, socket.SOCK_STREAM)
connection.bind((HOST, 0))
connection.connect(("0.0.0.0", PORT))
report(status=call(connection))
"#;

/// A1: the same where the socket has an address of its own, to which an unspecified one leads then.
#[test]
fn connects_to_an_unspecified_address_are_governed_on_a_bound_socket() -> Result<()> {
    let stage = Stage::set()?;
    let release = Latch::shut();
    let gateway = Gateway::builder()
        .listen((std::net::Ipv4Addr::new(127, 0, 0, 2), 0).into())?
        .answer(Answer::once_open(&release))
        .start()?;
    let controller = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(gateway.addresses()))?
        .start()?;
    let calls = || script::<Call>("bound", &gateway, CONNECTS_FROM_ITS_OWN).spawn_in(&stage.bulk);
    let first = calls()?;
    controller.wait_for("gateway", 1, 0)?;
    let second = calls()?;
    controller.wait_for("gateway", 1, 1)?;
    release.open();
    for client in [first, second] {
        assert_eq!(client.finish(PATIENCE)?.0.status, 200);
    }
    Ok(())
}
