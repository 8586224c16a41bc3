//! Complete renderings of what is wrong.

use crate::{parse, said_of};

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
  help: say "5s" for seconds; a duration with its unit (ms, s, m, h) from "1s" to "1m"
error: lanes.d/a.toml:1:1: `max_inflight`: is missing
  help: add `max_inflight`: a whole number from 0 to 2097151
error: lanes.d/a.toml:1:56: `endpoints`: has no port
  help: add the port, such as :443, or write an http:// or https:// URL
error: lanes.d/a.toml:2:1: `max_inflght`: is not a known key
  help: did you mean `max_inflight`?
error: lanes.d/a.toml:3:14: `wake_bytes`: -1 is negative
  help: a whole number from 0 to 1460
error: lanes.d/b.toml:2:1: not valid TOML: missing comma between array elements, expected `,`
  help: KEY = VALUE lines and [TABLE] headers; strings and durations in double quotes
7 errors in the configuration"#
    );
}

#[test]
fn a_missing_bracket_does_not_make_an_error_of_every_line() {
    let text = "endpoints = [\"10.1.2.3:80\"\nmax_inflight = 1\nmax_queue = 2\nudp = \"block\"\naging = \"1s\"\n";
    let errors = parse(&[("lanes.d/a.toml", text)]).unwrap_err();
    assert!(
        errors
            .to_string()
            .starts_with("error: lanes.d/a.toml:2:1: not valid TOML"),
        "{errors}"
    );
    assert!(errors.error_count() <= 3, "{errors}");
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
