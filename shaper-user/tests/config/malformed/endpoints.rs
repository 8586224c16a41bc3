//! Malformed endpoints, and endpoints in two places.

use super::{Case, assert_rejected};
use crate::parse;

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
        ("[\"0.0.0.0:443\"]", &["127.0.0.1"]),
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
