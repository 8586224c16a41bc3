//! What operators ask of the running controller.

use super::Controller;
use crate::{
    handle::{Command, CommandError},
    kernel,
    policy::{Event, LaneId},
};

impl Controller {
    pub(super) fn command(&mut self, command: Command) {
        if command.is_abandoned() {
            return;
        }
        // A reply that nobody takes any more is lost on purpose.
        match command {
            Command::Snapshot(reply) => {
                self.count_kernel();
                let _ = reply.send(self.snapshot());
            }
            Command::Waiters(reply) => {
                let _ = reply.send(self.waiters());
            }
            Command::Pause {
                lane,
                length,
                reply,
            } => {
                let until = kernel::now() + length;
                let _ = reply.send(self.tell(&lane, Event::Pause { until }));
            }
            Command::Resume { lane, reply } => {
                let _ = reply.send(self.tell(&lane, Event::Resume));
            }
            Command::Set {
                lane,
                setting,
                reply,
            } => {
                let _ = reply.send(self.known(&lane).and_then(|_| {
                    Err(CommandError::Refused(format!(
                        "{} cannot be changed while the controller runs: edit lanes.d/{lane}.toml and restart it",
                        setting.key
                    )))
                }));
            }
        }
    }

    fn tell(&mut self, lane: &str, event: Event) -> Result<(), CommandError> {
        let id = self.known(lane)?;
        let now = kernel::now();
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
