//! Real clients of model gateways behind a saturated lane see nothing but a slower answer.

use std::collections::HashMap;
use std::env;
use std::time::Duration;

use anyhow::{Context, Result};
use shaper_tests::clock::Moment;
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Gateway, GatewayBuilder, Latch, TlsVersion};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::model_api::{self, Delivery, TEXT};
use shaper_tests::model_client::{Caller, ModelCallReport, Sdk, Target};
use shaper_tests::stage::Stage;

const LANE: &str = "gateway";

/// The default, spelled out because the scenario counts on both stages: connects longer than the SDKs' patience (5 s)
/// must go on, and their requests must wait.
const CONNECT_HOLD: Duration = Duration::from_secs(4);

/// For the slowest of the clients, starting up on a busy machine included.
const PATIENCE: Duration = Duration::from_secs(120);

const CALLERS: [Caller; 12] = [
    Caller::Sdk(Sdk::OpenAiPython, Delivery::Whole),
    Caller::Sdk(Sdk::OpenAiPython, Delivery::Stream),
    Caller::Sdk(Sdk::AnthropicPython, Delivery::Whole),
    Caller::Sdk(Sdk::AnthropicPython, Delivery::Stream),
    Caller::Sdk(Sdk::OpenAiNode, Delivery::Whole),
    Caller::Sdk(Sdk::OpenAiNode, Delivery::Stream),
    Caller::Sdk(Sdk::AnthropicNode, Delivery::Whole),
    Caller::Sdk(Sdk::AnthropicNode, Delivery::Stream),
    Caller::Curl,
    Caller::Curl,
    Caller::Go,
    Caller::Reqwest,
];

/// How long the gateway works on a call, and how much longer than ideal all calls may take together. By default, short
/// calls and room for a busy machine, where the end of a client, which frees its slot over TLS, takes half as long as its
/// call; with `SHAPER_LONG=1`, the promise.
fn pace() -> (Duration, f64) {
    match env::var_os("SHAPER_LONG") {
        Some(long) if long == "1" => (Duration::from_secs(3), 1.05),
        _ => (Duration::from_millis(600), 2.0),
    }
}

/// One call holds each slot until all of [`CALLERS`] wait and some of them have been let through to wait with their
/// request; then they are served, in as many rounds as it takes.
fn every_call_succeeds_at_the_first_attempt(gateway: GatewayBuilder, limit: usize) -> Result<()> {
    let (service_time, longest) = pace();
    let stage = Stage::set()?;
    let release = Latch::shut();
    let labelled: HashMap<String, Caller> = CALLERS
        .into_iter()
        .enumerate()
        .map(|(number, caller)| (format!("caller {number}"), caller))
        .collect();
    let (latch, callers) = (release.clone(), labelled.clone());
    let gateway = gateway
        .answer_by(move |request| {
            let caller = request.label.as_ref().and_then(|label| callers.get(label));
            match caller {
                Some(caller) => model_api::answer(request, caller.delivery(), service_time),
                None => {
                    model_api::answer(request, Delivery::Whole, Duration::ZERO).not_before(&latch)
                }
            }
        })
        .start()?;
    let lane = LaneFile::over(gateway.addresses())
        .limit(limit)
        .connect_hold(CONNECT_HOLD);
    let controller = Controller::builder(&stage)?.lane(LANE, lane)?.start()?;
    let target = Target::of(&gateway)?;

    let mut running = Vec::new();
    for _ in 0..limit {
        running.push(
            Caller::Curl
                .call(&target, "holder")?
                .spawn_in(&stage.default)?,
        );
    }
    controller.wait_for(LANE, limit, 0)?;
    for (label, caller) in &labelled {
        running.push(caller.call(&target, label)?.spawn_in(&stage.default)?);
    }
    for queued in 1..=CALLERS.len() {
        controller.wait_until(LANE, |lane| lane.queued >= queued)?;
    }
    let longer_than_any_connect = CONNECT_HOLD + Duration::from_secs(1);
    controller.wait_until(LANE, |lane| {
        lane.oldest_wait_s
            .is_some_and(|wait| wait > longer_than_any_connect.as_secs_f64())
    })?;
    let before = gateway.tally();
    assert!(before.accepted > limit, "no connect went on: {before:?}");
    assert_eq!(before.requests.len(), limit, "{before:?}");
    let started = Moment::now();
    release.open();

    for client in running {
        let report = client.finish(PATIENCE)?;
        let served = ModelCallReport {
            text: TEXT.to_owned(),
            retries: Vec::new(),
        };
        assert_eq!(report, served);
    }
    controller.wait_for(LANE, 0, 0)?;
    let tally = gateway.tally();
    assert_eq!(tally.peak_in_service, limit);
    assert_eq!(
        (tally.requests.len(), tally.served()),
        (CALLERS.len() + limit, CALLERS.len() + limit),
        "each call is one request, and served: {tally:?}"
    );
    let ended = tally
        .requests
        .iter()
        .filter_map(|request| request.answered)
        .max()
        .context("requests were answered")?;
    let overruns = controller.metrics()?.sum("shaper_overruns_total", &[]);
    assert_eq!(
        overruns, 0.0,
        "a slot was given back before its answer had ended"
    );
    let rounds = u32::try_from(CALLERS.len().div_ceil(limit))?;
    let ratio = ended.since(started).as_secs_f64() / (service_time * rounds).as_secs_f64();
    println!(
        "{} calls of {service_time:?} took {:?} at limit {limit}, {ratio:.3} of the ideal",
        CALLERS.len(),
        ended.since(started)
    );
    assert!(ratio <= longest, "{ratio:.3} of the ideal: {tally:#?}");
    Ok(())
}

fn in_the_clear() -> Result<GatewayBuilder> {
    Gateway::builder().listen_v4()
}

fn over_tls(version: TlsVersion) -> Result<GatewayBuilder> {
    Ok(Gateway::builder().listen_v4()?.tls(version))
}

#[test]
fn real_clients_in_the_clear_succeed_at_limit_1() -> Result<()> {
    every_call_succeeds_at_the_first_attempt(in_the_clear()?, 1)
}

#[test]
fn real_clients_in_the_clear_succeed_at_limit_2() -> Result<()> {
    every_call_succeeds_at_the_first_attempt(in_the_clear()?, 2)
}

#[test]
fn real_clients_over_tls_1_3_succeed_at_limit_1() -> Result<()> {
    every_call_succeeds_at_the_first_attempt(over_tls(TlsVersion::V1_3)?, 1)
}

#[test]
fn real_clients_over_tls_1_3_succeed_at_limit_2() -> Result<()> {
    every_call_succeeds_at_the_first_attempt(over_tls(TlsVersion::V1_3)?, 2)
}

#[test]
fn real_clients_over_tls_1_2_succeed_at_limit_2() -> Result<()> {
    every_call_succeeds_at_the_first_attempt(over_tls(TlsVersion::V1_2)?, 2)
}
