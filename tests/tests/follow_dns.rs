//! Host names of gateways are followed in what name servers answer to processes: a new address is governed from the first
//! connect.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Deserialize;
use shaper_tests::client::{Client, PythonReport, finish_all};
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway};
use shaper_tests::name_server::NameServer;
use shaper_tests::netns::VethPair;
use shaper_tests::script::script;
use shaper_tests::stage::Stage;

const PATIENCE: Duration = Duration::from_secs(60);
/// The controller looks names up by itself that often, which would tell it of new addresses too.
const NEXT_LOOK_UP: Duration = Duration::from_secs(30);

const NAME: &str = "gateway.shaper.test";
/// A content delivery network's way to an address.
const ALIASES: [&str; 2] = ["gateway.shaper.test.edge.example", "e7.edge.example"];

const SERVER: Ipv4Addr = Ipv4Addr::new(127, 0, 98, 1);
const FOREIGN: Ipv4Addr = Ipv4Addr::new(127, 0, 98, 2);

/// Where the name leads when the controller starts.
const FIRST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn later(number: u8) -> IpAddr {
    IpAddr::from([127, 0, 98, number])
}

#[derive(Debug, Deserialize)]
struct Call {
    status: u16,
    address: IpAddr,
}

/// Resolves a name and calls the first address that it is given.
const CALLS_A_NAME: &str = r#"
name, version = ARGUMENTS
family = {"4": socket.AF_INET, "6": socket.AF_INET6}[version]
address = socket.getaddrinfo(name, PORT, family, socket.SOCK_STREAM)[0][4]
connection = socket.socket(family)
connection.settimeout(60)
connection.connect(address)
report(status=call(connection), address=address[0])
"#;

/// Calls an address without asking anybody.
const CALLS_AN_ADDRESS: &str = r#"
connection = socket.create_connection((ARGUMENTS[0], PORT))
report(status=call(connection), address=ARGUMENTS[0])
"#;

struct Scene {
    server: NameServer,
    gateway: Gateway,
    controller: Controller,
    started: Instant,
    // The last to go: the turn ends with it, and the next scenario takes the same address for its server.
    stage: Stage,
}

impl Scene {
    /// A gateway on one port of many addresses, of which the controller knows the first.
    fn set(addresses: &[IpAddr]) -> Result<Self> {
        let stage = Stage::set()?;
        let server = NameServer::start(SERVER)?;
        server.set(NAME, &[], &[FIRST]);
        let port = TcpListener::bind((Ipv6Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        let mut gateway = Gateway::builder().listen(SocketAddr::from((FIRST, port)))?;
        for address in addresses {
            gateway = gateway.listen(SocketAddr::from((*address, port)))?;
        }
        let gateway = gateway
            .answer(Answer::after(Duration::from_millis(200)))
            .start()?;
        let lane = format!(
            "endpoints = [\"{NAME}:{port}\"]\nmax_inflight = 1\nmax_queue = 100\nqueue_timeout = \"60s\"\n\
             connect_hold = \"always\"\n"
        );
        let started = Instant::now();
        let controller = Controller::builder(&stage)?
            .lane("gateway", lane)?
            .settings("follow_dns = true")?
            .asking(&server)
            .start()?;
        Ok(Self {
            server,
            gateway,
            controller,
            started,
            stage,
        })
    }

    fn caller(&self, server: &NameServer, version: &str) -> Client<PythonReport<Call>> {
        script("calls a name", &self.gateway, CALLS_A_NAME)
            .argument(NAME)
            .argument(version)
            .asking(server)
    }

    /// Connections that were governed.
    fn governed(&self) -> Result<f64> {
        self.controller.wait_for("gateway", 0, 0)?;
        Ok(self.controller.metrics()?.sum("shaper_requests_total", &[]))
    }

    /// Calls an address and tells whether that was governed.
    fn is_governed(&self, address: IpAddr) -> Result<bool> {
        let before = self.governed()?;
        let call = script::<Call>("calls an address", &self.gateway, CALLS_AN_ADDRESS)
            .argument(address.to_string())
            .spawn_in(&self.stage.default)?
            .finish(PATIENCE)?;
        assert_eq!(call.0.status, 200);
        Ok(self.governed()? > before)
    }

    fn assert_by_answers_alone(&self) {
        assert!(
            self.started.elapsed() < NEXT_LOOK_UP,
            "too slow: the controller may have asked by itself"
        );
    }
}

/// A1, D10: five clients get five new addresses, through aliases, and connect at once: the limit holds over all of them.
#[test]
fn new_addresses_of_a_name_are_governed_from_the_first_connect() -> Result<()> {
    let addresses: Vec<_> = (10..15).map(later).collect();
    let scene = Scene::set(&addresses)?;
    scene.server.set(NAME, &ALIASES, &addresses);
    let clients = addresses
        .iter()
        .map(|_| {
            scene
                .caller(&scene.server, "4")
                .spawn_in(&scene.stage.default)
        })
        .collect::<Result<Vec<_>>>()?;
    let mut called = Vec::new();
    for call in finish_all(clients, PATIENCE)? {
        assert_eq!(call.0.status, 200);
        called.push(call.0.address);
    }
    called.sort();
    scene.assert_by_answers_alone();
    assert_eq!(called, addresses, "each client has another address");
    assert_eq!(scene.governed()?, 5.0);
    assert_eq!(scene.gateway.tally().peak_in_service, 1);
    Ok(())
}

/// A1: IPv6 addresses alike; and an address that was learnt is governed for those who do not ask, too.
#[test]
fn a_new_ipv6_address_is_governed_for_everybody() -> Result<()> {
    let address = IpAddr::V6(Ipv6Addr::LOCALHOST);
    let scene = Scene::set(&[address])?;
    assert!(!scene.is_governed(address)?);
    scene.server.set(NAME, &[], &[address]);
    let call = scene
        .caller(&scene.server, "6")
        .spawn_in(&scene.stage.default)?
        .finish(PATIENCE)?;
    assert_eq!((call.0.status, call.0.address), (200, address));
    assert_eq!(scene.governed()?, 1.0);
    assert!(scene.is_governed(address)?);
    scene.assert_by_answers_alone();
    Ok(())
}

/// A22: what a server says that is not the host's changes nothing.
#[test]
fn answers_of_a_foreign_server_are_not_believed() -> Result<()> {
    let address = later(20);
    let scene = Scene::set(&[address])?;
    let foreign = NameServer::start(FOREIGN)?;
    foreign.set(NAME, &[], &[address]);
    for (server, governed) in [(&foreign, false), (&scene.server, true)] {
        scene.server.set(NAME, &[], &[address]);
        let call = scene
            .caller(server, "4")
            .spawn_in(&scene.stage.default)?
            .finish(PATIENCE)?;
        assert_eq!((call.0.status, call.0.address), (200, address));
        assert_eq!(scene.is_governed(address)?, governed);
    }
    scene.assert_by_answers_alone();
    Ok(())
}

/// A22: in a network namespace of its own a process can send itself anything, also in the name of the host's server.
#[test]
fn answers_in_another_network_namespace_are_not_believed() -> Result<()> {
    let address = later(30);
    let scene = Scene::set(&[address])?;
    let namespaces = VethPair::create()?;
    let pretender = NameServer::start_in(&namespaces.client, SERVER)?;
    pretender.set(NAME, &[], &[address]);
    let refused = scene
        .caller(&pretender, "4")
        .in_netns(&namespaces.client)?
        .spawn_in(&scene.stage.default)?
        .finish(PATIENCE);
    // It has been told the address, and nobody listens there in its namespace.
    let error = format!("{:#}", refused.expect_err("the gateway is elsewhere"));
    assert!(error.contains("ConnectionRefusedError"), "{error}");
    assert!(!scene.is_governed(address)?);
    scene.assert_by_answers_alone();
    Ok(())
}

/// A22, B7: nothing is learnt unless it is asked for, and what was learnt goes with the lane.
#[test]
fn a_learnt_address_goes_with_its_lane() -> Result<()> {
    let address = later(40);
    let scene = Scene::set(&[address])?;
    scene.server.set(NAME, &[], &[address]);
    scene
        .caller(&scene.server, "4")
        .spawn_in(&scene.stage.default)?
        .finish(PATIENCE)?;
    assert!(scene.is_governed(address)?);
    let port = scene.gateway.address().port();
    let observing = "max_inflight = 0\n";
    scene.controller.write_lane(
        "gateway",
        format!("endpoints = [\"127.0.0.1:{port}\"]\n{observing}"),
    )?;
    scene
        .controller
        .wait_until("gateway", |lane| lane.limit == 0)?;
    assert!(!scene.is_governed(address)?);
    Ok(())
}
