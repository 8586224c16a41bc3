//! Who goes next: pure, with a made-up clock. No I/O, no kernel types.
//!
//! [`Policy`] is a set of lanes. Each lane is a state machine: an [`Event`] in, [`Action`]s out. Whoever drives it
//! - tells the time with every call, never less than before;
//! - carries out the actions in order and reports what failed as further events;
//! - calls [`Policy::tick`] when [`Policy::next_deadline`] has come;
//! - takes what ended from [`Policy::drain_ended`], after having reported what failed, what gateways did wrong from
//!   [`Policy::drain_erred`], and what changed of the lanes from [`Policy::drain_changed`].
//!
//! The rules are in [`LaneRules`]; `queue` keeps the order, `ledger` the slots, `pace` the spacing, `ticket` the places
//! that outlive sockets, and `admit` puts them together. `shadow` is what a lane that observes would have done. What the
//! gateway's behaviour tells comes as [`Sign`]s: `health` draws the conclusions, from `first_byte` (is it slow?),
//! `outcomes` (does it fail?), `burst` and `adapt` (how much is it offered?); `diagnosis` sums up.

mod account;
mod action;
mod adapt;
mod admit;
mod burst;
mod change;
mod diagnosis;
mod event;
mod first_byte;
mod health;
mod hindrance;
mod ids;
mod lane;
mod ledger;
mod observe;
mod outcome;
mod outcomes;
mod pace;
mod queue;
mod recent;
mod reconcile;
mod rules;
mod shadow;
mod signal;
mod tally;
mod ticket;
mod time;
mod view;
mod wait_bins;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    time::Duration,
};

pub use action::{Action, Expiry};
pub use adapt::Factor;
pub use change::{Adapted, Cause, Change, Changed};
pub use diagnosis::{Diagnosis, Trouble};
pub use event::{AdmitFailure, Event, Found, HeldConn, Lasting, OpenConn, Picture, Stage};
pub use first_byte::Slowness;
pub use health::{Pause, PausedBy};
pub use hindrance::{Hindrance, Waiting};
pub use ids::{AccountId, ClientId, ConnHandle, LaneId};
pub use observe::StartProfile;
pub use outcome::{Counters, Ended, Outcome, Refusal};
pub use outcomes::{Failing, Step};
pub use rules::{Adaptive, ConnectHold, LaneRules, Pace, PaceMode};
pub use shadow::{Setbacks, WouldHave};
pub use signal::{AnswerHead, Erred, Fault, GatewayError, Sign};
pub use time::Ns;
pub use view::{AccountView, FirstByteView, LaneView, Level, Limits, WaiterView};
pub use wait_bins::WaitBins;

use account::AccountNames;
use lane::{Lane, Turn};

/// A wait without a break after which a lane counts as saturated.
pub const SATURATED_AFTER: Duration = Duration::from_secs(60);

/// The highest position in line that is told exactly; who is further back is told to be here.
pub const POSITION_MAX: u32 = 1000;

/// All lanes, and who goes next in each.
#[derive(Debug, Default)]
pub struct Policy {
    lanes: BTreeMap<LaneId, Lane>,
    names: AccountNames,
    /// The deadline of each lane that has one.
    deadlines: BTreeSet<(Ns, LaneId)>,
    ended: Vec<Ended>,
    erred: Vec<Erred>,
    changed: Vec<Changed>,
    /// Whether a [`Lasting`] may have changed since it was last asked.
    lasting_changed: bool,
    corrected: Vec<ConnHandle>,
}

impl Policy {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a lane or changes its rules. New rules apply to what starts from now on; slots in use are not revoked.
    pub fn set_lane(
        &mut self,
        now: Ns,
        lane: LaneId,
        name: &str,
        rules: LaneRules,
        actions: &mut Vec<Action>,
    ) {
        if let Entry::Vacant(entry) = self.lanes.entry(lane) {
            entry.insert(Lane::new(name, rules.clone()));
        }
        self.turn(now, lane, actions, |lane, turn| {
            lane.change(name, rules, turn)
        });
    }

    /// Adds a lane that an earlier controller may have governed: what is to outlive that one, and who is in flight or waits
    /// now. The first conclusions are drawn from all of it together, so that nothing is handed out meanwhile that belongs
    /// to somebody, or to nobody for the time of a pause.
    pub fn adopt_lane(
        &mut self,
        now: Ns,
        lane: LaneId,
        name: &str,
        rules: LaneRules,
        found: Found,
        actions: &mut Vec<Action>,
    ) {
        self.lanes
            .entry(lane)
            .or_insert_with(|| Lane::new(name, rules.clone()));
        self.turn(now, lane, actions, |lane, turn| {
            lane.adopt_all(name, rules, found, turn)
        });
    }

    /// Removes a lane and lets its waiters go.
    pub fn remove_lane(&mut self, now: Ns, lane: LaneId, actions: &mut Vec<Action>) {
        let Some(removed) = self.lanes.remove(&lane) else {
            return;
        };
        self.lasting_changed = true;
        if let Some(deadline) = removed.deadline {
            self.deadlines.remove(&(deadline, lane));
        }
        removed.dissolve(&mut Turn {
            now,
            lane,
            names: &self.names,
            actions,
            ended: &mut self.ended,
            erred: &mut self.erred,
            changed: &mut self.changed,
            corrected: &mut self.corrected,
        });
    }

    /// Tells an account's name, for caps by name. Tell it before the account's first event: a waiter that is in line
    /// already is looked at again when something else happens in its lane.
    pub fn name_account(&mut self, account: AccountId, name: &str) {
        self.names.set(account, name.to_owned());
        self.recap(account);
    }

    /// Forgets an account's name, when its cgroup is gone.
    pub fn forget_account(&mut self, account: AccountId) {
        self.names.forget(account);
        self.recap(account);
    }

    fn recap(&mut self, account: AccountId) {
        for lane in self.lanes.values_mut() {
            lane.recap(account, &self.names);
        }
    }

    /// Handles one event. An event for a lane that does not exist is one that was on its way when the lane was removed.
    pub fn on_event(&mut self, now: Ns, lane: LaneId, event: Event, actions: &mut Vec<Action>) {
        self.turn(now, lane, actions, |lane, turn| lane.on_event(event, turn));
    }

    /// Does what has become due.
    pub fn tick(&mut self, now: Ns, actions: &mut Vec<Action>) {
        while let Some(&(deadline, lane)) = self.deadlines.first()
            && deadline <= now
        {
            self.turn(now, lane, actions, Lane::settle);
        }
    }

    /// When [`tick`](Self::tick) has something to do, unless an event comes first.
    pub fn next_deadline(&self) -> Option<Ns> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    /// What ended since the last call. Call it once a turn, after reporting failed admissions: until then, those count
    /// as starts.
    pub fn drain_ended(&mut self) -> std::vec::Drain<'_, Ended> {
        self.ended.drain(..)
    }

    /// What gateways did wrong since the last call.
    pub fn drain_erred(&mut self) -> std::vec::Drain<'_, Erred> {
        self.erred.drain(..)
    }

    /// Pauses and steps of adaptation since the last call, in order.
    pub fn drain_changed(&mut self) -> std::vec::Drain<'_, Changed> {
        self.changed.drain(..)
    }

    /// What of the lane is to outlive the controller.
    pub fn lasting(&self, lane: LaneId) -> Option<Lasting> {
        self.lanes.get(&lane).map(Lane::lasting)
    }

    /// Whether what is to outlive the controller has changed since the last call.
    pub fn take_lasting_changed(&mut self) -> bool {
        std::mem::take(&mut self.lasting_changed)
    }

    /// Connections of which pictures have told something new since the last call: the news of it was lost, or is on its
    /// way.
    pub fn drain_corrected(&mut self) -> std::vec::Drain<'_, ConnHandle> {
        self.corrected.drain(..)
    }

    /// The lanes that exist.
    pub fn lanes(&self) -> impl Iterator<Item = LaneId> {
        self.lanes.keys().copied()
    }

    /// What a lane may use, for the words that the kernel goes by.
    pub fn limits(&self, lane: LaneId) -> Option<Limits> {
        self.lanes.get(&lane).map(Lane::limits)
    }

    /// The most slots that an account may use in a lane; `None`: no cap, or no such lane.
    pub fn account_cap(&self, lane: LaneId, account: AccountId) -> Option<u32> {
        let lane = self.lanes.get(&lane)?;
        self.names.cap(&lane.rules, account)
    }

    /// A lane as the snapshot shows it. Its cost grows with the number of accounts, not of waiters.
    pub fn view(&self, now: Ns, lane: LaneId) -> Option<LaneView> {
        let lane = self.lanes.get(&lane)?;
        Some(lane.view(now, &self.names))
    }

    /// A lane's numbers, at the same cost however many wait.
    pub fn level(&self, now: Ns, lane: LaneId) -> Option<Level> {
        self.lanes.get(&lane).map(|lane| lane.level(now))
    }

    /// A lane's waiters, the next one first. Lazy: take as many as you show.
    pub fn waiters(&self, now: Ns, lane: LaneId) -> impl Iterator<Item = WaiterView> {
        self.lanes
            .get(&lane)
            .into_iter()
            .flat_map(move |lane| lane.waiters(now))
    }

    /// Runs `work` on a lane and notes its new deadline.
    fn turn(
        &mut self,
        now: Ns,
        id: LaneId,
        actions: &mut Vec<Action>,
        work: impl FnOnce(&mut Lane, &mut Turn<'_>),
    ) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let before = (lane.deadline, lane.lasting());
        work(
            lane,
            &mut Turn {
                now,
                lane: id,
                names: &self.names,
                actions,
                ended: &mut self.ended,
                erred: &mut self.erred,
                changed: &mut self.changed,
                corrected: &mut self.corrected,
            },
        );
        self.lasting_changed |= lane.lasting() != before.1;
        if lane.deadline != before.0 {
            if let Some(before) = before.0 {
                self.deadlines.remove(&(before, id));
            }
            if let Some(deadline) = lane.deadline {
                self.deadlines.insert((deadline, id));
            }
        }
    }
}
