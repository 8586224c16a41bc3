//! From the kernel's events to the policy's.

use shaper_common::{Class, ConnId, Event as KernelEvent, EventKind};

use super::Controller;
use crate::{
    kernel,
    policy::{AccountId, ClientId, ConnHandle, Event, HeldConn, LaneId, Ns, OpenConn, Stage},
};

impl Controller {
    /// Takes one event from the ring to the policy and carries out what it decides.
    pub(super) fn kernel_event(&mut self, event: &KernelEvent) {
        let Some(kind) = EventKind::from_u32(event.kind) else {
            return;
        };
        let Ok(lane) = u16::try_from(event.lane).map(LaneId) else {
            return;
        };
        let id = event.conn();
        let account = self.account(lane, event);
        let open = OpenConn {
            conn: handle(id),
            class: Class::from_index(event.class),
            account,
            client: ClientId(event.pid),
        };
        let event = match kind {
            EventKind::Opened => Event::Opened(open),
            EventKind::Held => {
                self.enter_namespace(id);
                Event::Held(held(&open, Stage::Connect, Ns(event.ns)))
            }
            EventKind::Refused => Event::Refused { class: open.class },
            EventKind::Released => Event::Released {
                conn: open.conn,
                refunded: event.arg != 0,
            },
            EventKind::Gone => {
                self.replays.answered(id);
                Event::Gone { conn: open.conn }
            }
            EventKind::Established => {
                self.established(lane, id);
                return;
            }
            EventKind::Closed => {
                self.replays.answered(id);
                return;
            }
        };
        let now = kernel::now();
        self.policy.on_event(now, lane, event, &mut self.actions);
        self.carry_out(now);
    }

    fn established(&mut self, lane: LaneId, id: ConnId) {
        self.replays.answered(id);
        if let Some(view) = self.tables.view(id)
            && let Some(lane) = self.lanes.get(lane)
            && view.is_established()
        {
            let released = Ns(view.record.admitted_ns.load());
            lane.metrics
                .observe_connect(Ns(view.record.established_ns).since(released));
        }
    }

    /// Opens the namespace of a new waiter while its process is certainly there, so that its admission need not.
    fn enter_namespace(&mut self, id: ConnId) {
        if let Some(view) = self.tables.view(id)
            && let Err(error) = self.namespaces.open(view.netns(), view.record.pid)
        {
            tracing::debug!(%id, pid = view.record.pid, %error, "cannot enter the waiter's network namespace");
        }
    }

    fn account(&mut self, lane: LaneId, event: &KernelEvent) -> Option<AccountId> {
        if event.account_cgroup == 0 {
            return None;
        }
        let account = AccountId(event.account_cgroup);
        if let Some(name) = self.accounts.learn(account, &self.classes.paths()) {
            self.policy.name_account(account, name);
        }
        if event.kind == EventKind::Held as u32
            && self
                .lanes
                .get(lane)
                .is_some_and(|lane| lane.caps_accounts())
        {
            self.accounts
                .settle(lane, account, event.conn(), &self.policy, &mut self.tables);
        }
        Some(account)
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
