//! Reading the truth from the maps.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use shaper_common::{ConnId, Gate, SlotWord};

use super::{
    Controller,
    translate::{conn_id, handle, held},
};
use crate::{
    kernel::ConnView,
    policy::{AccountId, ClientId, Event, LaneId, Ns, OpenConn, Picture, Stage},
};

/// All connections at one time.
#[derive(Debug)]
pub(super) struct Survey {
    /// Of every lane.
    pub(super) pictures: BTreeMap<LaneId, Picture>,
    pub(super) views: Vec<ConnView>,
    /// Those that may have to be parked.
    open: HashSet<ConnId>,
    /// Accounts with connections.
    accounts: HashSet<(LaneId, AccountId)>,
}

impl Controller {
    /// Replaces the policy's picture by what the maps say, and lets go of what nothing uses any more. Returns the
    /// connections of which the policy knew something else: the news of that was lost, or is on its way.
    pub(super) fn reconcile(&mut self, now: Ns) -> HashSet<ConnId> {
        let Survey {
            pictures,
            views,
            open,
            accounts,
        } = self.survey(now);
        for (lane, picture) in pictures {
            self.policy
                .on_event(now, lane, Event::Reconcile(picture), &mut self.actions);
        }
        let corrected = self.policy.drain_corrected().map(conn_id).collect();
        self.carry_out(now);
        for view in &views {
            self.reap(now, view);
        }
        self.parking.retain(|id| open.contains(&id));
        // Nobody listens while the lanes have no names.
        let _ = self
            .in_use
            .send(views.iter().map(ConnView::remote).collect());
        self.accounts.retain(&accounts, &mut self.tables);
        let namespaces: HashSet<_> = views.iter().map(ConnView::netns).collect();
        self.namespaces.retain(|netns| namespaces.contains(&netns));
        corrected
    }

    /// Looks at every connection, and sees to it that what its state asks for is under way, whether or not there was news
    /// of it.
    pub(super) fn survey(&mut self, now: Ns) -> Survey {
        let mut pictures: BTreeMap<LaneId, Picture> = self
            .lanes
            .iter()
            .map(|(id, _)| (id, Picture::default()))
            .collect();
        let mut open = HashSet::new();
        let mut accounts = HashSet::new();
        let mut unsettled = Vec::new();
        let views: Vec<_> = self.tables.views().collect();
        // The news of a wait may have been lost, and with it what it would have set off.
        let of_accounts: HashSet<_> = views
            .iter()
            .map(|view| view.record.account_cgroup)
            .collect();
        for cgroup in of_accounts.into_iter().filter(|cgroup| *cgroup != 0) {
            self.learn_account(AccountId(cgroup));
        }
        for view in &views {
            let Some(lane) = view.lane() else {
                continue;
            };
            let cgroup = AccountId(view.record.account_cgroup);
            if cgroup.0 != 0 {
                accounts.insert((lane, cgroup));
                if view.gate().waits() && view.record.account.load() == 0 {
                    unsettled.push((lane, cgroup, view.id));
                }
            }
            let account = self.accounts.of_cgroup(cgroup.0);
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
            let Some(picture) = pictures.get_mut(&lane) else {
                continue;
            };
            let conn = OpenConn {
                conn: handle(view.id),
                class: view.class(),
                account,
                client: ClientId(view.record.pid),
                since: Ns(view.record.admitted_ns.load()),
            };
            match view.gate() {
                Gate::HeldSyn => picture.held.push(held(&conn, Stage::Connect, view.since())),
                Gate::HeldRequest => picture.held.push(held(&conn, Stage::Request, view.since())),
                Gate::Open => {
                    open.insert(view.id);
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
        for (lane, account, id) in unsettled {
            self.settle_account(lane, account, id);
        }
        for (lane, picture) in &mut pictures {
            if let Some(element) = self.tables.lanes.get(u32::from(lane.0)) {
                picture.credits = SlotWord::from_bits(element.slots.load()).credits();
            }
        }
        Survey {
            pictures,
            views,
            open,
            accounts,
        }
    }
}
