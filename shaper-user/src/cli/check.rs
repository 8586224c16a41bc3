//! `shaper check`: validates a configuration and says what it means.

mod names;

use std::{
    fmt::{self, Display},
    io::Write,
    process::ExitCode,
    time::Duration,
};

use clap::Args;
use shaper_common::{CLASS_COUNT, Class, OnLoss};

use super::{
    config::ConfigArgs,
    print::{self, unless_gone},
};
use crate::{
    config::{Config, LaneConfig, Scope, Udp, human},
    format::{self, counted},
    policy::{Adaptive, ConnectHold, Pace, PaceMode},
    serve::Token,
};

/// Validate a configuration and explain it in words
///
/// Prints what the lanes and classes mean, and on standard error what is wrong or may not do what its author meant, with
/// file, line, key and remedy. Exits with 1 if it has errors; with --strict, if it has warnings, too.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shaper check                                          # what the controller would read
  shaper check --strict --offline --config ./config     # in a pipeline, before it goes to /etc/shaper")]
pub struct CheckArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    /// Exit with 1 if there are warnings
    #[arg(long)]
    pub strict: bool,
    /// Look at the configuration alone: no host name is looked up, and no token read
    #[arg(long)]
    pub offline: bool,
}

/// Whether a configuration can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It can, though there may be warnings.
    Usable,
    /// It can, but there are warnings where none may be.
    Doubtful,
    /// It has errors.
    Broken,
}

impl From<Verdict> for ExitCode {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Usable => Self::SUCCESS,
            Verdict::Doubtful | Verdict::Broken => Self::FAILURE,
        }
    }
}

/// Prints a configuration as shaper understands it on `out`, and what is wrong with it on `err`.
///
/// # Errors
/// Those of writing, unless the reader has gone.
pub fn run(
    args: &CheckArgs,
    out: &mut impl Write,
    err: &mut impl Write,
) -> anyhow::Result<Verdict> {
    match args.config.load() {
        Ok(mut config) => {
            if !args.offline {
                config.warnings.extend(names::warnings(&config.lanes)?);
            }
            for warning in &config.warnings {
                unless_gone(writeln!(err, "{warning}"))?;
            }
            print::done(write!(out, "{}", Explained(&config)))?;
            let token_file = config.settings.token_file.as_deref();
            if let Some(path) = token_file.filter(|_| !args.offline)
                && let Err(error) = Token::read(path)
            {
                if error.is_denied() {
                    unless_gone(writeln!(
                        err,
                        "note: {error}; the controller may have it, see whether it does as root"
                    ))?;
                } else {
                    unless_gone(writeln!(err, "error: {error}"))?;
                    return Ok(Verdict::Broken);
                }
            }
            if args.strict && !config.warnings.is_empty() {
                return Ok(Verdict::Doubtful);
            }
            Ok(Verdict::Usable)
        }
        Err(errors) => {
            unless_gone(writeln!(err, "{errors}"))?;
            Ok(Verdict::Broken)
        }
    }
}

/// A configuration in words: the settings, then one paragraph a lane.
#[derive(Debug)]
pub struct Explained<'a>(pub &'a Config);

impl Display for Explained<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Config {
            origin,
            settings,
            lanes,
            warnings,
        } = self.0;
        let enforced = lanes.iter().filter(|lane| lane.enforces()).count();
        writeln!(
            f,
            "{origin}: {}, {enforced} enforced, {}",
            counted(lanes.len(), "lane"),
            counted(warnings.len(), "warning")
        )?;
        row(f, "listen", format_args!("http://{}", settings.listen))?;
        let governed = match settings.scope {
            Scope::Classes => "processes in the class cgroups",
            Scope::Host => "every process of the host, as default unless in a class cgroup",
        };
        row(f, "governs", governed)?;
        for class in Class::ALL {
            row(f, class, settings.classes[class.index()].cgroups.join(", "))?;
        }
        let loss = match settings.on_controller_loss {
            OnLoss::Open => "every gate opens",
            OnLoss::Closed => "what is held stays held",
        };
        row(
            f,
            "on loss",
            format_args!(
                "{loss} {} after the controller's last sign of life",
                human(settings.fail_after)
            ),
        )?;
        let history = format::duration(settings.history);
        let changes = match &settings.token_file {
            Some(path) => format!("with the token in {}", path.display()),
            None => "not at all: there is no token_file".to_owned(),
        };
        row(f, "changes", format_args!("by HTTP {changes}"))?;
        row(
            f,
            "history",
            format_args!("kept for {history}, for `shaper stats`"),
        )?;
        for lane in lanes {
            writeln!(f)?;
            explain_lane(f, lane)?;
        }
        Ok(())
    }
}

fn explain_lane(f: &mut fmt::Formatter<'_>, lane: &LaneConfig) -> fmt::Result {
    let rules = &lane.rules;
    let has_limit = rules.max_inflight > 0;
    write!(f, "lane {}: ", lane.name)?;
    if !lane.enforces() {
        f.write_str("observes only, holds nothing")?;
        if has_limit {
            f.write_str("; shows what would wait with ")?;
        }
    }
    if has_limit {
        write!(f, "{} in flight", rules.max_inflight)?;
        if rules.interactive_reserve > 0 {
            write!(
                f,
                ", {} of them for interactive only",
                rules.interactive_reserve
            )?;
        }
    }
    writeln!(f)?;
    row(f, "endpoints", joined(&lane.endpoints))?;
    row(
        f,
        "udp",
        match lane.udp {
            Udp::Block if lane.enforces() => "blocked",
            Udp::Block => "passes, for the lane only observes",
            Udp::Allow => "passes",
        },
    )?;
    row(
        f,
        "slots",
        format_args!(
            "come back after {} idle, {} after an abort; up to {} bytes pass a held request",
            human(rules.idle_release),
            human(rules.abort_hold),
            rules.wake_bytes
        ),
    )?;
    if !has_limit {
        return Ok(());
    }
    row(
        f,
        "queue",
        format_args!(
            "{} waiters, then connects fail with {}",
            rules.max_queue,
            lane.on_full.errno_name()
        ),
    )?;
    row(
        f,
        "wait",
        format_args!("at most {}", by_class(&rules.queue_timeout)),
    )?;
    let hold = match rules.connect_hold {
        ConnectHold::For(Duration::ZERO) => "requests, never connects".to_owned(),
        ConnectHold::For(time) => format!("connects for {}, then their requests", human(time)),
        ConnectHold::Always => "connects for the whole wait".to_owned(),
    };
    row(f, "holds", hold)?;
    row(
        f,
        "order",
        format_args!(
            "by class, then arrival; one class up per {} waited; place kept {} for a reconnect",
            human(rules.aging),
            human(rules.ticket_grace)
        ),
    )?;
    let caps = caps(lane);
    if !caps.is_empty() {
        row(f, "caps", joined(&caps))?;
    }
    if let Some(pace) = &rules.pace {
        row(f, "pace", joined(&pace_parts(pace)))?;
    }
    if let Some(adaptive) = &rules.adaptive {
        row(f, "adapts", adaptive_words(adaptive))?;
    }
    row(f, "pauses", retry_after_words(rules.retry_after_max))?;
    Ok(())
}

fn caps(lane: &LaneConfig) -> Vec<String> {
    let rules = &lane.rules;
    let classes = Class::ALL.into_iter().filter_map(|class| {
        let cap = rules.class_cap[class.index()]?;
        Some(format!("{class} {cap}"))
    });
    let accounts = rules.account_cap.map(|cap| format!("each account {cap}"));
    let overrides = rules
        .account_overrides
        .iter()
        .map(|(name, cap)| format!("account {name} {cap}"));
    classes.chain(accounts).chain(overrides).collect()
}

fn pace_parts(pace: &Pace) -> Vec<String> {
    let mode = match pace.mode {
        PaceMode::Burst => "bursts within the rate",
        PaceMode::Even => "evenly spread",
    };
    let mut parts = vec![mode.to_owned()];
    parts.extend(pace.per_second.map(|rate| format!("{rate} per second")));
    parts.extend(pace.per_minute.map(|rate| format!("{rate} per minute")));
    if !pace.min_interval.is_zero() {
        parts.push(format!("at least {} apart", human(pace.min_interval)));
    }
    if pace.safety_margin > 0.0 {
        parts.push(format!("{:.3} of each rate kept free", pace.safety_margin));
    }
    if !pace.window_slack.is_zero() {
        parts.push(format!("windows {} longer", human(pace.window_slack)));
    }
    parts
}

fn adaptive_words(adaptive: &Adaptive) -> String {
    format!(
        "limit and rates times {} when the gateway asks for less, down to {}; plus {} per {} of calm",
        adaptive.decrease,
        adaptive.min,
        adaptive.increase,
        human(adaptive.cooldown)
    )
}

fn retry_after_words(longest: Duration) -> String {
    if longest.is_zero() {
        "on command only".to_owned()
    } else {
        format!("for the gateway's Retry-After, at most {}", human(longest))
    }
}

/// One duration if all classes share it.
fn by_class(times: &[Duration; CLASS_COUNT]) -> String {
    if times.iter().all(|time| *time == times[0]) {
        return human(times[0]).to_string();
    }
    joined(&Class::ALL.map(|class| format!("{} ({class})", human(times[class.index()]))))
}

fn row(f: &mut fmt::Formatter<'_>, name: impl Display, value: impl Display) -> fmt::Result {
    // Padded as a string: not every `Display` honours a width.
    writeln!(f, "  {:<12}{value}", name.to_string())
}

fn joined(parts: &[impl Display]) -> String {
    parts
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(", ")
}
