//! What outlives this controller, between the policy and the state directory.

use jiff::Timestamp;
use tracing::info;

use super::Controller;
use crate::{
    kernel,
    policy::{Event, LaneId},
    state::{Instant, State},
};

impl Controller {
    /// Takes over what an earlier controller left. Before the programs are attached: a pause holds from the first connect on.
    pub(super) fn remember(&mut self) {
        let Some(state) = self.state.found() else {
            return;
        };
        let now = instant();
        let lanes = self.lanes.iter();
        let remembered: Vec<(LaneId, String, _)> = lanes
            .filter_map(|(id, lane)| {
                let name = &lane.config.name;
                Some((id, name.clone(), state.lasting(now, name)?))
            })
            .collect();
        for (id, lane, lasting) in remembered {
            info!(
                lane,
                factor = lasting.factor.get(),
                paused = lasting.pause.is_some(),
                "goes on where an earlier controller was"
            );
            self.policy
                .on_event(now.ns, id, Event::Restore(lasting), &mut self.actions);
        }
        self.carry_out(now.ns);
    }

    /// Has kept what must outlive this controller, if it has changed.
    pub(super) fn keep_lasting(&mut self) {
        if !self.policy.take_lasting_changed() {
            return;
        }
        let lanes = self.lanes.iter().filter_map(|(id, lane)| {
            let lasting = self.policy.lasting(id)?;
            Some((lane.config.name.as_str(), lasting))
        });
        self.state.keep(State::of(instant(), lanes));
    }
}

fn instant() -> Instant {
    Instant {
        ns: kernel::now(),
        wall: Timestamp::now(),
    }
}
