//! The log: human-readable lines on standard error, filtered by `SHAPER_LOG`.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

/// Starts logging. `SHAPER_LOG` takes a filter such as `debug` or `shaper_user::controller=debug`; without it, `info`.
pub fn init() {
    let filter = EnvFilter::try_from_env("SHAPER_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    // A second call (in a test) keeps the first.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none())
        .with_target(false)
        .try_init();
}
