//! Malformed lane files.

use super::{Case, assert_rejected};
use crate::{enforcing, parse};

/// Lines that follow four right ones, so that the first of them is line 5.
#[test]
fn a_bad_line_in_a_lane_is_named_with_its_place_and_remedy() {
    let cases: &[Case<'_>] = &[
        // Unknown keys.
        (
            "max_inflght = 6",
            &[
                "a.toml:5:1: `max_inflght`: is not a known key",
                "did you mean `max_inflight`?",
            ],
        ),
        (
            "Idle-Release = \"2s\"",
            &[":5:1: `Idle-Release`", "did you mean `idle_release`?"],
        ),
        (
            "hold = \"2s\"",
            &[
                ":5:1: `hold`: is not a known key",
                "one of `endpoints`, `max_inflight`",
            ],
        ),
        (
            "\"https://me:sk-secret@host/\" = 1",
            &[":5:1: `…`: is not a known key"],
        ),
        (
            "per_minute = 5",
            &[":5:1: `per_minute`", "it belongs under [pace]"],
        ),
        (
            "[account]\naging = \"1s\"",
            &[
                ":6:1: `account.aging`",
                "at the top of the file, above the first [table]",
            ],
        ),
        (
            "listen = \"127.0.0.1:1\"",
            &[":5:1: `listen`", "it belongs in shaper.toml"],
        ),
        (
            "[classes.bulk]\ncgroups = []",
            &[":5:2: `classes`", "did you mean `class`?"],
        ),
        (
            "[class.batch]\nmax_inflight = 1",
            &[
                ":5:8: `class.batch`: is not a class",
                "`interactive`, `default`, `bulk`",
            ],
        ),
        (
            "[class.Bulk]\nmax_inflight = 1",
            &[":5:8: `class.Bulk`: is not a class", "did you mean `bulk`?"],
        ),
        (
            "[class.bulk]\nmax_queue = 1",
            &[":6:1: `class.bulk.max_queue`", "above the first [table]"],
        ),
        (
            "[class.bulk]\ntimeout = \"1s\"",
            &[
                ":6:1: `class.bulk.timeout`",
                "did you mean `queue_timeout`?",
            ],
        ),
        (
            "[pace]\nper_hour = 1",
            &[":6:1: `pace.per_hour`: is not a known key"],
        ),
        (
            "[adaptive]\ndecreasing = 0.7",
            &[
                ":6:1: `adaptive.decreasing`: is not a known key",
                "did you mean `decrease`?",
            ],
        ),
        // Wrong types.
        (
            "wake_bytes = \"128\"",
            &[
                ":5:14: `wake_bytes`: is a string",
                "a whole number from 0 to 1460",
            ],
        ),
        ("wake_bytes = 1.5", &[":5:14: `wake_bytes`: is a float"]),
        ("wake_bytes = true", &[":5:14: `wake_bytes`: is a boolean"]),
        ("wake_bytes = [1]", &[":5:14: `wake_bytes`: is an array"]),
        (
            "wake_bytes = 2026-01-01",
            &[":5:14: `wake_bytes`: is a datetime"],
        ),
        ("[wake_bytes]", &[":5:1: `wake_bytes`: is a table"]),
        (
            "idle_release = false",
            &[
                ":5:16: `idle_release`: is a boolean",
                "a duration with its unit",
            ],
        ),
        (
            "on_full = 111",
            &[
                ":5:11: `on_full`: is an integer",
                "\"refuse\" or \"unreachable\" or \"timeout\"",
            ],
        ),
        (
            "enforce = \"yes\"",
            &[":5:11: `enforce`: is a string", "true or false"],
        ),
        (
            "udp = [\"block\"]",
            &[":5:7: `udp`: is an array", "\"block\" or \"allow\""],
        ),
        (
            "class = 3",
            &[":5:1: `class`: is an integer", "a table with `interactive`"],
        ),
        (
            "class.bulk = 3",
            &[
                ":5:7: `class.bulk`: is an integer",
                "a table with `max_inflight`, `queue_timeout`",
            ],
        ),
        ("[[class]]", &[":5:3: `class`: is an array", "a table with"]),
        (
            "pace = \"even\"",
            &[":5:1: `pace`: is a string", "a table with `mode`"],
        ),
        (
            "account.overrides = 3",
            &[
                ":5:21: `account.overrides`: is an integer",
                "a table { NAME = N }",
            ],
        ),
        // Numbers out of range.
        ("wake_bytes = -1", &[":5:14: `wake_bytes`: -1 is negative"]),
        (
            "wake_bytes = -99999999999999999999999",
            &["`wake_bytes`: -99999999999999999999999 is negative"],
        ),
        (
            "wake_bytes = 1461",
            &[":5:14: `wake_bytes`: 1461 is too large", "from 0 to 1460"],
        ),
        (
            "wake_bytes = 0xffff_ffff_ffff_ffff_ff",
            &[":5:14: `wake_bytes`", "is too large"],
        ),
        (
            "interactive_reserve = -2",
            &[":5:23: `interactive_reserve`: -2 is negative"],
        ),
        (
            "[class.bulk]\nmax_inflight = 0",
            &[
                ":6:16: `class.bulk.max_inflight`: 0 is too small",
                "from 1 to",
            ],
        ),
        (
            "[class.bulk]\nmax_inflight = -4",
            &[":6:16: `class.bulk.max_inflight`: -4 is negative"],
        ),
        (
            "[account]\nmax_inflight = 0",
            &[":6:16: `account.max_inflight`: 0 is too small"],
        ),
        (
            "[account]\noverrides = { acme = -20 }",
            &[":6:22: `account.overrides`: of `acme`: -20 is negative"],
        ),
        (
            "[account]\noverrides = { acme = \"20\" }",
            &[":6:22: `account.overrides`: of `acme`: is a string"],
        ),
        (
            "[account]\noverrides = { \"a/b\" = 2 }",
            &[":6:13: `account.overrides`", "the name of a child cgroup"],
        ),
        (
            "[account.overrides]\n\"\" = 2",
            &["`account.overrides`: `` cannot be the name of an account"],
        ),
        (
            "[pace]\nper_second = 0",
            &[":6:14: `pace.per_second`: 0 is too small"],
        ),
        (
            "[pace]\nper_second = 0.5",
            &[":6:14: `pace.per_second`: is a float"],
        ),
        (
            "[pace]\nper_minute = 1_000_001",
            &[":6:14: `pace.per_minute`", "too large"],
        ),
        (
            "[pace]\nper_second = 1\nsafety_margin = 1",
            &[
                ":7:17: `pace.safety_margin`: 1 is out of range",
                "less than, 1",
            ],
        ),
        (
            "[pace]\nper_second = 1\nsafety_margin = -0.1",
            &[":7:17: `pace.safety_margin`: -0.1 is out of range"],
        ),
        (
            "[pace]\nper_second = 1\nsafety_margin = nan",
            &[":7:17: `pace.safety_margin`: nan is out of range"],
        ),
        (
            "[pace]\nper_second = 1\nsafety_margin = inf",
            &[":7:17: `pace.safety_margin`: inf is out of range"],
        ),
        (
            "[pace]\nper_second = 1\nmode = \"evn\"",
            &[":7:8: `pace.mode`", "did you mean \"even\"?"],
        ),
        (
            "[pace]\nmode = \"even\"",
            &[
                ":5:1: `pace`: sets no pace",
                "per_second, per_minute or min_interval",
            ],
        ),
        ("[pace]", &[":5:1: `pace`: sets no pace"]),
        // Durations.
        (
            "idle_release = 2",
            &[":5:16: `idle_release`: 2 has no unit", "say \"2s\""],
        ),
        (
            "idle_release = \"2\"",
            &[":5:16: `idle_release`: \"2\" has no unit", "say \"2s\""],
        ),
        (
            "idle_release = \" 1.5 \"",
            &[":5:16: `idle_release`: \"1.5\" has no unit", "say \"1.5s\""],
        ),
        ("idle_release = 1.5", &[":5:16: `idle_release`: is a float"]),
        (
            "idle_release = \"-2s\"",
            &[":5:16: `idle_release`: is negative"],
        ),
        (
            "idle_release = \"2 parsecs\"",
            &[":5:16: `idle_release`: is not a duration", "(ms, s, m, h)"],
        ),
        (
            "idle_release = \"\"",
            &[":5:16: `idle_release`: is not a duration"],
        ),
        (
            "idle_release = \"99999999999999999999s\"",
            &[":5:16: `idle_release`: is not a duration"],
        ),
        (
            "idle_release = \"always\"",
            &[":5:16: `idle_release`: is not a duration"],
        ),
        (
            "idle_release = \"0s\"",
            &[
                ":5:16: `idle_release`: 0s is too short",
                "\"20ms\" to \"1day\"",
            ],
        ),
        (
            "abort_hold = \"2days\"",
            &[":5:14: `abort_hold`: 2days is too long"],
        ),
        ("aging = \"0s\"", &[":5:9: `aging`: 0s is too short"]),
        (
            "connect_hold = \"allways\"",
            &[":5:16: `connect_hold`: is not a duration", "or \"always\""],
        ),
        (
            "connect_hold = 4",
            &[":5:16: `connect_hold`: 4 has no unit", "or \"always\""],
        ),
        (
            "[class.bulk]\nqueue_timeout = \"600\"",
            &[":6:17: `class.bulk.queue_timeout`: \"600\" has no unit"],
        ),
        (
            "[pace]\nmin_interval = 250",
            &[":6:16: `pace.min_interval`: 250 has no unit"],
        ),
        (
            "[pace]\nper_second = 1\nwindow_slack = \"2m\"",
            &[":7:16: `pace.window_slack`: 2m is too long"],
        ),
        // Words.
        (
            "on_full = \"refused\"",
            &[
                ":5:11: `on_full`: is not one of its words",
                "did you mean \"refuse\"?",
            ],
        ),
        (
            "on_full = \"ECONNRESET\"",
            &[":5:11: `on_full`: is not one of its words", "\"refuse\" or"],
        ),
        (
            "udp = \"Block\"",
            &[":5:7: `udp`", "did you mean \"block\"?"],
        ),
        // Not TOML.
        ("udp = ", &["a.toml:5:", "not valid TOML"]),
        ("udp = block", &["a.toml:5:7: not valid TOML"]),
        ("udp \"block\"", &["a.toml:5:", "not valid TOML"]),
        ("udp = \"block", &["a.toml:5:", "not valid TOML"]),
        ("[pace", &["a.toml:5:", "not valid TOML"]),
        (
            "max_inflight = 7",
            &["a.toml:5:1: not valid TOML: duplicate key"],
        ),
        (
            "overrides = { a = 1, a = 2 }",
            &["a.toml:5:22: not valid TOML: duplicate key"],
        ),
        ("wake_bytes = 0128", &["a.toml:5:", "not valid TOML"]),
    ];
    for (more, parts) in cases {
        assert_rejected("lanes.d/a.toml", &enforcing(more), parts);
    }
}

#[test]
fn a_lane_without_what_it_needs_says_what_it_needs() {
    let cases: &[Case<'_>] = &[
        (
            "",
            &[
                ":1:1: `endpoints`: is missing",
                ":1:1: `max_inflight`: is missing",
            ],
        ),
        (
            "max_inflight = 0",
            &[
                ":1:1: `endpoints`: is missing",
                "add `endpoints`: a list of HOST:PORT",
            ],
        ),
        (
            "endpoints = [\"a.test:1\"]",
            &[
                ":1:1: `max_inflight`: is missing",
                "add `max_inflight`: a whole number",
            ],
        ),
        (
            "endpoints = [\"a.test:1\"]\nmax_inflight = 6\nmax_queue = 6",
            &[
                ":2:16: `queue_timeout`: is missing, and max_inflight = 6 needs it",
                "add `queue_timeout`: a duration",
            ],
        ),
        (
            "endpoints = [\"a.test:1\"]\nmax_inflight = 6\nqueue_timeout = \"1m\"",
            &[
                ":2:16: `max_queue`: is missing, and max_inflight = 6 needs it",
                "from 0 to 65536",
            ],
        ),
        (
            "endpoints = [\"a.test:1\"]\nmax_inflight = -1",
            &[":2:16: `max_inflight`: -1 is negative", "from 0 to 2097151"],
        ),
        (
            "endpoints = [\"a.test:1\"]\nmax_inflight = 2097152",
            &[":2:16: `max_inflight`: 2097152 is too large"],
        ),
        (
            "endpoints = [\"a.test:1\"]\nmax_inflight = \"6\"",
            &[":2:16: `max_inflight`: is a string"],
        ),
        (
            "endpoints = [\"a.test:1\"]\nmax_inflight = 1\nmax_queue = 1\nqueue_timeout = \"1m\"\ninteractive_reserve = 1",
            &[
                ":5:23: `interactive_reserve`: a reserve of 1 leaves no slot of max_inflight = 1",
                "0, or a max_inflight of 2",
            ],
        ),
    ];
    for (text, parts) in cases {
        assert_rejected("lanes.d/a.toml", text, parts);
    }
}

#[test]
fn the_name_of_a_file_has_to_be_the_name_of_a_lane() {
    let long = format!("lanes.d/{}.toml", "a".repeat(64));
    for path in [
        "lanes.d/Big.toml",
        "lanes.d/-a.toml",
        "lanes.d/a b.toml",
        "lanes.d/ä.toml",
        &long,
    ] {
        let errors = parse(&[(path, &enforcing(""))]).unwrap_err().to_string();
        assert!(
            errors.contains(&format!(
                "error: {path}: the name of the file is not the name of a lane"
            )),
            "{errors}"
        );
    }
    assert!(parse(&[("lanes.d/0a-b_c.toml", &enforcing(""))]).is_ok());
}

#[test]
fn more_lanes_than_the_kernel_maps_hold_are_an_error() {
    let lanes: Vec<_> = (0..257)
        .map(|n| {
            let text = format!("endpoints = [\"10.0.0.1:{}\"]\nmax_inflight = 0", 1000 + n);
            (format!("lanes.d/{n:03}.toml"), text)
        })
        .collect();
    let sources: Vec<_> = lanes
        .iter()
        .map(|(path, text)| (&**path, &**text))
        .collect();
    assert!(parse(&sources[..256]).is_ok());
    let errors = parse(&sources).unwrap_err().to_string();
    assert!(
        errors.contains("lanes.d/256.toml: is one lane too many of 257\n  help: at most 256 lanes"),
        "{errors}"
    );
}
