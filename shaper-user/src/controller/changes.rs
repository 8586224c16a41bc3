//! Telling the log what changes how much a lane may use: pauses, adaptation, and a gateway that is degraded.

use std::time::Duration;

use jiff::Timestamp;
use tracing::{info, warn};

use super::{Controller, quota::Quota, reason, report::timestamp};
use crate::{
    config::{LaneConfig, keys::lane as key},
    format,
    policy::{Adapted, Cause, Change, Changed, Diagnosis, LaneId, Ns, Pause, PausedBy},
    words,
};

/// A pause that is made longer by less than this is no news: every answer of a gateway that asks for an hour does that.
const NEWS: Duration = Duration::from_secs(1);

/// More than passes between a pause's beginning and its line, and less than is shown of its length.
const A_MOMENT: Duration = Duration::from_millis(50);

/// What the log has been told of a lane.
#[derive(Debug, Default)]
pub struct Told {
    pub lines: Quota,
    pause: Option<Pause>,
    degraded_since: Option<Ns>,
}

impl Told {
    /// Whether this pause is to be told.
    fn is_news(&self, pause: Pause) -> bool {
        self.pause
            .is_none_or(|told| told.by != pause.by || pause.until >= told.until + NEWS)
    }
}

impl Controller {
    /// Tells of pauses and steps of adaptation since the last time.
    pub(super) fn tell_changes(&mut self, now: Ns) {
        let changed: Vec<_> = self.policy.drain_changed().collect();
        for Changed { lane, change } in changed {
            self.tell_change(now, lane, change);
        }
    }

    fn tell_change(&mut self, now: Ns, lane: LaneId, change: Change) {
        let Some(active) = self.lanes.get_mut(lane) else {
            return;
        };
        let (config, told) = (&active.config, &mut active.told);
        if let Change::Paused(pause) = change {
            if !told.is_news(pause) {
                return;
            }
            told.pause = Some(pause);
        } else if let Change::Resumed { .. } = change {
            told.pause = None;
        }
        if !told.lines.allows(now) {
            return;
        }
        let lane = &config.name;
        match change {
            Change::Paused(pause) => {
                let said = paused(pause, now, timestamp(now, pause.until), config);
                match pause.by {
                    PausedBy::Gateway => warn!(lane, "{said}"),
                    PausedBy::Operator => info!(lane, "{said}"),
                }
            }
            Change::Resumed { by, early } => info!(lane, "{}", resumed(by, early)),
            Change::Adapted(step) => {
                let share = step.share;
                info!(lane, share, "{}", adapted(step, config));
            }
        }
    }

    /// Tells of gateways that have become degraded, or are no longer. Called every few seconds, which bounds the lines.
    pub(super) fn tell_degraded(&mut self, now: Ns) {
        for (id, active) in self.lanes.iter_mut() {
            let Some(view) = self.policy.view(now, id) else {
                continue;
            };
            // A pause hides what the gateway is like.
            if view.diagnosis == Diagnosis::Paused {
                continue;
            }
            let lane = &active.config.name;
            let since = &mut active.told.degraded_since;
            let diagnosis = view.diagnosis.name();
            match (view.diagnosis == Diagnosis::GatewayDegraded, *since) {
                (true, None) => {
                    *since = Some(now);
                    let why = reason::of(&view).unwrap_or_default();
                    let in_flight: u32 = view.in_flight.iter().sum();
                    let queued: u32 = view.queued.iter().sum();
                    info!(
                        lane,
                        diagnosis, in_flight, queued, "the gateway is degraded: {why}"
                    );
                }
                (false, Some(began)) => {
                    *since = None;
                    let lasted = format::duration(now.since(began));
                    info!(
                        lane,
                        diagnosis,
                        "the gateway does not count as degraded any more, after {lasted}"
                    );
                }
                _ => {}
            }
        }
    }
}

/// A pause has begun, or is longer than was told; `until` is its end by the wall clock.
fn paused(pause: Pause, now: Ns, until: Timestamp, config: &LaneConfig) -> String {
    let by = words::by(pause.by);
    // It began a moment before it is told, and what is shown is rounded down: an hour shall not be 59 minutes.
    let length = format::duration(pause.until.since(now) + A_MOMENT);
    let until = format::moment(until);
    let bound = match pause.by {
        PausedBy::Operator => String::new(),
        PausedBy::Gateway => format!(
            "`{}` = {} in {} bounds what a gateway may ask for; ",
            key::RETRY_AFTER_MAX.path,
            format::duration(config.rules.retry_after_max),
            config.file().display(),
        ),
    };
    format!(
        "paused {by}: nothing starts for {length}, until {until}; {bound}`shaper resume {}` ends it",
        config.name
    )
}

fn resumed(by: PausedBy, early: bool) -> String {
    let by = words::by(by);
    let how = if early {
        "was ended by hand"
    } else {
        "is over"
    };
    format!("the pause {by} {how}; starts are spaced for a while")
}

fn adapted(step: Adapted, config: &LaneConfig) -> String {
    let Adapted {
        cause,
        from,
        to,
        share,
    } = step;
    let why = match cause {
        Cause::Answer { status } => format!("the gateway answered {status}"),
        Cause::FailedConnects => "many connects failed within a short time".to_owned(),
        Cause::Calm => {
            let calm = config.rules.adaptive.map_or(Duration::ZERO, |a| a.cooldown);
            let calm = format::duration(calm);
            format!("it did not ask for less for {calm} (`adaptive.cooldown`)")
        }
    };
    let verb = match cause {
        Cause::Answer { .. } | Cause::FailedConnects => "lowered",
        Cause::Calm => "raised",
    };
    let percent = share * 100.0;
    if from == to {
        format!("rates {verb} to {percent:.0}% of what is configured, the limit stays {to}: {why}")
    } else {
        format!("limit {verb} from {from} to {to}, {percent:.0}% of what is configured: {why}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Files, Origin, TextFile};

    fn lane() -> LaneConfig {
        let text = "endpoints = [\"10.1.2.3:8000\"]\nmax_inflight = 10\nmax_queue = 9\nqueue_timeout = \"1m\"\n\
                    retry_after_max = \"2h\"\n[adaptive]\n";
        let files = Files {
            origin: Origin::Embedded,
            settings: None,
            lanes: vec![TextFile {
                path: "lanes.d/a.toml".into(),
                text: text.to_owned(),
            }],
        };
        Config::parse(&files).unwrap().lanes.remove(0)
    }

    fn at(seconds: u64) -> Ns {
        Ns(seconds * 1_000_000_000)
    }

    /// C6: a pause is told with its length, its end, what bounds it and what ends it.
    #[test]
    fn a_pause_is_told_with_what_bounds_and_what_ends_it() {
        let until = "2026-01-02T04:04:05.678Z".parse().unwrap();
        for (by, expected) in [
            (
                PausedBy::Gateway,
                "paused by its gateway (Retry-After): nothing starts for 1h00m, until 2026-01-02T04:04:05Z; \
                 `retry_after_max` = 2h00m in lanes.d/a.toml bounds what a gateway may ask for; `shaper resume a` ends it",
            ),
            (
                PausedBy::Operator,
                "paused by an operator: nothing starts for 1h00m, until 2026-01-02T04:04:05Z; `shaper resume a` ends it",
            ),
        ] {
            let pause = Pause {
                until: at(3700),
                by,
            };
            let a_moment_later = at(100) + Duration::from_millis(1);
            assert_eq!(paused(pause, a_moment_later, until, &lane()), expected);
        }
    }

    /// C7: a step of adaptation is told with both limits and its cause.
    #[test]
    fn a_step_of_adaptation_is_told_with_both_limits_and_its_cause() {
        for (cause, from, to, share, expected) in [
            (
                Cause::Answer { status: 429 },
                10,
                7,
                0.7,
                "limit lowered from 10 to 7, 70% of what is configured: the gateway answered 429",
            ),
            (
                Cause::FailedConnects,
                1,
                1,
                0.49,
                "rates lowered to 49% of what is configured, the limit stays 1: many connects failed within a short time",
            ),
            (
                Cause::Calm,
                7,
                8,
                0.8,
                "limit raised from 7 to 8, 80% of what is configured: it did not ask for less for 5m00s \
                 (`adaptive.cooldown`)",
            ),
        ] {
            let step = Adapted {
                cause,
                from,
                to,
                share,
            };
            assert_eq!(adapted(step, &lane()), expected);
        }
    }

    /// A gateway that answers every request of an hour's pause with the same hour has one line.
    #[test]
    fn a_pause_that_hardly_grows_is_told_once() {
        let by = PausedBy::Gateway;
        let pause = |until| Pause { until, by };
        let mut told = Told::default();
        assert!(told.is_news(pause(at(60))));
        told.pause = Some(pause(at(60)));
        assert!(!told.is_news(pause(at(60) + Duration::from_millis(900))));
        assert!(told.is_news(pause(at(61))));
        let by = PausedBy::Operator;
        assert!(told.is_news(Pause { until: at(60), by }));
    }
}
