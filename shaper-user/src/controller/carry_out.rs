//! Carrying out what the policy decided.

use shaper_common::{CLASS_COUNT, ConnId, SlotWord};
use tracing::debug;

use super::{
    Controller,
    translate::{conn_id, handle},
};
use crate::{
    kernel::{NotAdmitted, change_slots},
    metrics,
    policy::{Action, AdmitFailure, ConnHandle, Ended, Event, Expiry, LaneId, Ns, Outcome},
};

impl Controller {
    /// Carries out all pending actions, and those that follow from reporting what failed.
    pub(super) fn carry_out(&mut self, now: Ns) {
        loop {
            let actions = std::mem::take(&mut self.actions);
            if actions.is_empty() {
                break;
            }
            for action in actions {
                self.act(now, action);
            }
        }
        self.note_outcomes(now);
        self.note_errors(now);
        self.tell_changes(now);
        self.keep_lasting();
    }

    fn act(&mut self, now: Ns, action: Action) {
        debug!(?action, "decided");
        self.stillness.moved();
        match action {
            Action::Admit {
                lane, conn, floor, ..
            } => self.admit(now, lane, conn, floor),
            Action::PassConnect { conn, .. } => self.pass_connect(now, conn_id(conn)),
            Action::Expire(expiry) => self.expire(now, &expiry),
            Action::LetGo { conn, .. } => self.let_go(now, conn_id(conn)),
            Action::SetLimits { lane, limits } => {
                self.lanes.mirror_limits(lane, limits, &self.tables);
            }
            Action::SetCredits {
                lane,
                credits,
                refunds,
            } => {
                self.set_credits(now, lane, credits, refunds);
            }
            Action::SetBarrier { lane, barrier } => {
                if let Some(element) = self.tables.lanes.get(u32::from(lane.0)) {
                    element
                        .barrier
                        .store(barrier.map_or(CLASS_COUNT as u32, |class| class as u32));
                }
            }
        }
    }

    fn admit(&mut self, now: Ns, lane: LaneId, conn: ConnHandle, floor: u32) {
        let id = conn_id(conn);
        let why = match self.tables.admit(id, floor, now) {
            Ok(_) => {
                self.parking.watch(now, lane, id);
                self.nudges
                    .opened(now, id, &self.tables, &mut self.namespaces);
                return;
            }
            Err(NotAdmitted::Gone) => AdmitFailure::Gone,
            Err(NotAdmitted::NoRoom) => AdmitFailure::NoRoom,
        };
        let failed = Event::AdmitFailed { conn, why };
        self.policy.on_event(now, lane, failed, &mut self.actions);
    }

    fn pass_connect(&mut self, now: Ns, id: ConnId) {
        if self.tables.pass_connect(id, now) {
            self.nudges
                .opened(now, id, &self.tables, &mut self.namespaces);
        }
    }

    pub(super) fn let_go(&mut self, now: Ns, id: ConnId) {
        if self.tables.let_go(id).is_some() {
            self.nudges
                .opened(now, id, &self.tables, &mut self.namespaces);
        }
    }

    fn set_credits(&mut self, now: Ns, lane: LaneId, credits: u32, refunds: bool) {
        let Some(element) = self.tables.lanes.get(u32::from(lane.0)) else {
            return;
        };
        let change = |word: SlotWord| Some(word.with_refunds(refunds).with_credits(credits));
        if let Some(after) = change_slots(element, change) {
            let outstanding = after.credits();
            self.policy
                .on_event(now, lane, Event::Credits { outstanding }, &mut self.actions);
        }
    }

    /// A waiter has waited as long as its class may. Its client sees ECONNABORTED.
    fn expire(&mut self, now: Ns, expiry: &Expiry) {
        self.tell_expiry(now, expiry);
        let id = conn_id(expiry.conn);
        if self.tables.view(id).is_some_and(|view| view.gate().waits()) {
            self.end_socket(id);
        }
    }

    /// Parks what has become idle, and ends what has lingered long enough.
    pub(super) fn park_idle(&mut self, now: Ns) {
        let lanes = &self.lanes;
        let idle_release = |lane| lanes.get(lane).map(|lane| lane.config.rules.idle_release);
        let parked = self.parking.tick(now, &self.tables, idle_release);
        if self.parking.take_begun() {
            self.stillness.moved();
        }
        for parked in parked {
            self.released(now, parked.lane, parked.id);
        }
        for id in self.lingering.take_due(now) {
            let lane = self.tables.view(id).and_then(|view| view.lane());
            if let Some(lane) = lane
                && self.tables.end_lingering(id)
            {
                self.released(now, lane, id);
            }
        }
    }

    pub(super) fn gone(&mut self, now: Ns, lane: LaneId, id: ConnId) {
        self.stillness.moved();
        let conn = handle(id);
        self.policy
            .on_event(now, lane, Event::Gone { conn }, &mut self.actions);
        self.carry_out(now);
    }

    pub(super) fn released(&mut self, now: Ns, lane: LaneId, id: ConnId) {
        self.stillness.moved();
        let conn = handle(id);
        let event = Event::Released {
            conn,
            refunded: false,
        };
        self.policy.on_event(now, lane, event, &mut self.actions);
        self.carry_out(now);
        self.record_release(now, id);
    }

    /// Tells the metrics and the history what gateways did wrong.
    fn note_errors(&mut self, now: Ns) {
        let erred: Vec<_> = self.policy.drain_erred().collect();
        for erred in erred {
            self.count_gateway_error(now, erred);
        }
    }

    /// Tells the metrics and the history how waits ended.
    fn note_outcomes(&mut self, now: Ns) {
        let ended: Vec<_> = self.policy.drain_ended().collect();
        for ended in ended {
            self.record_end(now, &ended);
            let Ended {
                lane,
                class,
                at,
                wait,
                ..
            } = ended;
            let Some(active) = self.lanes.get(lane) else {
                continue;
            };
            match ended.outcome {
                Outcome::Admitted => {
                    active.metrics.observe_wait(class, wait);
                    active.metrics.count_request(class);
                    self.tally_start(at, lane, class, wait);
                }
                Outcome::Expired => {
                    active.metrics.count_queue_timeout(class);
                    self.count_end(at, lane, class, metrics::Outcome::QueueTimeout);
                }
                Outcome::Gone => self.count_end(at, lane, class, metrics::Outcome::LeftQueue),
                // The kernel counts those.
                Outcome::Refused(_) | Outcome::Bypassed => {}
            }
        }
    }
}
