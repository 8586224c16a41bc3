//! One key of a lane changed without its file, as `shaper set` does.

use std::time::Duration;

use shaper_user::{config::LaneConfig, policy::PaceMode};

use crate::{enforcing, lane, parse};

fn changed(lane: &LaneConfig, key: &str, value: &str) -> LaneConfig {
    match lane.with(key, value) {
        Ok((changed, _)) => changed,
        Err(error) => panic!("{key}={value}: {error}"),
    }
}

/// A14: a value that is set is the value that the file would have given.
#[test]
fn a_set_value_means_what_it_would_mean_in_the_file() {
    for (key, value, same) in [
        ("on_full", "timeout", "on_full = \"timeout\""),
        ("connect_hold", "always", "connect_hold = \"always\""),
        ("aging", "90s", "aging = \"90s\""),
        ("wake_bytes", "256", "wake_bytes = 256"),
        (
            "class.bulk.max_inflight",
            "2",
            "[class.bulk]\nmax_inflight = 2",
        ),
        (
            "account.overrides.acme",
            "4",
            "[account]\noverrides = { acme = 4 }",
        ),
        ("pace.per_second", "5", "[pace]\nper_second = 5"),
    ] {
        assert_eq!(changed(&lane(""), key, value), lane(same), "{key}={value}");
    }
}

#[test]
fn sets_add_up_and_a_default_takes_one_back() {
    let paced = changed(&lane(""), "pace.per_minute", "30");
    let even = changed(&paced, "pace.mode", "even");
    let limited = changed(&even, "max_inflight", "3");
    assert_eq!(limited.rules.max_inflight, 3);
    assert_eq!(
        limited.rules.pace.map(|pace| (pace.mode, pace.per_minute)),
        Some((PaceMode::Even, Some(30)))
    );
    let unpaced = changed(&limited, "pace", "default");
    assert_eq!(changed(&unpaced, "max_inflight", "6"), lane(""));
}

#[test]
fn a_key_that_stands_in_the_file_is_replaced_whatever_its_form() {
    let inline = lane("class = { bulk = { max_inflight = 4 } } # inline");
    let lowered = changed(&inline, "class.bulk.max_inflight", "1");
    assert_eq!(lowered, lane("[class.bulk]\nmax_inflight = 1"));
    let quoted = changed(&inline, "queue_timeout", "\"10s\"");
    assert_eq!(quoted.rules.queue_timeout, [Duration::from_secs(10); 3]);
}

/// E9: a mistake names the key and what would be right, as for a file.
#[test]
fn a_mistake_names_the_key_and_what_would_be_right() {
    for (key, value, words) in [
        ("max_inflght", "3", &["max_inflght", "max_inflight"][..]),
        ("max_inflight", "many", &["max_inflight", "0 to"]),
        ("max_inflight", "-1", &["max_inflight", "0 to"]),
        ("queue_timeout", "90", &["queue_timeout", "\"90s\""]),
        ("max_queue", "default", &["max_queue", "missing"]),
        ("class.urgent.max_inflight", "2", &["urgent", "bulk"]),
        ("max_inflight.now", "2", &["max_inflight", "table"]),
        ("pace.mode", "even", &["pace", "per_second"]),
        ("adaptive.min", "0", &["adaptive.min", "above 0"]),
        ("endpoints", "[\"a:1\"]", &["endpoints", "SIGHUP"]),
        ("two words", "2", &["two words", "max_inflight"]),
    ] {
        let said = match lane("").with(key, value) {
            Ok(_) => panic!("{key}={value} was taken"),
            Err(error) => error.to_string(),
        };
        for word in words {
            assert!(said.contains(word), "{key}={value}: {said}");
        }
    }
}

/// A4: what does not go together is told although it is taken.
#[test]
fn a_clamped_reserve_is_a_warning() {
    let (changed, warnings) = lane("").with("interactive_reserve", "6").unwrap();
    assert_eq!(changed.rules.interactive_reserve, 5);
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].to_string().contains("interactive_reserve"));
}

/// A14: the text is compared by what it means, so a lane set back to its file's value is the file's lane.
#[test]
fn a_lane_set_back_equals_its_file() {
    let configured = parse(&[("lanes.d/a.toml", &enforcing("# with a comment"))]).unwrap();
    let there = changed(&configured.lanes[0], "max_queue", "1");
    assert_ne!(there, configured.lanes[0]);
    assert_eq!(changed(&there, "max_queue", "64"), configured.lanes[0]);
}
