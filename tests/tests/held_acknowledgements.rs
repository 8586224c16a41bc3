//! A held request must not keep acknowledgements from the gateway.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Gateway, Latch, TlsVersion};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::model_api::{self, Delivery};
use shaper_tests::model_client::{Caller, Sdk, Target};
use shaper_tests::netns::{Netns, VethPair};
use shaper_tests::stage::{Stage, a_while};

const LANE: &str = "gateway";
const PATIENCE: Duration = Duration::from_secs(60);

/// TCP segments that were sent again in a namespace since its creation.
fn retransmissions(netns: &Netns) -> Result<u64> {
    let counters = netns
        .run(|| fs::read_to_string("/proc/thread-self/net/snmp"))?
        .context("cannot read TCP's counters")?;
    // A line of names and a line of values for each protocol.
    let mut tcp = counters
        .lines()
        .filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = tcp.next().zip(tcp.next()).context("no TCP counters")?;
    let (_, value) = names
        .split(' ')
        .zip(values.split(' '))
        .find(|(name, _)| *name == "RetransSegs")
        .context("TCP does not count what it sends again")?;
    Ok(value.parse()?)
}

/// With TLS 1.3, the gateway sends session tickets right after the handshake, when the request is held already. Their
/// acknowledgement rides on the request, which is dropped.
#[test]
fn a_gateway_need_not_repeat_what_it_sends_to_a_client_whose_request_is_held() -> Result<()> {
    let stage = Stage::set()?;
    let pair = VethPair::create()?;
    let release = Latch::shut();
    let latch = release.clone();
    let gateway = Gateway::builder()
        .listen_in(&pair.gateway, (pair.gateway.v4, 0).into())?
        .tls(TlsVersion::V1_3)
        .answer_by(move |request| {
            model_api::answer(request, Delivery::Whole, Duration::ZERO).not_before(&latch)
        })
        .start()?;
    let lane = LaneFile::over(gateway.addresses()).connect_hold(Duration::ZERO);
    let controller = Controller::builder(&stage)?.lane(LANE, lane)?.start()?;
    let target = Target::of(&gateway)?;
    let call = |caller: Caller, label| {
        caller
            .call(&target, label)?
            .in_netns(&pair.client)?
            .spawn_in(&stage.default)
    };
    let holder = call(Caller::Curl, "holder")?;
    controller.wait_for(LANE, 1, 0)?;
    let before = retransmissions(&pair.gateway)?;

    // Unlike Node, OpenSSL sends the end of the handshake by itself, so that it passes.
    let waiter = call(Caller::Sdk(Sdk::OpenAiPython, Delivery::Whole), "waiter")?;
    controller.wait_for(LANE, 1, 1)?;
    sleep(a_while());
    assert_eq!(gateway.tally().requests.len(), 1, "the request is not held");
    let repeated = retransmissions(&pair.gateway)? - before;
    assert_eq!(repeated, 0, "segments that the gateway sent again");

    release.open();
    holder.finish(PATIENCE)?;
    waiter.finish(PATIENCE)?;
    Ok(())
}
