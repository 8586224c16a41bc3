//! `shaper check`: what it prints of directories as they are found.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use shaper_user::cli::{
    check::{self, CheckArgs, Verdict},
    config::ConfigArgs,
};

/// What `shaper check --offline --config DIR` prints on stdout and stderr, `DIR` for the directory, and its verdict.
fn checked(dir: &Path) -> (String, String, Verdict) {
    checked_with(&CheckArgs {
        config: ConfigArgs {
            config: Some(dir.to_owned()),
        },
        strict: false,
        offline: true,
    })
}

/// The same with other options.
fn checked_with(args: &CheckArgs) -> (String, String, Verdict) {
    let dir = args
        .config
        .config
        .as_deref()
        .and_then(Path::to_str)
        .unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let verdict = check::run(args, &mut out, &mut err).unwrap();
    let text = |bytes| {
        let text = String::from_utf8(bytes).unwrap();
        // Where systemd runs the host.
        let text = text
            .replace("shaper.slice/shaper-", "shaper/")
            .replace(".slice", "");
        text.replace(dir, "DIR")
    };
    (text(out), text(err), verdict)
}

fn write(dir: &Path, path: &str, text: impl AsRef<[u8]>) {
    let path = dir.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

#[test]
fn a_configuration_is_explained_lane_by_lane() {
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        "shaper.toml",
        "[classes.bulk]\ncgroups = [\"shaper/bulk\", \"machine/docker-*.scope\"]",
    );
    write(
        dir.path(),
        "lanes.d/reasoning.toml",
        r#"
endpoints     = ["https://me:sk-secret@Gateway.internal/v1", "10.1.0.0/16:443", "[fd00::/8]:443"]
max_inflight  = 6
max_queue     = 64
queue_timeout = "300s"
interactive_reserve = 1
[class.bulk]
max_inflight  = 4
queue_timeout = "600s"
[account]
max_inflight  = 3
overrides     = { acme = 20 }
[pace]
mode = "even"
per_minute = 15
min_interval = "250ms"
safety_margin = 0.1
window_slack = "1500ms"
[adaptive]
"#,
    );
    write(
        dir.path(),
        "lanes.d/embed.toml",
        "endpoints = [\"127.0.0.1:4000\"]\nmax_inflight = 0\nudp = \"allow\"",
    );
    write(
        dir.path(),
        "lanes.d/trial.toml",
        "endpoints = [\"127.0.0.1:4001\"]\nmax_inflight = 2\nenforce = false\nmax_queue = 9\nqueue_timeout = \"1m\"\ninteractive_reserve = 1",
    );
    // Left alone: an editor's lock and backup files, and a lane put aside.
    write(dir.path(), "lanes.d/.#embed.toml", "x");
    write(dir.path(), "lanes.d/embed.toml~", "x");
    write(dir.path(), "lanes.d/old.toml.off", "x");

    let (out, err, verdict) = checked(dir.path());
    assert_eq!(verdict, Verdict::Usable);
    assert_eq!(
        err,
        "warning: DIR/lanes.d/reasoning.toml:2:18: `endpoints`: gateway.internal:443 was written with credentials or a query, which are not used
  help: remove them from the file: shaper never needs them
"
    );
    assert_eq!(
        out,
        "DIR: 3 lanes, 1 enforced, 1 warning
  listen      http://127.0.0.1:9797
  governs     processes in the class cgroups
  interactive shaper/interactive
  default     shaper/default
  bulk        machine/docker-*.scope, shaper/bulk
  on loss     every gate opens 5s after the controller's last sign of life
  changes     by HTTP not at all: there is no token_file
  history     kept for 90d00h, for `shaper stats`

lane embed: observes only, holds nothing
  endpoints   127.0.0.1:4000
  udp         passes
  slots       come back after 2s idle, 15s after an abort; up to 128 bytes pass a held request

lane reasoning: 6 in flight, 1 of them for interactive only
  endpoints   10.1.0.0/16:443, [fd00::/8]:443, gateway.internal:443
  udp         blocked
  slots       come back after 2s idle, 15s after an abort; up to 128 bytes pass a held request
  queue       64 waiters, then connects fail with ECONNREFUSED
  wait        at most 5m (interactive), 5m (default), 10m (bulk)
  holds       connects for 4s, then their requests
  order       by class, then arrival; one class up per 1m waited; place kept 10s for a reconnect
  caps        bulk 4, each account 3, account acme 20
  pace        evenly spread, 15 per minute, at least 250ms apart, 0.100 of each rate kept free, windows 1s 500ms longer
  adapts      limit and rates times 0.7 when the gateway asks for less, down to 0.2; plus 0.1 per 5m of calm
  pauses      for the gateway's Retry-After, at most 1h

lane trial: observes only, holds nothing; shows what would wait with 2 in flight, 1 of them for interactive only
  endpoints   127.0.0.1:4001
  udp         passes, for the lane only observes
  slots       come back after 2s idle, 15s after an abort; up to 128 bytes pass a held request
  queue       9 waiters, then connects fail with ECONNREFUSED
  wait        at most 1m
  holds       connects for 4s, then their requests
  order       by class, then arrival; one class up per 1m waited; place kept 10s for a reconnect
  pauses      for the gateway's Retry-After, at most 1h
"
    );
}

#[test]
fn a_configuration_with_errors_fails() {
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        "lanes.d/a.toml",
        "endpoints = [\"a.test:1\"]\nmax_inflight = 1",
    );
    let (out, err, verdict) = checked(dir.path());
    assert_eq!(verdict, Verdict::Broken);
    assert_eq!(out, "");
    assert_eq!(
        err,
        "error: DIR/lanes.d/a.toml:2:16: `max_queue`: is missing, and max_inflight = 1 needs it
  help: add `max_queue`: a whole number from 0 to 65536
error: DIR/lanes.d/a.toml:2:16: `queue_timeout`: is missing, and max_inflight = 1 needs it
  help: add `queue_timeout`: a duration with its unit (ms, s, m, h) from \"1ms\" to \"1day\"
2 errors in the configuration
"
    );
}

#[test]
fn what_cannot_be_read_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let (_, err, verdict) = checked(&dir.path().join("absent"));
    assert!(
        verdict == Verdict::Broken
            && err.starts_with(
                "error: DIR: is not a configuration directory\n  help: a directory with"
            ),
        "{err}"
    );

    let (_, err, verdict) = checked(dir.path());
    assert!(
        verdict == Verdict::Broken
            && err.contains("error: DIR/lanes.d: cannot be listed: No such file"),
        "{err}"
    );

    write(dir.path(), "lanes.d/binary.toml", [0xff, 0xfe]);
    write(dir.path(), "lanes.d/large.toml", vec![b'#'; (1 << 20) + 1]);
    fs::create_dir(dir.path().join("lanes.d/dir.toml")).unwrap();
    std::os::unix::fs::symlink("nowhere", dir.path().join("shaper.toml")).unwrap();
    let (_, err, verdict) = checked(dir.path());
    assert_eq!(verdict, Verdict::Broken);
    for part in [
        "error: DIR/lanes.d/binary.toml: is not UTF-8",
        "error: DIR/lanes.d/large.toml: has 1048577 bytes",
        "error: DIR/lanes.d/dir.toml: is not a regular file",
        "error: DIR/shaper.toml: cannot be read: No such file",
        "4 errors in the configuration",
    ] {
        assert!(err.contains(part), "{err}\nlacks {part}");
    }
}

/// A script that wants no doubts fails on warnings, and only then.
#[test]
fn warnings_fail_where_none_may_be() {
    let dir = tempfile::tempdir().unwrap();
    let lane = |queue: u32| {
        let text = format!(
            "endpoints = [\"10.0.0.1:1\"]\nmax_inflight = 4\nmax_queue = {queue}\nqueue_timeout = \"1m\""
        );
        write(dir.path(), "lanes.d/a.toml", text);
    };
    let strictly = CheckArgs {
        config: ConfigArgs {
            config: Some(dir.path().to_owned()),
        },
        strict: true,
        offline: true,
    };
    lane(2);
    assert_eq!(checked(dir.path()).2, Verdict::Usable);
    let (out, err, verdict) = checked_with(&strictly);
    assert_eq!(verdict, Verdict::Doubtful);
    assert!(out.contains("lane a: 4 in flight"), "{out}");
    assert!(err.contains("2 is less than max_inflight = 4"), "{err}");
    lane(8);
    assert_eq!(checked_with(&strictly).2, Verdict::Usable);
}

/// E9: a token that would make the next start fail is an error here already.
#[test]
fn a_token_is_looked_at_unless_offline() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    write(dir.path(), "shaper.toml", format!("token_file = {token:?}"));
    write(
        dir.path(),
        "lanes.d/a.toml",
        "endpoints = [\"10.1.2.3:8000\"]\nmax_inflight = 0",
    );
    let args = |offline| CheckArgs {
        config: ConfigArgs {
            config: Some(dir.path().to_owned()),
        },
        strict: false,
        offline,
    };
    let (out, _, verdict) = checked_with(&args(true));
    assert_eq!(verdict, Verdict::Usable);
    assert!(
        out.contains("changes     by HTTP with the token in DIR/token"),
        "{out}"
    );
    for (text, mode, word) in [
        (None, 0, "No such file"),
        (Some("0123456789abcdef"), 0o644, "chmod o="),
        (Some("short"), 0o600, "openssl rand"),
    ] {
        if let Some(text) = text {
            fs::write(&token, text).unwrap();
            fs::set_permissions(&token, fs::Permissions::from_mode(mode)).unwrap();
        }
        let (_, err, verdict) = checked_with(&args(false));
        assert_eq!(verdict, Verdict::Broken, "{err}");
        assert!(err.starts_with("error: ") && err.contains(word), "{err}");
    }
    fs::write(&token, "0123456789abcdef").unwrap();
    assert_eq!(checked_with(&args(false)).2, Verdict::Usable);
}

/// No lane at all is a configuration that governs nothing (E10).
#[test]
fn an_empty_lane_directory_is_a_configuration() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("lanes.d")).unwrap();
    let (out, err, verdict) = checked(dir.path());
    assert!(verdict == Verdict::Usable && err.is_empty(), "{err}");
    assert!(
        out.starts_with("DIR: 0 lanes, 0 enforced, 0 warnings\n"),
        "{out}"
    );
}
