//! The log: human-readable lines on standard error, filtered by `SHAPER_LOG`.

use std::{
    env::{self, VarError},
    io::{self, IsTerminal},
};

use anyhow::{Context, bail};
use tracing_subscriber::EnvFilter;

const VARIABLE: &str = "SHAPER_LOG";
/// What is logged where nothing else is asked for.
const USUAL: &str = "info";

/// Starts logging. `SHAPER_LOG` takes a level such as `debug`, or levels of parts such as `shaper_user::controller=debug`,
/// with `info` for the rest.
///
/// # Errors
/// When it is no such thing.
pub fn init() -> anyhow::Result<()> {
    let asked = match env::var(VARIABLE) {
        Ok(text) => text,
        Err(VarError::NotPresent) => String::new(),
        Err(VarError::NotUnicode(_)) => bail!("{VARIABLE} is no text"),
    };
    // A second call (in a test) keeps the first.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter(&asked)?)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none())
        .with_target(false)
        .try_init();
    Ok(())
}

fn filter(asked: &str) -> anyhow::Result<EnvFilter> {
    const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
    let help = || {
        let levels = LEVELS.join(", ");
        format!(
            "{VARIABLE}={asked:?} cannot be used\n  help: a level ({levels}), or levels of parts, as in shaper_user::controller=debug"
        )
    };
    // A word alone would be taken for a part of which all is logged, and of the rest nothing, errors included.
    let is_level = |word: &str| LEVELS.iter().any(|level| level.eq_ignore_ascii_case(word));
    let mut directives = vec![USUAL];
    for word in asked.split(',').map(str::trim) {
        if !word.is_empty() && !word.contains('=') && !is_level(word) {
            bail!("{}\n  {word:?} is no level", help());
        }
        directives.push(word);
    }
    EnvFilter::try_new(directives.join(",")).with_context(help)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// E9: a word that is no level does not silence the log.
    #[test]
    fn a_filter_that_means_nothing_is_an_error_that_says_what_would() {
        for (asked, meant) in [
            ("", "info"),
            ("debug", "debug"),
            ("WARN", "warn"),
            ("off", "off"),
            (
                "shaper_user::controller=debug",
                "shaper_user::controller=debug,info",
            ),
            (
                "warn, shaper_user::controller=trace",
                "shaper_user::controller=trace,warn",
            ),
        ] {
            assert_eq!(filter(asked).unwrap().to_string(), meant, "{asked}");
        }
        for asked in [
            "warning",
            "inof",
            "debug,verbose",
            "shaper_user=verbose",
            "6",
        ] {
            let error = format!("{:#}", filter(asked).unwrap_err());
            assert!(
                error.contains(asked) && error.contains("error, warn, info"),
                "{error}"
            );
        }
    }
}
