//! Malformed `shaper.toml` files.

use super::{Case, assert_rejected};

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
            "token_file = \"token\"",
            &[
                ":1:14: `token_file`: does not begin with a slash",
                "\"/etc/shaper/token\"",
            ],
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
                "from \"1s\" to \"1m\"",
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
