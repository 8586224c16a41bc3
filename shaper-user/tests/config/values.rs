//! What right values mean, and which of them are worth a warning.

use std::time::Duration;

use shaper_common::{Class, OnLoss};
use shaper_user::{
    config::{OnFull, Scope, Settings, Udp},
    policy::{Adaptive, ConnectHold, LaneRules, Pace, PaceMode},
};

use crate::{enforcing, lane, parse, said_of};

fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

#[test]
fn a_lane_with_only_what_it_needs_has_the_documented_defaults() {
    let lane = lane("");
    assert_eq!(lane.name, "a");
    assert_eq!((lane.on_full, lane.udp), (OnFull::Refuse, Udp::Block));
    assert_eq!(
        lane.rules,
        LaneRules {
            max_inflight: 6,
            enforce: true,
            max_queue: 64,
            queue_timeout: [secs(300); 3],
            interactive_reserve: 0,
            connect_hold: ConnectHold::For(secs(4)),
            idle_release: secs(2),
            abort_hold: secs(15),
            wake_bytes: 128,
            aging: secs(60),
            ticket_grace: secs(10),
            class_cap: [None; 3],
            account_cap: None,
            account_overrides: Default::default(),
            pace: None,
            adaptive: None,
            retry_after_max: secs(3600),
        }
    );
}

#[test]
fn every_setting_of_a_lane_arrives() {
    let text = r#"
endpoints     = ["http://10.1.2.3:8000/v1", "10.1.0.0/16:443", "[fd00::/8]:443", "gateway.internal:443"]
max_inflight  = 6
enforce       = false
max_queue     = 64
queue_timeout = "5m"
interactive_reserve = 1
connect_hold  = "0s"
idle_release  = "250ms"
abort_hold    = "0s"
wake_bytes    = 0x100
aging         = "1m 30s"
ticket_grace  = "1s"
on_full       = "unreachable"
udp           = "allow"
retry_after_max = "90s"
[class.bulk]
max_inflight  = 4
queue_timeout = "600s"
[account]
max_inflight  = 3
overrides     = { acme = 20 }
[pace]
mode = "even"
per_second = 5
per_minute = 15
min_interval = "250ms"
safety_margin = 0.1
window_slack = "1500ms"
[adaptive]
decrease = 0.5
increase = 0.05
min = 1
cooldown = "1m"
"#;
    let config = parse(&[("lanes.d/reasoning.toml", text)]).unwrap();
    assert_eq!(config.warnings, []);
    let lane = &config.lanes[0];
    let endpoints: Vec<_> = lane.endpoints.iter().map(ToString::to_string).collect();
    assert_eq!(
        endpoints,
        [
            "10.1.0.0/16:443",
            "10.1.2.3:8000",
            "[fd00::/8]:443",
            "gateway.internal:443"
        ]
    );
    assert_eq!((lane.on_full, lane.udp), (OnFull::Unreachable, Udp::Allow));
    assert_eq!(lane.on_full.errno(), libc::EHOSTUNREACH);
    assert_eq!(
        lane.rules,
        LaneRules {
            max_inflight: 6,
            enforce: false,
            max_queue: 64,
            queue_timeout: [secs(300), secs(300), secs(600)],
            interactive_reserve: 1,
            connect_hold: ConnectHold::For(Duration::ZERO),
            idle_release: Duration::from_millis(250),
            abort_hold: Duration::ZERO,
            wake_bytes: 256,
            aging: secs(90),
            ticket_grace: secs(1),
            class_cap: [None, None, Some(4)],
            account_cap: Some(3),
            account_overrides: [("acme".to_owned(), 20)].into(),
            pace: Some(Pace {
                mode: PaceMode::Even,
                per_second: Some(5),
                per_minute: Some(15),
                min_interval: Duration::from_millis(250),
                safety_margin: 0.1,
                window_slack: Duration::from_millis(1500),
            }),
            adaptive: Some(Adaptive {
                decrease: 0.5,
                increase: 0.05,
                min: 1.0,
                cooldown: secs(60),
            }),
            retry_after_max: secs(90),
        }
    );
}

#[test]
fn settings_have_the_documented_defaults() {
    let settings = parse(&[]).unwrap().settings;
    assert_eq!(settings, Settings::default());
    assert_eq!(parse(&[("shaper.toml", "")]).unwrap().settings, settings);
    assert_eq!(settings.listen.to_string(), "127.0.0.1:9797");
    assert_eq!(
        (
            settings.scope,
            settings.on_controller_loss,
            settings.fail_after
        ),
        (Scope::Classes, OnLoss::Open, secs(5))
    );
    assert_eq!(settings.history, secs(90 * 86_400));
    let cgroups = Class::ALL.map(|class| settings.classes[class.index()].cgroups.join(" "));
    assert_eq!(
        cgroups,
        ["shaper/interactive", "shaper/default", "shaper/bulk"]
    );
}

#[test]
fn every_setting_arrives() {
    let text = r#"
listen = "[::1]:1"
scope = "host"
on_controller_loss = "closed"
fail_after = "30s"
history = "2d"
[classes.interactive]
cgroups = []
[classes.bulk]
cgroups = ["system.slice/docker-*.scope", "batch/"]
"#;
    let settings = parse(&[("shaper.toml", text)]).unwrap().settings;
    assert_eq!(settings.listen.to_string(), "[::1]:1");
    assert_eq!(
        (
            settings.scope,
            settings.on_controller_loss,
            settings.fail_after
        ),
        (Scope::Host, OnLoss::Closed, secs(30))
    );
    assert_eq!(settings.history, secs(2 * 86_400));
    let cgroups = Class::ALL.map(|class| settings.classes[class.index()].cgroups.join(" "));
    assert_eq!(
        cgroups,
        ["", "shaper/default", "batch system.slice/docker-*.scope"]
    );
}

/// A21, B7: enforcement is one edit; everything else in the file may stay as it is.
#[test]
fn a_lane_that_observes_may_keep_every_other_setting() {
    let text = enforcing(
        "interactive_reserve = 5\nconnect_hold = \"always\"\n[class.bulk]\nmax_inflight = 99",
    )
    .replace("max_inflight = 6", "max_inflight = 0");
    let config = parse(&[("lanes.d/a.toml", &text)]).unwrap();
    assert_eq!(config.warnings, []);
    assert!(!config.lanes[0].enforces());
    assert_eq!(config.lanes[0].rules.interactive_reserve, 0);
    let bare = parse(&[(
        "lanes.d/a.toml",
        "endpoints = [\"a.test:1\"]\nmax_inflight = 0",
    )])
    .unwrap();
    assert_eq!(bare.warnings, []);
}

/// A21, B7: enforcement is a switch of its own. The rules under it are complete, checked and warned of as if they held.
#[test]
fn a_lane_that_does_not_enforce_its_limit_keeps_it() {
    assert!(lane("enforce = true").enforces());
    let trial = lane("enforce = false\ninteractive_reserve = 2");
    assert!(!trial.enforces());
    assert_eq!(
        (trial.rules.max_inflight, trial.rules.interactive_reserve),
        (6, 2)
    );
    assert_eq!(
        said_of("enforce = false\nconnect_hold = \"5s\""),
        said_of("enforce = true\nconnect_hold = \"5s\"")
    );
    let unlimited = "endpoints = [\"a.test:1\"]\nmax_inflight = 0\nenforce = true";
    let config = parse(&[("lanes.d/a.toml", unlimited)]).unwrap();
    assert!(!config.lanes[0].enforces());
    let incomplete = "endpoints = [\"a.test:1\"]\nmax_inflight = 1\nenforce = false";
    let errors = parse(&[("lanes.d/a.toml", incomplete)]).unwrap_err();
    assert_eq!(errors.error_count(), 2, "{errors}");
}

/// A4: the reserve always leaves one slot for the rest.
#[test]
fn a_reserve_as_large_as_the_limit_is_clamped_with_a_warning() {
    assert_eq!(lane("interactive_reserve = 5").rules.interactive_reserve, 5);
    assert_eq!(said_of("interactive_reserve = 5"), "");
    for reserve in [6, 7, 2_000_000] {
        let more = format!("interactive_reserve = {reserve}");
        assert_eq!(lane(&more).rules.interactive_reserve, 5);
        assert!(said_of(&more).contains("; 5 is used"), "{}", said_of(&more));
    }
}

#[test]
fn settings_that_may_not_do_what_was_meant_are_warned_of() {
    let cases = [
        (
            "connect_hold = \"5s\"",
            ":5:16: `connect_hold`: common SDKs give up on connect() after 5s",
        ),
        (
            "connect_hold = \"always\"",
            ":5:16: `connect_hold`: common SDKs give up on connect() after 5s",
        ),
        (
            "wake_bytes = 79",
            ":5:14: `wake_bytes`: 79 holds the end of TLS handshakes",
        ),
        (
            "[class.bulk]\nmax_inflight = 7",
            ":6:16: `class.bulk.max_inflight`: 7 is more than max_inflight = 6",
        ),
        (
            "[class.bulk]\nqueue_timeout = \"3s\"",
            ":6:17: `class.bulk.queue_timeout`: 3s is shorter than connect_hold = \"4s\"",
        ),
        (
            "interactive_reserve = 3\n[class.interactive]\nmax_inflight = 2",
            ":5:23: `interactive_reserve`: 3 is more than class.interactive.max_inflight = 2",
        ),
        (
            "idle_release = \"6m\"",
            ":4:17: `queue_timeout`: 5m is shorter than idle_release = \"6m\"",
        ),
        (
            "[pace]\nper_minute = 10",
            ":3:13: `max_queue`: the pace takes 5m 24s for 64 waiters, longer than queue_timeout = \"5m\"",
        ),
    ];
    for (more, expected) in cases {
        let said = said_of(more);
        assert!(
            said.starts_with("warning: lanes.d/a.toml") && said.contains(expected),
            "{more}\n{said}"
        );
        assert_eq!(said.lines().count(), 2, "{more}\n{said}");
    }
    let quiet = [
        "connect_hold = \"4999ms\"",
        "wake_bytes = 80",
        "[class.bulk]\nmax_inflight = 6",
        "idle_release = \"5m\"",
        "[pace]\nper_minute = 11",
        "[pace]\nmode = \"even\"\nper_minute = 13",
    ];
    for more in quiet {
        assert_eq!(said_of(more), "", "{more}");
    }
}

#[test]
fn short_queues_short_timeouts_and_odd_endpoints_are_warned_of() {
    let cases = [
        (
            ("max_queue = 64", "max_queue = 5"),
            ":3:13: `max_queue`: 5 is less than max_inflight = 6",
        ),
        (
            ("\"300s\"", "\"3s\""),
            ":4:17: `queue_timeout`: 3s is shorter than connect_hold = \"4s\"",
        ),
        (
            ("10.1.2.3:8000", "https://k@a.test"),
            ":1:14: `endpoints`: a.test:443 was written with credentials",
        ),
        (
            ("10.1.2.3:8000", "10.1.2.3/16:443"),
            ":1:14: `endpoints`: the address has bits behind its prefix",
        ),
        (
            ("10.1.2.3:8000", "[::/0]:443"),
            ":1:14: `endpoints`: [::/0]:443 is every address there is",
        ),
    ];
    for ((right, odd), expected) in cases {
        let text = enforcing("").replace(right, odd);
        let warnings = parse(&[("lanes.d/a.toml", &text)]).unwrap().warnings;
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(
            warnings[0].to_string().contains(expected),
            "{}\nlacks {expected}",
            warnings[0]
        );
    }
}

/// E10: off unless configured.
#[test]
fn the_example_lanes_hold_and_refuse_nothing() {
    let config =
        shaper_user::config::Config::parse(&shaper_user::config::Files::embedded()).unwrap();
    assert_eq!(config.warnings, []);
    let lanes: Vec<_> = config.lanes.iter().map(|lane| &*lane.name).collect();
    assert_eq!(lanes, ["litellm", "provider", "vllm"]);
    for lane in &config.lanes {
        assert!(!lane.enforces() && lane.udp == Udp::Allow, "{lane:?}");
    }
}

/// What the comments of the examples tell an operator to add is right.
#[test]
fn the_example_lanes_can_be_enforced_as_their_comments_say() {
    for file in shaper_user::config::Files::embedded().lanes {
        let is_code = |line: &str| {
            line.starts_with('[')
                || line
                    .split_once('=')
                    .is_some_and(|(key, _)| !key.trim().contains(' '))
        };
        let uncommented: Vec<_> = file
            .text
            .lines()
            .map(|line| match line.strip_prefix('#').map(str::trim_start) {
                Some(code) if is_code(code) => code,
                _ => line,
            })
            .collect();
        let has_own_limit = file.text.contains("#   max_inflight");
        let text = uncommented
            .join("\n")
            .replace(
                "max_inflight = 0",
                if has_own_limit {
                    ""
                } else {
                    "max_inflight = 6"
                },
            )
            .replace("max_inflight  = 0", "max_inflight = 6");
        let trial = parse(&[("lanes.d/a.toml", &text)]);
        let trial = trial.unwrap_or_else(|errors| panic!("{text}\n{errors}"));
        let enforced = text.replace("enforce       = false", "");
        let enforced = parse(&[("lanes.d/a.toml", &enforced)]).unwrap();
        assert!(enforced.lanes[0].enforces());
        assert_eq!(enforced.lanes[0].rules.max_inflight, 6);
        assert_eq!(trial.lanes[0].enforces(), !has_own_limit);
        for config in [trial, enforced] {
            assert_eq!(config.warnings, []);
        }
    }
}
