//! Whatever the files hold, the answer is a configuration or a list of errors.

use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use shaper_user::config::{ConfigErrors, EndpointSpec};

use crate::parse;

const LANE: &str = r#"
endpoints     = ["http://10.1.2.3:8000/v1", "10.1.0.0/16:443", "[fd00::/8]:443", "gateway.internal:443"]
max_inflight  = 6
max_queue     = 64
queue_timeout = "300s"
interactive_reserve = 1
connect_hold  = "4s"
on_full       = "refuse"
[class.bulk]
max_inflight  = 4
queue_timeout = "600s"
[account]
overrides     = { acme = 20 }
[pace]
mode = "even"
per_second = 5
min_interval = "250ms"
safety_margin = 0.1
"#;

/// Every error of a parse has a place, a cause and a remedy.
fn assert_well_formed(errors: &ConfigErrors) {
    assert!(errors.error_count() > 0);
    for diagnostic in errors.diagnostics() {
        assert_eq!(diagnostic.to_string().lines().count(), 2, "{diagnostic}");
        assert!(!diagnostic.what.is_empty() && !diagnostic.help.is_empty());
        assert!(diagnostic.at.is_some(), "{diagnostic}");
    }
}

/// One edit of a text: replaces characters from `at` (a share of its length) on.
fn edit(text: &str, at: f64, remove: usize, insert: &str) -> String {
    let count = text.chars().count();
    let at = (count as f64 * at) as usize;
    let head = text.chars().take(at);
    let tail = text.chars().skip(at + remove);
    head.chain(insert.chars()).chain(tail).collect()
}

/// Pieces that mean something to TOML or to an endpoint, and arbitrary ones.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "",
            "\n",
            "\"",
            "'",
            "[",
            "]",
            "{",
            "}",
            "=",
            ".",
            ",",
            "#",
            "-",
            "0",
            "99999999999",
            "\"\"\"",
            "\\u0000",
            "nan",
            "inf",
            "1e999",
            "2026-01-01",
            "[[",
            "]]",
            "/",
            ":",
            "@",
            "%",
            "ü",
            "\u{feff}",
            "class",
            "pace",
        ])
        .prop_map(str::to_owned),
        any::<char>().prop_map(String::from),
        "[a-z_]{1,12} = [\"0-9a-z.:/-]{0,12}\n",
    ]
}

proptest! {
    #[test]
    fn arbitrary_text_is_answered(lane in any::<String>(), settings in any::<String>()) {
        if let Err(errors) = parse(&[("lanes.d/a.toml", &lane), ("shaper.toml", &settings)]) {
            assert_well_formed(&errors);
        }
    }

    #[test]
    fn a_mutated_lane_is_answered(
        edits in prop::collection::vec((0.0..1.0f64, 0..4usize, piece()), 1..4),
    ) {
        let lane = edits.iter().fold(LANE.to_owned(), |text, (at, remove, insert)| edit(&text, *at, *remove, insert));
        match parse(&[("lanes.d/a.toml", &lane)]) {
            Ok(config) => {
                let rules = &config.lanes[0].rules;
                prop_assert!(rules.max_inflight == 0 || rules.interactive_reserve < rules.max_inflight);
                prop_assert!(!config.lanes[0].endpoints.is_empty());
            }
            Err(errors) => assert_well_formed(&errors),
        }
    }

    #[test]
    fn an_arbitrary_endpoint_is_answered(text in any::<String>(), likely in "[a-z0-9.:/@\\[\\]?#%-]{0,24}") {
        for text in [text, likely] {
            // What is accepted prints as what it is: parsing it again changes nothing (E6).
            if let Ok((spec, _)) = EndpointSpec::parse(&text) {
                let again = EndpointSpec::parse(&spec.to_string()).map(|(spec, _)| spec);
                prop_assert_eq!(again, Ok(spec));
            }
        }
    }
}

/// E9: 2,000 different ways to get a lane wrong, each told with its place and remedy.
#[test]
fn two_thousand_malformed_configurations_get_a_clear_error_each() {
    let mut runner = TestRunner::deterministic();
    let edits = prop::collection::vec((0.0..1.0f64, 0..4usize, piece()), 1..4);
    let mut malformed = 0;
    while malformed < 2000 {
        let edits = edits.new_tree(&mut runner).unwrap().current();
        let lane = edits
            .iter()
            .fold(LANE.to_owned(), |text, (at, remove, insert)| {
                edit(&text, *at, *remove, insert)
            });
        if let Err(errors) = parse(&[("lanes.d/a.toml", &lane)]) {
            assert_well_formed(&errors);
            malformed += 1;
        }
    }
}

#[test]
fn the_lane_that_is_mutated_is_right() {
    assert_eq!(parse(&[("lanes.d/a.toml", LANE)]).unwrap().warnings, []);
}
