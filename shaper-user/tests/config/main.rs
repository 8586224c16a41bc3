//! What a configuration means, and what is said of one that means nothing.

mod change;
mod check;
mod malformed;
mod never_panics;
mod reload;
mod schema;
mod values;

use std::path::Path;

use shaper_user::config::{Config, ConfigErrors, Files, Origin, TextFile};

/// Text of configuration files by path.
type Sources<'a> = &'a [(&'a str, &'a str)];

/// Parses files by their paths: `shaper.toml` and `lanes.d/NAME.toml`.
fn parse(sources: Sources<'_>) -> Result<Config, ConfigErrors> {
    let file = |(path, text): &(&str, &str)| TextFile {
        path: path.into(),
        text: (*text).to_owned(),
    };
    let (settings, lanes): (Vec<_>, Vec<_>) = sources
        .iter()
        .map(file)
        .partition(|file| file.path == Path::new("shaper.toml"));
    Config::parse(&Files {
        origin: Origin::Directory("test".into()),
        settings: settings.into_iter().next(),
        lanes,
    })
}

/// A lane file that enforces, with `more` at its end.
fn enforcing(more: &str) -> String {
    format!(
        "endpoints = [\"10.1.2.3:8000\"]\nmax_inflight = 6\nmax_queue = 64\nqueue_timeout = \"300s\"\n{more}"
    )
}

/// The lane of `enforcing(more)`.
fn lane(more: &str) -> shaper_user::config::LaneConfig {
    let mut config = parse(&[("lanes.d/a.toml", &enforcing(more))]).unwrap();
    config.lanes.remove(0)
}

/// What is said of `enforcing(more)`, errors and warnings alike.
fn said_of(more: &str) -> String {
    match parse(&[("lanes.d/a.toml", &enforcing(more))]) {
        Ok(config) => config
            .warnings
            .iter()
            .map(|warning| format!("{warning}\n"))
            .collect(),
        Err(errors) => format!("{errors}\n"),
    }
}
