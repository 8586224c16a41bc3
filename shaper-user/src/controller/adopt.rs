//! Taking over from an earlier controller: its programs are attached, connections are held and in flight, and more come
//! every moment.
//!
//! The maps say all there is to know. What the policy cannot know from them (places kept for clients that are about to
//! come back, starts of the last minute) is forgotten.

use std::{thread::sleep, time::Duration};

use shaper_common::Gate;
use tracing::info;

use super::{Controller, StartError};
use crate::{
    config::LaneConfig,
    kernel,
    policy::{Found, LaneId, Ns},
};

/// What a run of the kernel's programs certainly takes less than: they change what belongs together within microseconds.
pub(super) const MOMENT: Duration = Duration::from_millis(10);

impl Controller {
    /// Sets the lanes up with what there is of them: in the maps, and in the state directory.
    ///
    /// # Errors
    /// [`StartError::Lane`]: there are too many.
    pub(super) fn adopt(&mut self, lanes: &[LaneConfig]) -> Result<(), StartError> {
        // News to another controller. What happens from here on is told again, and what is in the maps already does no harm.
        self.events.discard();
        self.accounts.adopt(&self.tables);
        self.mend_what_was_interrupted();
        let mut ids = Vec::new();
        for lane in lanes {
            let id = self.lanes.set(lane.clone(), &self.tables, &self.metrics)?;
            ids.push((id, lane));
        }
        self.lanes.retire_the_rest(&self.tables);

        let now = kernel::now();
        let views: Vec<_> = self.tables.views().collect();
        let mut survey = self.survey(now);
        let remembered = self.remembered();
        for (id, lane) in ids {
            let found = Found {
                lasting: remembered.get(&id).copied(),
                picture: survey.pictures.remove(&id).unwrap_or_default(),
            };
            let (name, rules) = (&lane.name, lane.rules.clone());
            self.policy
                .adopt_lane(now, id, name, rules, found, &mut self.actions);
            self.accounts.recap(id, &self.policy, &self.tables);
        }
        // Everything is new to this policy.
        let _ = self.policy.drain_corrected();
        self.carry_out(now);
        self.go_on(now, &views);
        self.bury_lanes(now);
        Ok(())
    }

    /// Connections whose gate was opened for them, and who may not have heard of it.
    fn go_on(&mut self, now: Ns, views: &[kernel::ConnView]) {
        let (mut waiting, mut in_flight) = (0, 0);
        for view in views {
            if view.gate().waits() {
                waiting += 1;
                self.enter_namespace(view.id);
            } else if view.gate().holds_slot() {
                in_flight += 1;
            }
            let opened = matches!(view.gate(), Gate::Open | Gate::Released | Gate::HeldRequest);
            if opened && !view.is_moving() {
                self.nudges
                    .opened(now, view.id, &self.tables, &mut self.namespaces);
            }
        }
        if !views.is_empty() {
            info!(
                connections = views.len(),
                in_flight, waiting, "took over from an earlier controller"
            );
        }
    }

    /// An earlier controller may have been killed between the change of a gate and that of the counts. Nobody but the
    /// kernel changes either now, so a difference that lasts is such a one.
    fn mend_what_was_interrupted(&mut self) {
        for _ in 0..2 {
            let name = |id: LaneId| id.0.to_string();
            self.drift.mend(&self.tables, name);
            sleep(MOMENT);
        }
    }
}
