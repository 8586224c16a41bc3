//! Carrying out what the policy decided.

use std::io;

use shaper_common::{CLASS_COUNT, ConnId, Gate};
use tracing::{debug, info, warn};

use super::{Controller, translate::conn_id};
use crate::{
    format,
    kernel::{NotAdmitted, change_slots},
    policy::{Action, AdmitFailure, ConnHandle, Event, Expiry, LaneId, Ns, Outcome},
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
    }

    fn act(&mut self, now: Ns, action: Action) {
        match action {
            Action::Admit { lane, conn, .. } => self.admit(now, lane, conn),
            Action::PassConnect { conn, .. } => self.pass_connect(now, conn_id(conn)),
            Action::Expire(expiry) => self.expire(now, &expiry),
            Action::LetGo { conn, .. } => self.let_go(now, conn_id(conn)),
            Action::SetCredits {
                lane,
                credits,
                refunds,
            } => self.set_credits(now, lane, credits, refunds),
            Action::SetBarrier { lane, barrier } => {
                if let Some(element) = self.tables.lanes.get(u32::from(lane.0)) {
                    element
                        .barrier
                        .store(barrier.map_or(CLASS_COUNT as u32, |class| class as u32));
                }
            }
        }
    }

    fn admit(&mut self, now: Ns, lane: LaneId, conn: ConnHandle) {
        let id = conn_id(conn);
        let why = match self.tables.admit(id, now) {
            Ok(from) => return self.wake(now, id, from),
            Err(NotAdmitted::Gone) => AdmitFailure::Gone,
            Err(NotAdmitted::NoRoom) => AdmitFailure::NoRoom,
        };
        self.policy.on_event(
            now,
            lane,
            Event::AdmitFailed { conn, why },
            &mut self.actions,
        );
    }

    fn pass_connect(&mut self, now: Ns, id: ConnId) {
        if self.tables.pass_connect(id) {
            self.replays
                .start(now, id, &self.tables, &mut self.namespaces);
        }
    }

    fn let_go(&mut self, now: Ns, id: ConnId) {
        if let Some(from) = self.tables.let_go(id) {
            self.wake(now, id, from);
        }
    }

    /// A gate has opened: makes TCP try again at once what it held back.
    fn wake(&mut self, now: Ns, id: ConnId, from: Gate) {
        if from == Gate::HeldSyn {
            self.replays
                .start(now, id, &self.tables, &mut self.namespaces);
        }
    }

    fn set_credits(&mut self, now: Ns, lane: LaneId, credits: u32, refunds: bool) {
        let Some(element) = self.tables.lanes.get(u32::from(lane.0)) else {
            return;
        };
        let change =
            |word: shaper_common::SlotWord| Some(word.with_refunds(refunds).with_credits(credits));
        if let Some(after) = change_slots(element, change) {
            let outstanding = after.credits();
            self.policy
                .on_event(now, lane, Event::Credits { outstanding }, &mut self.actions);
        }
    }

    /// A waiter has waited as long as its class may. Its client sees ECONNABORTED.
    fn expire(&mut self, now: Ns, expiry: &Expiry) {
        let id = conn_id(expiry.conn);
        let lane = self.lanes.get(expiry.lane);
        let name = lane.map_or("?", |lane| lane.config.name.as_str());
        info!(
            lane = name,
            class = %expiry.class,
            pid = expiry.client.0,
            wait = %format::duration(expiry.wait),
            position = expiry.position,
            queued = expiry.queued,
            "queue timeout: the waiter is ended; raise `queue_timeout` or `max_inflight` in lanes.d/{name}.toml"
        );
        let Some(view) = self.tables.view(id).filter(|view| view.gate.waits()) else {
            return;
        };
        let destroyed = self
            .namespaces
            .open(view.netns(), view.record.pid)
            .and_then(|namespace| {
                namespace
                    .diag
                    .destroy(&view.record.tuple, view.record.cookie)
            });
        match destroyed {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                debug!(%id, "the waiter had gone by itself")
            }
            Err(error) => {
                warn!(
                    %error,
                    "cannot end a waiter at its queue timeout: it stays held until its client gives up \
                     (`shaper doctor` shows whether this kernel can destroy sockets)"
                );
            }
        }
        let _ = now;
    }

    /// Tells the metrics how waits ended.
    fn note_outcomes(&mut self, now: Ns) {
        let ended: Vec<_> = self.policy.drain_ended().collect();
        for ended in ended {
            self.record_end(now, &ended);
            let Some(lane) = self.lanes.get(ended.lane) else {
                continue;
            };
            match ended.outcome {
                Outcome::Admitted => {
                    lane.metrics.observe_wait(ended.class, ended.wait);
                    lane.metrics.count_request(ended.class);
                }
                Outcome::Expired => lane.metrics.count_queue_timeout(ended.class),
                Outcome::Refused(_) | Outcome::Gone | Outcome::Bypassed => {}
            }
        }
    }
}
