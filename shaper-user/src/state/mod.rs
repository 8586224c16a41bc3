//! What outlives the controller: pauses, and how far each lane has been lowered (C6, C7).
//!
//! One small JSON file an instance, `DIR/INSTANCE/lanes.json`, replaced as a whole whenever something changes. Times in it
//! are wall-clock times, the only ones that mean something after a reboot. It is a memory and no configuration: what it
//! says of lanes that are gone, or that no longer adapt, is dropped; and if it cannot be read it is set aside.

pub(crate) mod file;
mod keeper;

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use keeper::StateKeeper;

use crate::policy::{Factor, Lasting, Ns, Pause, PausedBy};

/// The layout of the file. One of another version is set aside.
const VERSION: u32 = 1;

/// The file's content.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    version: u32,
    saved_at: Timestamp,
    lanes: BTreeMap<String, LaneState>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LaneState {
    factor: f64,
    /// When the factor last changed, or the gateway last asked for less.
    calm_since: Timestamp,
    pause: Option<PauseState>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PauseState {
    until: Timestamp,
    by: String,
}

/// One instant on both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instant {
    /// The policy's.
    pub ns: Ns,
    pub wall: Timestamp,
}

impl Instant {
    fn wall_of(self, at: Ns) -> Timestamp {
        let ahead = self.wall.saturating_add(at.since(self.ns));
        let ahead = ahead.unwrap_or(Timestamp::MAX);
        ahead
            .saturating_sub(self.ns.since(at))
            .unwrap_or(Timestamp::MIN)
    }
}

/// From `earlier` to `later`; zero if it is the other way round.
fn between(earlier: Timestamp, later: Timestamp) -> Duration {
    later.duration_since(earlier).try_into().unwrap_or_default()
}

impl State {
    /// What there is to keep, by name of the lane. A lane at rest has nothing.
    pub fn of<'a>(now: Instant, lanes: impl IntoIterator<Item = (&'a str, Lasting)>) -> Self {
        let at_rest = |lasting: &Lasting| lasting.factor == Factor::ONE && lasting.pause.is_none();
        let lanes = lanes
            .into_iter()
            .filter(|(_, lasting)| !at_rest(lasting))
            .map(|(name, lasting)| {
                let state = LaneState {
                    factor: lasting.factor.get(),
                    calm_since: now.wall_of(lasting.calm_since),
                    pause: lasting.pause.map(|pause| PauseState {
                        until: now.wall_of(pause.until),
                        by: pause.by.name().to_owned(),
                    }),
                };
                (name.to_owned(), state)
            });
        Self {
            version: VERSION,
            saved_at: now.wall,
            lanes: lanes.collect(),
        }
    }

    /// What was kept of a lane, seen from `now`.
    pub fn lasting(&self, now: Instant, lane: &str) -> Option<Lasting> {
        let state = self.lanes.get(lane)?;
        let pause = state.pause.as_ref().and_then(|pause| {
            // A wall clock that was set back meanwhile must not make a pause longer than it was.
            let left = between(now.wall, pause.until).min(between(self.saved_at, pause.until));
            let by = PausedBy::ALL.into_iter().find(|by| by.name() == pause.by);
            (!left.is_zero()).then(|| Pause {
                until: now.ns + left,
                by: by.unwrap_or(PausedBy::Operator),
            })
        });
        Some(Lasting {
            factor: Factor::new(state.factor),
            calm_since: now.ns - between(state.calm_since, now.wall),
            pause,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(ns: u64, wall: &str) -> Instant {
        Instant {
            ns: Ns(ns * 1_000_000_000),
            wall: wall.parse().unwrap(),
        }
    }

    fn saved() -> (Instant, State) {
        let now = at(5000, "2026-01-02T03:00:00Z");
        let lasting = Lasting {
            factor: Factor::new(0.7),
            calm_since: now.ns - SECOND * 10,
            pause: Some(Pause {
                until: now.ns + SECOND * 60,
                by: PausedBy::Gateway,
            }),
        };
        (now, State::of(now, [("reasoning", lasting)]))
    }

    /// C6, C7: after a reboot, on another monotonic clock, a pause ends when it would have ended, and calm has lasted as
    /// long as it has.
    #[test]
    fn times_survive_a_reboot() {
        let (_, state) = saved();
        let now = at(100, "2026-01-02T03:00:20Z");
        let lasting = state.lasting(now, "reasoning").unwrap();
        assert_eq!(lasting.factor, Factor::new(0.7));
        assert_eq!(lasting.calm_since, now.ns - SECOND * 30);
        let pause = lasting.pause.unwrap();
        assert_eq!(
            (pause.until, pause.by),
            (now.ns + SECOND * 40, PausedBy::Gateway)
        );
        assert_eq!(state.lasting(now, "another"), None);
    }

    #[test]
    fn a_pause_that_ended_meanwhile_is_over() {
        let (_, state) = saved();
        let now = at(100, "2026-01-02T03:01:00Z");
        assert_eq!(state.lasting(now, "reasoning").unwrap().pause, None);
    }

    #[test]
    fn a_clock_set_back_lengthens_no_pause() {
        let (_, state) = saved();
        let now = at(100, "2020-01-01T00:00:00Z");
        let lasting = state.lasting(now, "reasoning").unwrap();
        assert_eq!(lasting.pause.unwrap().until, now.ns + SECOND * 60);
        assert_eq!(lasting.calm_since, now.ns);
    }

    #[test]
    fn lanes_at_rest_leave_nothing() {
        let (now, _) = saved();
        let rest = Lasting {
            factor: Factor::ONE,
            calm_since: now.ns,
            pause: None,
        };
        assert!(State::of(now, [("reasoning", rest)]).lanes.is_empty());
    }
}
