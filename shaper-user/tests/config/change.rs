//! Keys of a lane changed without its file, as `shaper set` does.

use std::time::Duration;

use shaper_user::{
    config::{LaneConfig, Setting},
    policy::PaceMode,
};

use crate::{enforcing, lane, parse};

fn setting(key: &str, value: &str) -> Setting {
    Setting {
        key: key.to_owned(),
        value: value.to_owned(),
    }
}

/// As on the command line.
fn settings(texts: &[&str]) -> Vec<Setting> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn changed(lane: &LaneConfig, key: &str, value: &str) -> LaneConfig {
    match lane.with(&[setting(key, value)]) {
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
        let said = match lane("").with(&[setting(key, value)]) {
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
    let (changed, warnings) = lane("")
        .with(&[setting("interactive_reserve", "6")])
        .unwrap();
    assert_eq!(changed.rules.interactive_reserve, 5);
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].to_string().contains("interactive_reserve"));
    // Each time, until it is mended; not for what is doubtful in the file.
    let again = [setting("interactive_reserve", "6")];
    assert_eq!(changed.with(&again).unwrap().1, warnings);
    let long_hold = lane("connect_hold = \"always\"");
    let (_, warnings) = long_hold.with(&[setting("aging", "60s")]).unwrap();
    assert_eq!(warnings, []);
}

/// A14: the text is compared by what it means, so a lane set back to its file's value is the file's lane.
#[test]
fn a_lane_set_back_equals_its_file() {
    let configured = parse(&[("lanes.d/a.toml", &enforcing("# with a comment"))]).unwrap();
    let there = changed(&configured.lanes[0], "max_queue", "1");
    assert_ne!(there, configured.lanes[0]);
    assert_eq!(changed(&there, "max_queue", "64"), configured.lanes[0]);
}

/// A14: settings that need each other are judged together, whatever their order.
#[test]
fn several_settings_are_one_change_in_any_order() {
    let observing = &parse(&[(
        "lanes.d/a.toml",
        "endpoints = [\"10.0.0.1:443\"]\nmax_inflight = 0",
    )])
    .unwrap()
    .lanes[0];
    let wanted = [
        "max_inflight=4",
        "max_queue=64",
        "queue_timeout=300s",
        "pace=default",
        "pace.per_second=5",
    ];
    let first = observing.with(&settings(&wanted)).unwrap().0;
    assert_eq!(first.rules.max_inflight, 4);
    assert_eq!(first.rules.pace.as_ref().unwrap().per_second, Some(5));
    for shift in 1..wanted.len() {
        let mut other = wanted;
        other.rotate_left(shift);
        assert_eq!(observing.with(&settings(&other)).unwrap().0, first);
        other.reverse();
        assert_eq!(observing.with(&settings(&other)).unwrap().0, first);
    }
}

/// E9: every mistake is told at once, as for a file.
#[test]
fn all_that_is_wrong_with_several_settings_is_told() {
    for (texts, words) in [
        (
            &["max_inflight=many", "aging=soon", "udp=block"][..],
            &["max_inflight", "aging"][..],
        ),
        (&["max_inflight=3", "max_inflight=4"], &["twice"]),
        (&["class=3", "class.bulk.max_inflight=4"], &["class"]),
    ] {
        let said = lane("").with(&settings(texts)).unwrap_err().to_string();
        for word in words {
            assert!(said.contains(word), "{texts:?}: {said}");
        }
        assert!(!said.contains("udp"), "{texts:?}: {said}");
    }
}

/// A14: what was set is known by its key, as it would be set again; what the file has anyway is not.
#[test]
fn what_was_set_is_told_apart_from_the_file() {
    let file = lane("aging = \"60s\"\n[account]\noverrides = { acme = 4, \"b c\" = 5 }");
    assert!(file.overrides().is_empty());
    let texts = [
        "max_inflight=4",
        "connect_hold=2s",
        "aging=default",
        "account.overrides.acme=4",
        "account.overrides.\"b c\"=6",
    ];
    let set = file.with(&settings(&texts)).unwrap().0;
    let expected = [
        ("account.overrides.\"b c\"", "6"),
        ("aging", "default"),
        ("connect_hold", "2s"),
        ("max_inflight", "4"),
    ];
    let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
    assert_eq!(set.overrides(), expected.clone().into());
    let again: Vec<_> = set.overrides().into_iter().collect();
    let again: Vec<_> = again
        .iter()
        .map(|(key, value)| setting(key, value))
        .collect();
    let same = file.with(&again).unwrap().0;
    assert_eq!(same, set);
    let back = same
        .with(&settings(&["max_inflight=6", "aging=60s"]))
        .unwrap();
    assert_eq!(back.0.overrides().len(), 2);
}
