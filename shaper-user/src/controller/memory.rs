//! What outlives this controller, between the policy and the state directory.

use std::collections::HashMap;

use jiff::Timestamp;
use tracing::info;

use super::Controller;
use crate::{
    kernel,
    policy::{LaneId, Lasting},
    state::{Instant, State},
};

impl Controller {
    /// What an earlier controller left of each lane.
    pub(super) fn remembered(&self) -> HashMap<LaneId, Lasting> {
        let Some(state) = self.state.found() else {
            return HashMap::new();
        };
        let now = instant();
        let lanes = self.lanes.iter().filter_map(|(id, lane)| {
            let name = &lane.config.name;
            let lasting = state.lasting(now, name)?;
            info!(
                lane = name,
                factor = lasting.factor.get(),
                paused = lasting.pause.is_some(),
                "goes on where an earlier controller was"
            );
            Some((id, lasting))
        });
        lanes.collect()
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
