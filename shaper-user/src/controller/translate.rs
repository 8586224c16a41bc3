//! From the kernel's events to the policy's.

use std::{io, time::Duration};

use shaper_common::{Class, ConnId, Event as KernelEvent, EventKind, Failure, Fate};
use tracing::{debug, warn};

use super::{Controller, parking::UNSURE};
use crate::{
    kernel::{self, Message},
    metrics::Outcome,
    policy::{
        AccountId, ClientId, ConnHandle, Event, Fault, HeldConn, LaneId, Ns, OpenConn, Sign, Stage,
    },
};

impl Controller {
    /// Takes one message from the ring to the policy and carries out what it decides.
    pub(super) fn kernel_message(&mut self, message: &Message) {
        match message {
            Message::Event(event) => self.kernel_event(event),
            Message::Glimpse(glimpse) => self.glimpse(glimpse),
        }
    }

    fn kernel_event(&mut self, event: &KernelEvent) {
        let Some(kind) = EventKind::from_u32(event.kind) else {
            return;
        };
        let Ok(lane) = u16::try_from(event.lane).map(LaneId) else {
            return;
        };
        let now = kernel::now();
        let id = event.conn();
        self.drift.heard_of(id);
        let account = self.account(lane, event);
        let open = OpenConn {
            conn: handle(id),
            class: Class::from_index(event.class),
            account,
            client: ClientId(event.pid),
            since: Ns(event.ns),
        };
        let event = match kind {
            EventKind::Opened => {
                self.parking.watch(now, lane, id);
                if event.arg == 0 {
                    Event::Opened(open)
                } else {
                    Event::Resumed(open)
                }
            }
            EventKind::Held => {
                self.enter_namespace(id);
                let stage = if event.arg == 0 {
                    Stage::Connect
                } else {
                    Stage::Request
                };
                Event::Held(held(&open, stage, Ns(event.ns)))
            }
            EventKind::Refused => {
                self.tell_refusal(now, lane, &open);
                Event::Refused { class: open.class }
            }
            EventKind::Released => {
                self.parking.forget(id);
                self.lingering.forget(id);
                let refunded = event.arg != 0;
                Event::Released {
                    conn: open.conn,
                    refunded,
                }
            }
            EventKind::Gone => {
                self.nudges.forget(id);
                Event::Gone { conn: open.conn }
            }
            EventKind::Overrun => {
                self.overrun(now, lane, id, event.arg != 0);
                Event::Overrun(open)
            }
            EventKind::Established => {
                self.established(lane, event.arg);
                gateway(open.class, Sign::Connected)
            }
            EventKind::Closed => return self.closed(lane, id, &open, event.arg),
            EventKind::RequestHeld => return self.nudges.request_held(now, id),
            EventKind::Answered => {
                let after = Duration::from_micros(event.arg.into());
                let doubtful = Duration::from_micros(event.doubtful.into());
                if let Some(active) = self.lanes.get(lane) {
                    self.parking.answered(now, lane, doubtful);
                    active.metrics.observe_first_byte(after);
                }
                gateway(
                    open.class,
                    Sign::Answered {
                        conn: open.conn,
                        after,
                    },
                )
            }
            EventKind::EndHint => return self.parking.end_hint(Ns(event.ns), id),
            EventKind::Abandoned => {
                self.abandoned(lane, id, open.class, Ns(event.ns));
                let after = Duration::from_micros(event.arg.into());
                let conn = open.conn;
                gateway(open.class, Sign::GaveUp { conn, after })
            }
            EventKind::Failed => {
                let Some(failure) = Failure::from_u32(event.arg) else {
                    return;
                };
                let (conn, fault) = (open.conn, fault(failure));
                gateway(open.class, Sign::Failed { conn, fault })
            }
            EventKind::Stuck => return self.end_socket(id),
            // Comes as a message of its own.
            EventKind::Glimpse => return,
        };
        self.policy.on_event(now, lane, event, &mut self.actions);
        self.carry_out(now);
    }

    /// From the moment the SYN was let go, whether it had been held or not; 0: that is not known.
    fn established(&self, lane: LaneId, micros: u32) {
        if let Some(lane) = self.lanes.get(lane)
            && micros > 0
        {
            lane.metrics
                .observe_connect(Duration::from_micros(micros.into()));
        }
    }

    fn closed(&mut self, lane: LaneId, id: ConnId, conn: &OpenConn, fate: u32) {
        self.nudges.forget(id);
        let outcome = match Fate::from_u32(fate) {
            Some(Fate::Failed) => Outcome::Failed,
            Some(Fate::Completed) => Outcome::Completed,
            // The policy knows how its wait ended; and the end of the other was counted when it was abandoned.
            Some(Fate::NeverServed | Fate::Abandoned) | None => return,
        };
        self.count_end(conn.since, lane, conn.class, outcome);
    }

    fn abandoned(&mut self, lane: LaneId, id: ConnId, class: Class, left: Ns) {
        self.parking.forget(id);
        if let Some(active) = self.lanes.get(lane) {
            self.lingering
                .begin(id, left, active.config.rules.abort_hold);
        }
        self.count_end(left, lane, class, Outcome::Abandoned);
    }

    /// `begins`: the response has only begun; what was taken for it came before it.
    fn overrun(&mut self, now: Ns, lane: LaneId, id: ConnId, begins: bool) {
        if let Some(active) = self.lanes.get(lane) {
            if begins {
                self.parking.answered(now, lane, UNSURE);
            } else {
                let idle_release = active.config.rules.idle_release;
                self.parking.overrun(now, lane, idle_release);
            }
        }
        self.parking.watch(now, lane, id);
        if let Some(lane) = self.lanes.get(lane) {
            lane.metrics.count_overrun();
            debug!(lane = lane.config.name, %id, "a response went on after its connection was parked");
        }
    }

    /// Opens the namespace of a new waiter while its process is certainly there, so that its admission need not.
    pub(super) fn enter_namespace(&mut self, id: ConnId) {
        if let Some(view) = self.tables.view(id)
            && let Err(error) = self.namespaces.open(view.netns(), view.record.pid)
        {
            debug!(%id, pid = view.record.pid, %error, "cannot enter the waiter's network namespace");
        }
    }

    /// Ends the socket of a connection: its owner, if there still is one, sees ECONNABORTED. One that is hidden is ended at
    /// the next heartbeat, or soon after.
    pub(super) fn end_socket(&mut self, id: ConnId) {
        let Some(view) = self.tables.view(id) else {
            return;
        };
        let ended = self
            .namespaces
            .open(view.netns(), view.record.pid)
            .and_then(|namespace| namespace.diag.destroy(&view.route(), view.record.cookie));
        match ended {
            // The end of a socket frees its record at once.
            Err(error)
                if error.kind() == io::ErrorKind::NotFound && self.tables.view(id).is_some() =>
            {
                self.hidden.end_later(id);
            }
            _ => self.tell_ended(ended),
        }
    }

    /// Tells of connections that could not be ended.
    pub(super) fn tell_ended(&self, ended: io::Result<()>) {
        match ended {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                debug!("the socket, or its process, had gone by itself");
            }
            Err(error) => warn!(
                %error,
                "cannot end a held connection: it stays held until TCP or its client gives up (`shaper doctor` shows \
                 whether this kernel can destroy sockets)"
            ),
        }
    }

    fn account(&mut self, lane: LaneId, event: &KernelEvent) -> Option<AccountId> {
        if event.account_cgroup == 0 {
            return None;
        }
        let account = AccountId(event.account_cgroup);
        self.learn_account(account);
        if event.kind == EventKind::Held as u32 {
            self.settle_account(lane, account, event.conn());
        }
        self.accounts.of_cgroup(event.account_cgroup)
    }

    /// Tells the policy the name of an account that is new.
    pub(super) fn learn_account(&mut self, account: AccountId) {
        if !self.accounts.knows(account)
            && let Some(name) = self.accounts.learn(account, &self.classes.paths())
        {
            self.policy.name_account(account, name);
        }
    }

    /// Sees to it that a waiter counts on its account, if accounts have caps in the lane.
    pub(super) fn settle_account(&mut self, lane: LaneId, account: AccountId, id: ConnId) {
        if self
            .lanes
            .get(lane)
            .is_some_and(|lane| lane.caps_accounts())
        {
            self.accounts
                .settle(lane, account, id, &self.policy, &mut self.tables);
        }
    }
}

/// What a gateway did, as the policy hears it.
pub(super) fn gateway(class: Class, sign: Sign) -> Event {
    Event::Gateway { class, sign }
}

fn fault(failure: Failure) -> Fault {
    match failure {
        Failure::Refused => Fault::Refused,
        Failure::Unreachable => Fault::Unreachable,
        Failure::ConnectTimeout => Fault::ConnectTimeout,
        Failure::Reset => Fault::Reset,
        Failure::Unanswered => Fault::Unanswered,
    }
}

/// The policy's name for a connection.
pub(super) fn handle(id: ConnId) -> ConnHandle {
    ConnHandle(u64::from(id.generation) << 32 | u64::from(id.index))
}

/// The connection behind a name that [`handle`] gave.
pub(super) fn conn_id(handle: ConnHandle) -> ConnId {
    ConnId {
        index: handle.0 as u32,
        generation: (handle.0 >> 32) as u32,
    }
}

pub(super) fn held(conn: &OpenConn, stage: Stage, since: Ns) -> HeldConn {
    let OpenConn {
        conn,
        class,
        account,
        client,
        since: _,
    } = *conn;
    HeldConn {
        conn,
        class,
        account,
        client,
        stage,
        since,
    }
}
