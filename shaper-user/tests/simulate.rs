//! `shaper simulate`: the policy over a trace, with a made-up clock.

use std::time::Duration;

use proptest::prelude::*;
use shaper_common::Class;
use shaper_user::{
    config::{Config, Files, LaneConfig, Origin, TextFile},
    simulate::{ClassReport, LaneReport, Report, Workload, simulate},
};

const EXAMPLE: &str = include_str!("../../docs/examples/two-agents-and-a-batch.jsonl");

/// The one lane `reasoning` with these lines in its file.
fn lanes(text: &str) -> Vec<LaneConfig> {
    let file = TextFile {
        path: "lanes.d/reasoning.toml".into(),
        text: format!("endpoints = [\"10.1.2.3:8000\"]\n{text}"),
    };
    let files = Files {
        origin: Origin::Embedded,
        settings: None,
        lanes: vec![file],
    };
    Config::parse(&files).unwrap().lanes
}

fn limited(limit: u32, more: &str) -> Vec<LaneConfig> {
    lanes(&format!(
        "max_inflight = {limit}\nmax_queue = 100\nqueue_timeout = \"300s\"\n{more}"
    ))
}

fn run(trace: &str, lanes: &[LaneConfig]) -> Report {
    let workload = Workload::read(trace.as_bytes(), lanes, |_| ()).unwrap();
    simulate(&workload, lanes, |_| ())
}

fn lane(report: &Report) -> &LaneReport {
    &report.lanes[0]
}

fn class(report: &Report, class: Class) -> &ClassReport {
    let mut classes = lane(report).classes.iter();
    classes.find(|found| found.priority == class).unwrap()
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// `count` requests a second apart that each take `service` seconds.
fn steady(count: u32, priority: &str, service: f64) -> String {
    (0..count)
        .map(|n| {
            format!("{{\"arrival_s\":{n},\"lane\":\"reasoning\",\"priority\":\"{priority}\",\"service_s\":{service}}}\n")
        })
        .collect()
}

#[test]
fn requests_within_the_limit_do_not_wait() {
    let report = run(&steady(10, "default", 1.5), &limited(2, ""));
    let default = class(&report, Class::Default);
    assert_eq!((default.served, default.waits.max), (10, Duration::ZERO));
    assert_eq!(report.span, seconds(10.5));
    assert_eq!(lane(&report).peak_inflight, 2);
    let used = lane(&report).utilisation.unwrap();
    assert!((used - 15.0 / 21.0).abs() < 1e-9, "{used}");
}

/// One slot, a request each second, two seconds each: the n-th waits n seconds.
#[test]
fn waits_are_those_of_the_queue() {
    let report = run(&steady(10, "default", 2.0), &limited(1, ""));
    let waits = class(&report, Class::Default).waits;
    assert_eq!(
        (waits.p50, waits.p90, waits.max),
        (seconds(4.0), seconds(8.0), seconds(9.0))
    );
    assert_eq!(lane(&report).utilisation, Some(1.0));
}

/// A5: interactive work goes before bulk that came earlier.
#[test]
fn order_is_by_class() {
    let trace = steady(10, "bulk", 4.0)
        + "{\"arrival_s\":4.5,\"lane\":\"reasoning\",\"priority\":\"interactive\",\"service_s\":1}";
    let report = run(&trace, &limited(1, ""));
    let interactive = class(&report, Class::Interactive);
    assert_eq!(interactive.waits.max, seconds(3.5));
    assert!(class(&report, Class::Bulk).waits.max > seconds(25.0));
}

/// A3, D3: what the queue does not hold is refused, and what waits too long is ended.
#[test]
fn refusals_and_timeouts_are_counted() {
    let lanes = lanes("max_inflight = 1\nmax_queue = 2\nqueue_timeout = \"3s\"");
    let report = run(&steady(6, "default", 10.0), &lanes);
    let default = class(&report, Class::Default);
    // Served: the first. 2 and 3 wait until their timeouts at 4 and 5 s, so 4 is refused (at 3 s), 5 and 6 are taken.
    assert_eq!(
        (default.served, default.refused, default.timeouts),
        (1, 1, 4)
    );
}

/// What would have left the queue by itself does so, and what was refused gets the mean service time.
#[test]
fn impatient_clients_leave_and_missing_service_times_are_told() {
    let trace = steady(2, "default", 10.0)
        + "{\"arrival_s\":2,\"lane\":\"reasoning\",\"priority\":\"default\",\"wait_s\":1,\"outcome\":\"gone\"}\n\
           {\"arrival_s\":3,\"lane\":\"reasoning\",\"priority\":\"default\",\"outcome\":\"refused\"}\n\
           {\"arrival_s\":3,\"lane\":\"elsewhere\",\"priority\":\"default\",\"service_s\":1}\n";
    let report = run(&trace, &limited(1, ""));
    let default = class(&report, Class::Default);
    assert_eq!((default.served, default.gone), (3, 1));
    assert_eq!(report.span, seconds(30.0));
    assert_eq!(report.assumed_service_times, 2);
    assert_eq!(report.unknown_lanes["elsewhere"], 1);
}

/// B2, B4: caps hold here as in the kernel.
#[test]
fn caps_keep_their_share_free() {
    let capped = limited(3, "[class.bulk]\nmax_inflight = 1");
    let report = run(&steady(5, "bulk", 10.0), &capped);
    assert_eq!(lane(&report).peak_inflight, 1);
    let by_account = run(
        EXAMPLE,
        &limited(6, "[account]\noverrides = { nightly = 2 }"),
    );
    assert!(class(&by_account, Class::Bulk).waits.max > Duration::ZERO);
    assert_eq!(
        class(&by_account, Class::Interactive).waits.max,
        Duration::ZERO
    );
}

/// A2, A21: a lane that observes holds nobody and shows what was in flight.
#[test]
fn an_observing_lane_holds_nobody() {
    let report = run(EXAMPLE, &lanes("max_inflight = 0"));
    assert_eq!(lane(&report).utilisation, None);
    assert_eq!(lane(&report).peak_inflight, 9);
    assert!(
        lane(&report)
            .classes
            .iter()
            .all(|class| class.waits.max.is_zero())
    );
}

/// A21: what a limit on trial would do is what it does when it is kept.
#[test]
fn a_limit_on_trial_is_simulated_as_if_it_were_kept() {
    let trial = run(EXAMPLE, &limited(2, "enforce = false"));
    assert!(!lane(&trial).enforce);
    let kept = run(EXAMPLE, &limited(2, ""));
    assert!(class(&kept, Class::Bulk).waits.max > Duration::ZERO);
    assert_eq!(lane(&trial).classes, lane(&kept).classes);
    assert_eq!(lane(&trial).utilisation, lane(&kept).utilisation);
}

/// A recording that is still being made, or whose controller was killed, is of use.
#[test]
fn lines_that_are_cut_off_are_left_out_and_told() {
    let lanes = limited(2, "");
    let whole = run(EXAMPLE, &lanes);
    assert_eq!((whole.cut_lines, whole.first_cut_line), (0, None));
    // Within a word, and within a character.
    let cut = "{\"arrival_s\":1.0,\"lane\":\"reasöning";
    for end in [cut.len(), cut.find('ö').unwrap() + 1] {
        let mut trace = cut.as_bytes()[..end].to_vec();
        trace.push(b'\n');
        trace.extend(EXAMPLE.as_bytes());
        trace.extend(&cut.as_bytes()[..end]);
        let workload = Workload::read(trace.as_slice(), &lanes, |_| ()).unwrap();
        let report = simulate(&workload, &lanes, |_| ());
        assert_eq!((report.cut_lines, report.first_cut_line), (2, Some(1)));
        assert_eq!(report.lanes, whole.lanes);
    }
}

#[test]
fn the_order_of_the_lines_does_not_matter() {
    let lanes = limited(2, "");
    let reversed: Vec<_> = EXAMPLE.lines().rev().collect();
    assert_eq!(run(&reversed.join("\n"), &lanes), run(EXAMPLE, &lanes));
}

/// E9: a line that is wrong is named, with what would be right.
#[test]
fn a_bad_trace_is_refused_with_its_line() {
    let lanes = limited(2, "");
    for (trace, words) in [
        (
            format!("{EXAMPLE}nonsense\n"),
            &["line 15", "arrival_s"][..],
        ),
        (
            EXAMPLE.replace("reasoning", "other"),
            &["reasoning", "--config"],
        ),
        (
            EXAMPLE.replace("service_s", "wait_s"),
            &["reasoning", "service_s"],
        ),
        (String::new(), &["reasoning"]),
    ] {
        let error = Workload::read(trace.as_bytes(), &lanes, |_| ()).unwrap_err();
        for word in words {
            assert!(error.to_string().contains(word), "{word}: {error}");
        }
    }
}

fn any_trace() -> impl Strategy<Value = String> {
    let request = (
        0..60_000_u32,
        0..3_usize,
        0..20_000_u32,
        prop::option::of("[a-c]"),
    );
    prop::collection::vec(request, 1..200).prop_map(|requests| {
        requests
            .into_iter()
            .map(|(at, class, service, account)| {
                let account = account.map_or(String::new(), |name| format!("\"account\":\"{name}\","));
                format!(
                    "{{\"arrival_s\":{},\"lane\":\"reasoning\",\"priority\":\"{}\",{account}\"service_s\":{}}}\n",
                    f64::from(at) / 1e3,
                    Class::ALL[class],
                    f64::from(service) / 1e3
                )
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Every request ends in exactly one way, and the limit is never exceeded.
    #[test]
    fn every_request_ends_once_and_within_the_limit(
        trace in any_trace(),
        limit in 1..8_u32,
        queue in 0..20_u32,
        timeout in 1..60_u32,
        more in prop::sample::select(vec![
            "",
            "[account]\nmax_inflight = 1",
            "[class.bulk]\nmax_inflight = 1",
            "[pace]\nmin_interval = \"700ms\"",
        ]),
    ) {
        let lanes = lanes(&format!(
            "max_inflight = {limit}\nmax_queue = {queue}\nqueue_timeout = \"{timeout}s\"\n{more}"
        ));
        let report = run(&trace, &lanes);
        prop_assert!(lane(&report).peak_inflight <= limit);
        for class in &lane(&report).classes {
            prop_assert_eq!(
                class.arrivals,
                class.served + class.refused + class.timeouts + class.gone
            );
            prop_assert!(class.waits.max <= Duration::from_secs(timeout.into()));
        }
    }
}
