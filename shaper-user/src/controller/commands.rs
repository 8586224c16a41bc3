//! What operators ask of the running controller.

use std::{fmt::Display, time::Duration};

use tracing::{info, warn};

use super::{Controller, Leave};
use crate::{
    handle::{Command, CommandError, Setting},
    kernel,
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
                let _ = reply.send(self.tell(&lane, Event::Resume));
            }
            Command::Set {
                lane,
                setting,
                reply,
            } => {
                let _ = reply.send(self.set(&lane, &setting));
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

    fn pause(&mut self, lane: &str, length: Duration) -> Result<(), CommandError> {
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
        let until = kernel::now() + length;
        let by = PausedBy::Operator;
        self.tell(lane, Event::Pause(Pause { until, by }))
    }

    /// Changes one setting of the lane in force; what was read from its file stays, to be compared with the next reading.
    fn set(&mut self, lane: &str, setting: &Setting) -> Result<(), CommandError> {
        let refused = |error: &dyn Display| CommandError::Refused(error.to_string());
        let id = self.known(lane)?;
        let Some(active) = self.lanes.get(id) else {
            return Ok(());
        };
        let (changed, warnings) = active
            .config
            .with(&setting.key, &setting.value)
            .map_err(|error| refused(&error))?;
        for warning in &warnings {
            warn!("{warning}");
        }
        self.set_lane(changed).map_err(|error| refused(&error))?;
        info!(
            lane,
            key = setting.key,
            value = setting.value,
            "in force until the lane's file changes or the controller restarts"
        );
        Ok(())
    }

    fn tell(&mut self, lane: &str, event: Event) -> Result<(), CommandError> {
        let id = self.known(lane)?;
        let now = kernel::now();
        self.stillness.moved();
        self.policy.on_event(now, id, event, &mut self.actions);
        self.carry_out(now);
        Ok(())
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
