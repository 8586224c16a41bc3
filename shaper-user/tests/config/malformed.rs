//! E9: bad values are errors that say so; a typo is never silently a default.

use crate::{enforcing, parse, said_of};

/// A lane file, and parts of what is said of it: the place first.
type Case<'a> = (&'a str, &'a [&'a str]);

fn assert_rejected(path: &str, text: &str, parts: &[&str]) {
    let errors = parse(&[(path, text)]).expect_err(text).to_string();
    assert!(
        errors.contains(&format!("error: {path}:")),
        "{text}\n{errors}"
    );
    for part in parts {
        assert!(errors.contains(part), "{text}\n{errors}\nlacks {part}");
    }
}

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
            "[adaptive]\ndecrease = 0.7",
            &[
                ":5:2: `adaptive`: is not supported by this version",
                "remove the table",
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
fn a_bad_endpoint_is_named_by_its_place_alone() {
    let cases: &[Case<'_>] = &[
        (
            "\"a.test:1\"",
            &[":1:13: `endpoints`: is a string", "put it in brackets"],
        ),
        (
            "[]",
            &[":1:13: `endpoints`: is empty", "at least one endpoint"],
        ),
        (
            "[1]",
            &[":1:14: `endpoints`: holds an integer", "strings only"],
        ),
        (
            "[\"a.test:1\", [\"b.test:1\"]]",
            &[":1:26: `endpoints`: holds an array"],
        ),
        ("[\"\"]", &[":1:14: `endpoints`: is empty"]),
        (
            "[\"a.test\"]",
            &[
                ":1:14: `endpoints`: has no port",
                "add the port, such as :443",
            ],
        ),
        (
            "[\"a.test:1\",\n\"a.test:99999\"]",
            &[":2:1: `endpoints`: has an invalid port", "from 1 to 65535"],
        ),
        ("[\"a.test:0\"]", &["`endpoints`: has an invalid port"]),
        (
            "[\"10.1.0.0/33:443\"]",
            &[
                "`endpoints`: has an invalid prefix length",
                "\"10.1.0.0/16:443\"",
            ],
        ),
        (
            "[\"fd00::1\"]",
            &["is an IPv6 address without brackets", "\"[fd00::1]:443\""],
        ),
        (
            "[\"ftp://a.test\"]",
            &["has a scheme other than http and https"],
        ),
        (
            "[\"http://10.1.0.0/16:443\"]",
            &["is a URL with an address prefix", "without a scheme"],
        ),
        ("[\"a b.test:1\"]", &["contains white space"]),
        ("[\"a_.-:1\"]", &["has an invalid host"]),
        ("[\"0.0.0.0:443\"]", &["nothing can connect to"]),
        // Several at once.
        (
            "[\"a.test\", \"b.test\"]",
            &[
                ":1:14: `endpoints`: has no port",
                ":1:24: `endpoints`: has no port",
            ],
        ),
    ];
    for (endpoints, parts) in cases {
        assert_rejected(
            "lanes.d/a.toml",
            &format!("endpoints = {endpoints}\nmax_inflight = 0"),
            parts,
        );
    }
}

/// E6: two spellings of one endpoint are one endpoint, which belongs to one lane.
#[test]
fn an_endpoint_in_two_places_is_an_error_that_names_both() {
    let cases = [
        (
            "\"10.1.2.3:80\", \"http://10.1.2.3/\"",
            "",
            "a.toml:1:29: `endpoints`: 10.1.2.3:80 is in this lane already (lanes.d/a.toml:1:14)",
        ),
        (
            "\"10.1.0.0/16:80\", \"10.1.2.3:80\"",
            "",
            "a.toml:1:32: `endpoints`: 10.1.2.3:80 overlaps 10.1.0.0/16:80 of this lane (lanes.d/a.toml:1:14)",
        ),
        (
            "\"A.test:443\"",
            "\"https://a.test./v1\"",
            "b.toml:1:14: `endpoints`: a.test:443 is in lane `a` already (lanes.d/a.toml:1:14)",
        ),
        (
            "\"[fd00::1]:443\"",
            "\"x.test:1\", \"[fd00::/8]:443\"",
            "b.toml:1:26: `endpoints`: [fd00::/8]:443 overlaps [fd00::1]:443 of lane `a` (lanes.d/a.toml:1:14)",
        ),
    ];
    for (a, b, expected) in cases {
        let text = |endpoints| format!("endpoints = [{endpoints}]\nmax_inflight = 0");
        let b = if b.is_empty() {
            text("\"other.test:1\"")
        } else {
            text(b)
        };
        let errors = parse(&[("lanes.d/a.toml", &text(a)), ("lanes.d/b.toml", &b)]).unwrap_err();
        assert!(
            errors.to_string().contains(expected),
            "{errors}\nlacks {expected}"
        );
        assert_eq!(errors.error_count(), 1, "{errors}");
    }
}

#[test]
fn a_bad_line_in_the_settings_is_named_with_its_place_and_remedy() {
    let cases: &[Case<'_>] = &[
        (
            "listen = 9797",
            &[
                ":1:10: `listen`: is an integer",
                "such as \"127.0.0.1:9797\"",
            ],
        ),
        (
            "listen = \"9797\"",
            &[":1:10: `listen`: is not an address and port"],
        ),
        (
            "listen = \"localhost:9797\"",
            &[":1:10: `listen`: is not an address and port"],
        ),
        (
            "listn = \"127.0.0.1:1\"",
            &[":1:1: `listn`", "did you mean `listen`?"],
        ),
        (
            "scope = \"hosts\"",
            &[":1:9: `scope`", "did you mean \"host\"?"],
        ),
        (
            "on_controller_loss = \"close\"",
            &[":1:22: `on_controller_loss`", "did you mean \"closed\"?"],
        ),
        (
            "fail_after = 5",
            &[":1:14: `fail_after`: 5 has no unit", "say \"5s\""],
        ),
        (
            "fail_after = \"500ms\"",
            &[
                ":1:14: `fail_after`: 500ms is too short",
                "from \"1s\" to \"1h\"",
            ],
        ),
        (
            "max_inflight = 6",
            &[":1:1: `max_inflight`", "it belongs in a lane's file"],
        ),
        ("[pace]", &[":1:2: `pace`", "it belongs in a lane's file"]),
        (
            "[class.bulk]",
            &[":1:2: `class`", "did you mean `classes`?"],
        ),
        (
            "cgroups = []",
            &[":1:1: `cgroups`", "it belongs under [classes.<class>]"],
        ),
        (
            "[classes.bulk]\ncgroups = \"shaper/bulk\"",
            &[
                ":2:11: `classes.bulk.cgroups`: is a string",
                "put it in brackets",
            ],
        ),
        (
            "[classes.bulk]\ncgroups = [1]",
            &[":2:12: `classes.bulk.cgroups`: holds an integer"],
        ),
        (
            "[classes.bulk]\ncgroups = [\"\"]",
            &[":2:12: `classes.bulk.cgroups`: is empty"],
        ),
        (
            "[classes.bulk]\ncgroups = [\"/sys/fs/cgroup/x\"]",
            &[
                ":2:12: `classes.bulk.cgroups`: is absolute",
                "relative to the cgroup2 mount",
            ],
        ),
        (
            "[classes.bulk]\ncgroups = [\"a/../b\"]",
            &[":2:12: `classes.bulk.cgroups`: has an empty part"],
        ),
        (
            "[classes.bulk]\ncgroups = [\"a[\"]",
            &[":2:12: `classes.bulk.cgroups`: is not a valid glob"],
        ),
        (
            "[classes.bulk]\ncgroups = [\"a\\u0000\"]",
            &[":2:12: `classes.bulk.cgroups`: has a control character"],
        ),
        (
            "[classes.bulk]\ncgroups = [\"shaper/default\"]",
            &[":2:12: `classes.bulk.cgroups`: `shaper/default` is in class default already"],
        ),
        (
            "[classes.bulk]\ncgroups = [\"a\", \"a/\"]",
            &[":2:17: `classes.bulk.cgroups`: `a` is in class bulk already"],
        ),
        (
            "[classes.bulk]\ncgroup = []",
            &[":2:1: `classes.bulk.cgroup`", "did you mean `cgroups`?"],
        ),
    ];
    for (text, parts) in cases {
        assert_rejected("shaper.toml", text, parts);
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

/// E7: whatever is wrong with it, what may hold a credential is not repeated.
#[test]
fn no_message_repeats_a_credential() {
    let lines = [
        "endpoints = [\"https://me:sk-secret@gateway.internal/v1?key=sk-secret\"]\nmax_inflight = 0",
        "endpoints = [\"https://sk-secret@gateway internal\"]\nmax_inflight = 0",
        "endpoints = [\"https://me:sk-secret/x@gateway.internal\"]\nmax_inflight = 0",
        "endpoints = [\"sk-secret\"]\nmax_inflight = 0",
        "endpoints = \"https://sk-secret@gateway.internal\"\nmax_inflight = 0",
        "endpoints = [\"https://sk-secret@gateway.internal\", \"https://sk-secret@gateway.internal\"]\nmax_inflight = 0",
        "endpoints = [\"https://sk-secret@gateway.internal]\nmax_inflight = 0",
        "endpoints = https://sk-secret@gateway.internal\nmax_inflight = 0",
        "\"https://sk-secret@gateway.internal\" = 1",
        "max_inflight = \"sk-secret\"",
        "udp = \"sk-secret\"",
        "aging = \"sk-secret\"",
    ];
    for text in lines {
        let said = match parse(&[("lanes.d/a.toml", text)]) {
            Ok(config) => format!("{config:?}"),
            Err(errors) => errors.to_string(),
        };
        assert!(!said.contains("sk-secret"), "{text}\n{said}");
    }
}

#[test]
fn every_problem_of_every_file_is_reported_at_once() {
    let errors = parse(&[
        ("shaper.toml", "scope = \"hosts\"\nfail_after = 5\n"),
        (
            "lanes.d/a.toml",
            "endpoints = [\"https://key:sk-secret@gateway.internal\", \"10.1.2.3\"]\nmax_inflght = 6\nwake_bytes = -1\n",
        ),
        ("lanes.d/b.toml", "endpoints = [\"10.1.2.3:80\"\nmax_inflight = 1\n"),
    ])
    .unwrap_err();
    assert_eq!(
        errors.to_string(),
        r#"error: shaper.toml:1:9: `scope`: is not one of its words
  help: did you mean "host"? One of "classes" or "host"
error: shaper.toml:2:14: `fail_after`: 5 has no unit
  help: say "5s" for seconds; a duration with its unit (ms, s, m, h) from "1s" to "1h"
error: lanes.d/a.toml:1:1: `max_inflight`: is missing
  help: add `max_inflight`: a whole number from 0 to 2097151
error: lanes.d/a.toml:1:56: `endpoints`: has no port
  help: add the port, such as :443, or write an http:// or https:// URL
error: lanes.d/a.toml:2:1: `max_inflght`: is not a known key
  help: did you mean `max_inflight`?
error: lanes.d/a.toml:3:14: `wake_bytes`: -1 is negative
  help: a whole number from 0 to 1460
error: lanes.d/b.toml:2:1: not valid TOML: unclosed array, expected `]`
  help: KEY = VALUE lines and [TABLE] headers; strings and durations in double quotes
7 errors in the configuration"#
    );
}

#[test]
fn one_error_and_a_warning_beside_it_read_well() {
    assert_eq!(
        said_of("interactive_reserve = 9\n[class.bulk]\nmax_inflght = 4"),
        r#"warning: lanes.d/a.toml:5:23: `interactive_reserve`: a reserve of 9 leaves no slot of max_inflight = 6 for the rest; 5 is used
  help: at most 5
error: lanes.d/a.toml:7:1: `class.bulk.max_inflght`: is not a known key
  help: did you mean `max_inflight`?
1 error in the configuration
"#
    );
}
