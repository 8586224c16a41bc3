//! What operators ask of the running controller.

use std::{fmt::Display, time::Duration};

use tracing::{info, warn};

use super::{Controller, Leave, report::timestamp};
use crate::{
    config::{Setting, listed},
    handle::{Command, CommandError},
    kernel,
    pause::InForce,
    policy::{Event, LaneId, Pause, PausedBy},
    systemd::notify,
};

/// What the loop does after a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    GoOn,
    End,
}

impl Controller {
    pub(super) fn command(&mut self, command: Command) -> Then {
        if command.is_abandoned() {
            return Then::GoOn;
        }
        // A reply that nobody takes any more is lost on purpose.
        match command {
            Command::Snapshot(reply) => {
                let _ = reply.send(self.snapshot());
            }
            Command::Levels(reply) => {
                let _ = reply.send(self.levels());
            }
            Command::Waiters(reply) => {
                let _ = reply.send(self.waiters());
            }
            Command::Stats { question, asker } => self.stats(question, asker),
            Command::Pause {
                lane,
                length,
                reply,
            } => {
                let _ = reply.send(self.pause(&lane, length));
            }
            Command::Resume { lane, reply } => {
                let resumed = self.known(&lane).map(|id| self.tell(id, Event::Resume));
                let _ = reply.send(resumed);
            }
            Command::Set {
                lane,
                settings,
                reply,
            } => {
                let _ = reply.send(self.set(&lane, &settings));
            }
            Command::Detach(reply) => {
                self.leave = Leave::Nothing;
                notify::stopping();
                let _ = reply.send(Ok(()));
                return Then::End;
            }
        }
        Then::GoOn
    }

    /// Pauses the lane, and tells the pause that it is in then.
    fn pause(&mut self, lane: &str, length: Duration) -> Result<InForce, CommandError> {
        let id = self.known(lane)?;
        if self
            .lanes
            .get(id)
            .is_some_and(|lane| !lane.config.enforces())
        {
            return Err(CommandError::Refused(format!(
                "lane {lane} only observes and holds nothing, so there is nothing to pause: it can be paused once its \
                 max_inflight is more than 0 and enforce is true"
            )));
        }
        let now = kernel::now();
        let wanted = Pause {
            until: now + length,
            by: PausedBy::Operator,
        };
        self.tell(id, Event::Pause(wanted));
        let present = self.policy.lasting(id).and_then(|lasting| lasting.pause);
        let Pause { until, by } = present.unwrap_or(wanted);
        Ok(InForce {
            until: timestamp(now, until),
            by,
        })
    }

    /// Changes settings of the lane in force, all or none, and tells what is worth a warning. What was read from its file
    /// stays, to be compared with the next reading.
    fn set(&mut self, lane: &str, settings: &[Setting]) -> Result<Vec<String>, CommandError> {
        let refused = |error: &dyn Display| CommandError::Refused(error.to_string());
        let id = self.known(lane)?;
        let Some(active) = self.lanes.get(id) else {
            return Ok(Vec::new());
        };
        let (changed, warnings) = active
            .config
            .with(settings)
            .map_err(|error| refused(&error))?;
        for warning in &warnings {
            warn!(lane, "{warning}");
        }
        self.set_lane(changed).map_err(|error| refused(&error))?;
        info!(
            lane,
            settings = listed(settings),
            "in force until the lane's file changes or the controller restarts"
        );
        Ok(warnings.iter().map(ToString::to_string).collect())
    }

    fn tell(&mut self, lane: LaneId, event: Event) {
        let now = kernel::now();
        self.stillness.moved();
        self.policy.on_event(now, lane, event, &mut self.actions);
        self.carry_out(now);
    }

    fn known(&self, lane: &str) -> Result<LaneId, CommandError> {
        self.lanes
            .by_name(lane)
            .ok_or_else(|| CommandError::UnknownLane {
                lane: lane.to_owned(),
                known: self.lanes.names().into_iter().map(str::to_owned).collect(),
            })
    }
}
