//! Connections that are older than the controller.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Deserialize;
use shaper_tests::clock::poll_until;
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Gateway, GatewayBuilder};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::netns::VethPair;
use shaper_tests::process::Process;
use shaper_tests::script::script;
use shaper_tests::stage::Stage;
use shaper_tests::tools;

const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Deserialize)]
struct Nothing {}

/// Calls once and keeps its connection.
const CALLS_AND_STAYS: &str = r#"
connection = plain()
call(connection)
signal.pause()
"#;

/// Two connections from a class, one from a cgroup below it, one to another port and one from outside.
fn older_connections_are_counted(
    stage: &Stage,
    gateway: impl Fn() -> Result<GatewayBuilder>,
    pair: Option<&VethPair>,
) -> Result<()> {
    let governed = gateway()?.start()?;
    let other = gateway()?.start()?;
    let below = stage.cgroups().group("bulk/account")?;
    let stays = |gateway: &Gateway, cgroup| {
        let client = script::<Nothing>("stays", gateway, CALLS_AND_STAYS);
        match pair {
            Some(pair) => client.in_netns(&pair.client)?.spawn_in(cgroup),
            None => client.spawn_in(cgroup),
        }
    };
    let older = [
        stays(&governed, &stage.bulk)?,
        stays(&governed, &below)?,
        stays(&governed, &stage.outside)?,
        stays(&other, &stage.bulk)?,
    ];
    poll_until(PATIENCE, || {
        (governed.tally().served() == 3 && other.tally().served() == 1).then_some(())
    })
    .context("all are connected")?;
    let controller = Controller::builder(stage)?
        .lane("gateway", LaneFile::over(governed.addresses()))?
        .start()?;
    assert_eq!(controller.lane("gateway")?.preexisting_connections, 2);
    let younger = stays(&governed, &stage.bulk)?;
    controller.wait_until("gateway", |lane| lane.idle_connections == 1)?;
    assert_eq!(controller.lane("gateway")?.preexisting_connections, 2);

    let status = Process::spawn(
        "shaper status",
        Command::new(tools::shaper()?)
            .arg("status")
            .arg("--control")
            .arg(controller.control()),
    )?
    .finish(PATIENCE)?;
    assert!(
        status.stdout.contains("2 connections from before"),
        "{}{}",
        status.stdout,
        status.stderr
    );
    let [first, ..] = older;
    first.kill9()?;
    controller
        .wait_until("gateway", |lane| lane.preexisting_connections < 2)
        .context("a closed connection is no longer counted")?;
    younger.kill9()
}

/// A21: what was connected before the start passes ungoverned, and is counted and shown until it closes.
#[test]
fn connections_from_before_the_start_are_counted() -> Result<()> {
    let stage = Stage::set()?;
    older_connections_are_counted(&stage, || Gateway::builder().listen_v4(), None)
}

/// A21: the same on IPv6 and in a network namespace of the clients' own.
#[test]
fn connections_from_before_the_start_are_counted_in_a_network_namespace() -> Result<()> {
    let stage = Stage::set()?;
    let pair = VethPair::create()?;
    let address = std::net::SocketAddr::from((pair.gateway.v6, 0));
    let gateway = || Gateway::builder().listen_in(&pair.gateway, address);
    older_connections_are_counted(&stage, gateway, Some(&pair))
}
