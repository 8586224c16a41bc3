//! A14: an identical configuration is one that changes nothing.

use crate::{enforcing, parse};

#[test]
fn spelling_order_and_comments_do_not_make_a_configuration_different() {
    let one = parse(&[
        ("lanes.d/a.toml", &enforcing("")),
        (
            "lanes.d/b.toml",
            "endpoints = [\"https://B.test/v1\", \"c.test:1\"]\nmax_inflight = 0",
        ),
    ])
    .unwrap();
    let other = parse(&[
        ("shaper.toml", "# all defaults\nlisten = \"127.0.0.1:9797\""),
        (
            "lanes.d/b.toml",
            "max_inflight = 0\nendpoints = [\"c.test:1\", \"b.test:443\"]",
        ),
        (
            "lanes.d/a.toml",
            &format!(
                "# again\n{}",
                enforcing("aging = \"1m\"\nconnect_hold = \"4000ms\"")
            ),
        ),
    ])
    .unwrap();
    assert_eq!(one, other);
}

/// Warnings carry line numbers: a comment above what they warn of moves them and changes nothing else.
#[test]
fn warnings_do_not_make_a_configuration_different() {
    let text = enforcing("interactive_reserve = 6");
    let one = parse(&[("lanes.d/a.toml", &text)]).unwrap();
    let other = parse(&[("lanes.d/a.toml", &format!("# moved\n{text}"))]).unwrap();
    assert_ne!(one.warnings, other.warnings);
    assert_eq!(one, other);
}

#[test]
fn every_changed_value_makes_a_configuration_different() {
    let base = parse(&[("lanes.d/a.toml", &enforcing(""))]).unwrap();
    for more in [
        "wake_bytes = 129",
        "on_full = \"timeout\"",
        "udp = \"allow\"",
        "[class.bulk]\nmax_inflight = 5",
    ] {
        assert_ne!(
            parse(&[("lanes.d/a.toml", &enforcing(more))]).unwrap(),
            base,
            "{more}"
        );
    }
    assert_ne!(
        parse(&[("lanes.d/b.toml", &enforcing(""))]).unwrap(),
        base,
        "another name"
    );
    let settings = ("shaper.toml", "scope = \"host\"");
    assert_ne!(
        parse(&[("lanes.d/a.toml", &enforcing("")), settings]).unwrap(),
        base,
        "another scope"
    );
}
