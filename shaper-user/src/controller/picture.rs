//! Reading the truth from the maps.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use shaper_common::{ConnId, Endpoint, Gate, SlotWord};

use super::{
    Controller,
    drift::is_to_be_reaped,
    translate::{conn_id, handle, held},
};
use crate::{
    kernel::{ConnView, Cursor, NetnsCookie},
    policy::{AccountId, ClientId, Event, LaneId, Ns, OpenConn, Picture, Stage},
};

/// All connections at one time.
#[derive(Debug)]
pub(super) struct Survey {
    /// Of every lane.
    pub(super) pictures: BTreeMap<LaneId, Picture>,
    /// Those of which no program may see the end.
    to_reap: Vec<ConnView>,
    /// Those that may have to be parked.
    open: HashSet<ConnId>,
    /// Accounts with connections.
    accounts: HashSet<(LaneId, AccountId)>,
    /// Waiters that are not counted on their account.
    unsettled: Vec<(LaneId, AccountId, ConnId)>,
    /// The gateways' ends.
    remotes: HashSet<Endpoint>,
    namespaces: HashSet<NetnsCookie>,
}

impl Controller {
    /// Replaces the policy's picture by what the maps say, and lets go of what nothing uses any more. Returns the
    /// connections of which the policy knew something else: the news of that was lost, or is on its way.
    pub(super) fn reconcile(&mut self, now: Ns) -> HashSet<ConnId> {
        let survey = self.survey(now);
        for (lane, picture) in survey.pictures {
            self.policy
                .on_event(now, lane, Event::Reconcile(picture), &mut self.actions);
        }
        let corrected = self.policy.drain_corrected().map(conn_id).collect();
        self.carry_out(now);
        self.reap(now, survey.to_reap);
        self.parking.retain(|id| survey.open.contains(&id));
        // Nobody listens while the lanes have no names.
        let _ = self.in_use.send(survey.remotes);
        self.accounts.retain(&survey.accounts, &mut self.tables);
        self.namespaces
            .retain(|netns| survey.namespaces.contains(&netns));
        corrected
    }

    /// Looks at every connection, and sees to it that what its state asks for is under way, whether or not there was news
    /// of it.
    pub(super) fn survey(&mut self, now: Ns) -> Survey {
        let pictures = self.lanes.iter().map(|(id, _)| (id, Picture::default()));
        let mut survey = Survey {
            pictures: pictures.collect(),
            to_reap: Vec::new(),
            open: HashSet::new(),
            accounts: HashSet::new(),
            unsettled: Vec::new(),
            remotes: HashSet::new(),
            namespaces: HashSet::new(),
        };
        let mut cursor = Cursor::default();
        while let Some(view) = self.tables.next_view(&mut cursor) {
            self.look_at(now, &view, &mut survey);
            if is_to_be_reaped(&view) {
                survey.to_reap.push(view);
            }
        }
        for (lane, account, id) in std::mem::take(&mut survey.unsettled) {
            self.settle_account(lane, account, id);
        }
        for (lane, picture) in &mut survey.pictures {
            if let Some(element) = self.tables.lanes.get(u32::from(lane.0)) {
                picture.credits = SlotWord::from_bits(element.slots.load()).credits();
            }
        }
        survey
    }

    fn look_at(&mut self, now: Ns, view: &ConnView, survey: &mut Survey) {
        survey.remotes.insert(view.remote());
        survey.namespaces.insert(view.netns());
        let Some(lane) = view.lane() else {
            return;
        };
        let cgroup = AccountId(view.record.account_cgroup);
        if cgroup.0 != 0 && survey.accounts.insert((lane, cgroup)) {
            // The news of a wait may have been lost, and with it what it would have set off.
            self.learn_account(cgroup);
        }
        if cgroup.0 != 0 && view.gate().waits() && view.record.account.load() == 0 {
            survey.unsettled.push((lane, cgroup, view.id));
        }
        if view.gate() == Gate::Lingering {
            // In a removed lane nobody would know how long.
            let lane = self.lanes.get(lane);
            let abort_hold = lane.map_or(Duration::ZERO, |lane| lane.config.rules.abort_hold);
            self.lingering
                .begin(view.id, Ns(view.record.left_ns), abort_hold);
        }
        if view.gate() == Gate::HeldRequest && view.holds_request_back() {
            self.nudges.request_still_held(now, view.id);
        }
        let Some(picture) = survey.pictures.get_mut(&lane) else {
            return;
        };
        let conn = OpenConn {
            conn: handle(view.id),
            class: view.class(),
            account: self.accounts.of_cgroup(cgroup.0),
            client: ClientId(view.record.pid),
            since: Ns(view.record.admitted_ns.load()),
        };
        match view.gate() {
            Gate::HeldSyn => picture.held.push(held(&conn, Stage::Connect, view.since())),
            Gate::HeldRequest => picture.held.push(held(&conn, Stage::Request, view.since())),
            Gate::Open => {
                survey.open.insert(view.id);
                self.parking.watch(now, lane, view.id);
                if view.word.is_busy() {
                    let began = Ns(view.record.request_ns);
                    picture.unanswered.push((conn.conn, began));
                }
                picture.open.push(conn);
            }
            Gate::Lingering => picture.open.push(conn),
            _ => {}
        }
    }
}
