//! One lane's state, and what each event does to it.
//!
//! Every event ends in [`settle`](Lane::settle), which draws the conclusions: who goes, who has waited too long, what the
//! kernel may hand out by itself.

use std::{collections::HashSet, time::Duration};

use shaper_common::Class;

use super::{
    AccountId, Action, AdmitFailure, Change, Changed, ConnHandle, Ended, Erred, Event, Found,
    HeldConn, LaneId, LaneRules, Lasting, Limits, Ns, OpenConn, Outcome, Pause, Refusal,
    account::AccountNames,
    adapt::Adaptation,
    health::Health,
    ledger::{Admission, Holder, Ledger},
    pace::Pacer,
    queue::{Queue, Waiter},
    shadow::Shadow,
    tally::Tally,
    ticket::{Place, Ticket, Tickets},
};

/// How long a lane waits for news after the kernel had less room than the policy believed. The news is in the ring
/// buffer already, or lost and made good by the next reconciliation; until then a retry costs little.
const STALL: Duration = Duration::from_millis(50);

/// What the handling of one event needs besides the lane.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    pub(super) now: Ns,
    pub(super) lane: LaneId,
    pub(super) names: &'a AccountNames,
    pub(super) actions: &'a mut Vec<Action>,
    pub(super) ended: &'a mut Vec<Ended>,
    pub(super) erred: &'a mut Vec<Erred>,
    pub(super) changed: &'a mut Vec<Changed>,
    /// Connections about which the lane was wrong.
    pub(super) corrected: &'a mut Vec<ConnHandle>,
}

impl Turn<'_> {
    pub(super) fn tell(&mut self, change: Change) {
        let lane = self.lane;
        self.changed.push(Changed { lane, change });
    }
}

#[derive(Debug)]
pub(super) struct Lane {
    pub(super) name: String,
    pub(super) rules: LaneRules,
    /// The budget that the lane was given, if any.
    pub(super) share: Option<u32>,
    pub(super) ledger: Ledger,
    pub(super) queue: Queue,
    pub(super) tickets: Tickets,
    pub(super) pacer: Pacer,
    pub(super) tally: Tally,
    pub(super) health: Health,
    pub(super) adaptation: Adaptation,
    pub(super) pause: Option<Pause>,
    /// Nobody is admitted and no credit minted before this instant: the policy's picture is known to be behind.
    pub(super) stalled_until: Option<Ns>,
    /// Waiters whose wait has ended without a start and whose last news has not come yet: an expired one's socket is still
    /// there, and of one that was gone at its turn even the news of its wait may still come.
    pub(super) leaving: HashSet<ConnHandle>,
    /// What the kernel was last told; `None`: nothing yet.
    pub(super) published: Option<Published>,
    /// What a lane that observes would have done.
    pub(super) shadow: Option<Box<Shadow>>,
    /// When something is due without an event.
    pub(super) deadline: Option<Ns>,
    next_number: u64,
}

/// What the kernel was told besides the credits, which the ledger follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Published {
    pub(super) limits: Limits,
    pub(super) refunds: bool,
    pub(super) barrier: Option<Class>,
}

impl Lane {
    pub(super) fn new(name: &str, rules: LaneRules) -> Self {
        let mut lane = Self {
            name: String::new(),
            rules: rules.clone(),
            share: None,
            ledger: Ledger::default(),
            queue: Queue::default(),
            tickets: Tickets::default(),
            pacer: Pacer::default(),
            tally: Tally::default(),
            health: Health::default(),
            adaptation: Adaptation::default(),
            pause: None,
            stalled_until: None,
            leaving: HashSet::new(),
            published: None,
            shadow: None,
            deadline: None,
            next_number: 0,
        };
        lane.set_rules(name, rules);
        lane
    }

    /// Changes the rules. Slots in use stay; everything from now on follows the new rules (A14).
    fn set_rules(&mut self, name: &str, rules: LaneRules) {
        self.name = name.to_owned();
        self.rules = rules;
        if self.rules.adaptive.is_none() || self.rules.observes() {
            self.adaptation = Adaptation::default();
        }
        self.adapt();
    }

    /// Brings limit and rates to what the rules and the factor leave.
    pub(super) fn adapt(&mut self) {
        self.pacer
            .set_pace(self.rules.pace.as_ref(), self.adaptation.factor());
        self.ledger.set_budget(self.limits().effective);
    }

    pub(super) fn change(&mut self, name: &str, rules: LaneRules, turn: &mut Turn<'_>) {
        self.take_rules(name, rules, turn);
        self.settle(turn);
    }

    /// Takes over what an earlier controller left.
    pub(super) fn adopt_all(
        &mut self,
        name: &str,
        rules: LaneRules,
        found: Found,
        turn: &mut Turn<'_>,
    ) {
        self.take_rules(name, rules, turn);
        if let Some(lasting) = found.lasting {
            self.take_event(Event::Restore(lasting), turn);
        }
        self.take_event(Event::Reconcile(found.picture), turn);
        self.settle(turn);
    }

    fn take_rules(&mut self, name: &str, rules: LaneRules, turn: &mut Turn<'_>) {
        self.set_rules(name, rules);
        self.refresh_caps(turn.names);
        self.shadow = match (self.rules.on_paper(), self.shadow.take()) {
            (None, _) => None,
            (Some(rules), None) => Some(Box::new(Shadow::of(self, rules, turn))),
            (Some(rules), Some(mut shadow)) => {
                shadow.change(&self.name, rules, turn);
                Some(shadow)
            }
        };
    }

    /// The lane is removed: its waiters go.
    pub(super) fn dissolve(mut self, turn: &mut Turn<'_>) {
        let waiters: Vec<_> = self
            .queue
            .in_order(turn.now, self.rules.aging)
            .map(|(waiter, _)| waiter.conn)
            .collect();
        for conn in waiters {
            self.let_go(conn, turn);
        }
        while let Some(ticket) = self.tickets.lapse(Ns(u64::MAX)) {
            self.end_ticket(ticket, turn);
        }
    }

    pub(super) fn limits(&self) -> Limits {
        let limit = self.rules.max_inflight;
        let adapted = self.adaptation.factor().of(limit);
        let effective = self.share.map_or(adapted, |share| share.min(adapted));
        Limits {
            limit,
            effective,
            reserve: self.rules.reserve_within(effective),
        }
    }

    pub(super) fn on_event(&mut self, event: Event, turn: &mut Turn<'_>) {
        self.take_event(event, turn);
        self.settle(turn);
    }

    /// Notes what an event tells, without drawing conclusions.
    fn take_event(&mut self, event: Event, turn: &mut Turn<'_>) {
        if let Some(shadow) = &mut self.shadow {
            shadow.on_event(&event, turn);
        }
        match event {
            Event::Opened(open) | Event::Resumed(open) => self.opened(open, turn),
            Event::Held(held) => self.held(held, turn),
            Event::Refused { class } => self.refused(class, turn),
            Event::Released { conn, refunded } => self.released(conn, refunded, turn),
            Event::Gone { conn } => self.gone(conn, turn),
            Event::Overrun(open) => self.overrun(open, turn),
            Event::AdmitFailed { conn, why } => self.admit_failed(conn, why, turn),
            Event::Credits { outstanding } => self.credits_left(outstanding, turn.now),
            Event::Pause(pause) => self.pause(pause, turn),
            Event::Resume => self.resume(true, turn),
            Event::Budget(share) => self.set_share(share),
            Event::Gateway { class, sign } => self.sign(class, sign, turn),
            Event::Restore(lasting) => self.restore(lasting, turn),
            Event::Reconcile(picture) => self.reconcile(picture, turn),
        }
    }

    fn opened(&mut self, open: OpenConn, turn: &mut Turn<'_>) {
        self.stalled_until = None;
        if let Some(holder) = self.ledger.holder_mut(open.conn) {
            if !holder.counted {
                holder.counted = true;
                let found = self.ledger.slots() - 1;
                self.start(open, found, turn);
            }
            return;
        }
        self.ledger.spend_credit();
        let found = self.ledger.slots();
        self.start(open, found, turn);
        self.adopt(open, true, turn.names);
    }

    /// Counts a start that the policy did not decide. It may end a wait: of a waiter, or of a ticket that its client
    /// left behind.
    pub(super) fn start(&mut self, open: OpenConn, found: u32, turn: &mut Turn<'_>) {
        let arrived = match self.queue.remove(open.conn) {
            Some(waiter) => Some(waiter.place.arrived),
            None => self
                .tickets
                .take(open.client, turn.now)
                .map(|t| t.place.arrived),
        };
        let at = open.since.min(turn.now);
        let ended = Ended {
            lane: turn.lane,
            conn: open.conn,
            class: open.class,
            account: open.account,
            client: open.client,
            outcome: Outcome::Admitted,
            at,
            wait: arrived.map_or(Duration::ZERO, |arrived| at.since(arrived)),
        };
        self.pacer.record(turn.now);
        self.tally.started(turn.now, &ended, found);
        turn.ended.push(ended);
    }

    /// Takes a slot into the books that the kernel has given already.
    pub(super) fn adopt(&mut self, open: OpenConn, counted: bool, names: &AccountNames) {
        let holder = Holder {
            class: open.class,
            account: open.account,
            counted,
            admission: None,
        };
        self.ledger.take(open.conn, holder);
        self.sync_cap(open.account, names);
    }

    fn held(&mut self, held: HeldConn, turn: &mut Turn<'_>) {
        // A connection with a slot is not held: this event is older than a picture or an admission. If it is not, the
        // news of the released slot was lost, and the next picture tells both.
        if !self.ledger.holds(held.conn) {
            self.enqueue(held, turn);
        }
    }

    /// Puts a connection in line, unless it stands there or is about to be ended.
    pub(super) fn enqueue(&mut self, held: HeldConn, turn: &mut Turn<'_>) {
        if self.queue.get(held.conn).is_some() || self.leaving.contains(&held.conn) {
            return;
        }
        let since = held.since.min(turn.now);
        let place = match self.tickets.take(held.client, turn.now) {
            Some(ticket) => ticket.place,
            None => self.new_place(since),
        };
        let waiter = Waiter {
            conn: held.conn,
            class: held.class,
            account: held.account,
            client: held.client,
            stage: held.stage,
            since,
            place,
        };
        self.put_in_line(waiter, turn.names);
    }

    fn put_in_line(&mut self, waiter: Waiter, names: &AccountNames) {
        let full = self.account_is_full(waiter.account, names);
        self.queue.insert(waiter, full);
    }

    fn new_place(&mut self, arrived: Ns) -> Place {
        self.next_number += 1;
        Place {
            arrived,
            number: self.next_number,
        }
    }

    fn refused(&mut self, class: Class, turn: &Turn<'_>) {
        self.tally.refused(turn.now, class, Refusal::QueueFull);
    }

    fn released(&mut self, conn: ConnHandle, refunded: bool, turn: &mut Turn<'_>) {
        let slots = self.ledger.slots();
        let Some(holder) = self.ledger.give_back(conn) else {
            return;
        };
        self.stalled_until = None;
        self.health.first_bytes.ended(conn);
        self.tally.recent.in_flight(turn.now, slots);
        self.sync_cap(holder.account, turn.names);
        if refunded {
            self.ledger.add_credit();
        }
    }

    fn gone(&mut self, conn: ConnHandle, turn: &mut Turn<'_>) {
        self.leaving.remove(&conn);
        if let Some(waiter) = self.queue.remove(conn) {
            self.leave_ticket(waiter, turn.now);
        } else if let Some(holder) = self.ledger.give_back(conn) {
            // It waited again, and the news of the slot that it gave back before was lost.
            self.sync_cap(holder.account, turn.names);
        }
    }

    /// A waiter went away; its client may come back.
    pub(super) fn leave_ticket(&mut self, waiter: Waiter, now: Ns) {
        let ticket = Ticket {
            place: waiter.place,
            conn: waiter.conn,
            class: waiter.class,
            account: waiter.account,
            client: waiter.client,
            gone_at: now,
        };
        self.tickets.keep(ticket, now + self.rules.ticket_grace);
    }

    /// A client did not come back.
    pub(super) fn end_ticket(&mut self, ticket: Ticket, turn: &mut Turn<'_>) {
        let ended = Ended {
            lane: turn.lane,
            conn: ticket.conn,
            class: ticket.class,
            account: ticket.account,
            client: ticket.client,
            outcome: Outcome::Gone,
            at: ticket.gone_at,
            wait: ticket.gone_at.since(ticket.place.arrived),
        };
        self.tally.ended(turn.now, &ended);
        turn.ended.push(ended);
    }

    fn overrun(&mut self, open: OpenConn, turn: &mut Turn<'_>) {
        self.stalled_until = None;
        if self.ledger.holds(open.conn) {
            return;
        }
        if let Some(waiter) = self.queue.remove(open.conn) {
            self.end_wait(&waiter, Outcome::Bypassed, turn);
        }
        self.adopt(open, true, turn.names);
    }

    /// Undoes an admission that could not be carried out.
    fn admit_failed(&mut self, conn: ConnHandle, why: AdmitFailure, turn: &mut Turn<'_>) {
        let Some(Admission { waiter, at, found }) = self
            .ledger
            .holder_mut(conn)
            .and_then(|holder| holder.admission.take())
        else {
            return;
        };
        self.ledger.give_back(conn);
        self.sync_cap(waiter.account, turn.names);
        self.pacer.take_back(at);
        let ended = ended(&waiter, Outcome::Admitted, at, turn.lane);
        self.tally.take_back_start(at, &ended, found);
        if let Some(index) = turn.ended.iter().rposition(|e| *e == ended) {
            turn.ended.remove(index);
        }
        match why {
            AdmitFailure::Gone => {
                self.leaving.insert(conn);
                self.leave_ticket(waiter, turn.now);
            }
            AdmitFailure::NoRoom => {
                self.put_in_line(waiter, turn.names);
                if self.rules.observes() {
                    // Nothing may be held here, so what cannot be counted goes uncounted.
                    self.let_go(conn, turn);
                } else {
                    self.stalled_until = Some(turn.now + STALL);
                }
            }
        }
    }

    fn credits_left(&mut self, outstanding: u32, now: Ns) {
        if outstanding < self.ledger.credits() {
            // Slots were taken that the policy has not heard of: it would only ask for the same again.
            self.stalled_until = Some(now + STALL);
        }
        self.ledger.set_credits(outstanding);
    }

    pub(super) fn pause(&mut self, pause: Pause, turn: &mut Turn<'_>) {
        let longest = self.pause.map_or(turn.now, |present| present.until);
        if pause.until > longest {
            self.pause = Some(pause);
            self.pacer.stop_ramp();
            turn.tell(Change::Paused(pause));
        }
    }

    /// Ends a pause. `early`: because an operator asked for it.
    pub(super) fn resume(&mut self, early: bool, turn: &mut Turn<'_>) {
        if let Some(Pause { by, .. }) = self.pause.take() {
            self.pacer.ramp_up(turn.now, self.ledger.budget());
            turn.tell(Change::Resumed { by, early });
        }
    }

    pub(super) fn lasting(&self) -> Lasting {
        Lasting {
            factor: self.adaptation.factor(),
            calm_since: self.adaptation.calm_since(),
            pause: self.pause,
        }
    }

    /// Goes on where an earlier controller was. What the rules no longer provide for is left out.
    fn restore(&mut self, lasting: Lasting, turn: &mut Turn<'_>) {
        if self.rules.observes() {
            return;
        }
        if let Some(pause) = lasting.pause {
            self.pause(pause, turn);
        }
        if self.rules.adaptive.is_some() {
            self.adaptation.restore(lasting.factor, lasting.calm_since);
            self.adapt();
        }
    }

    fn set_share(&mut self, share: u32) {
        self.share = Some(share);
        self.stalled_until = None;
        self.ledger.set_budget(self.limits().effective);
    }

    /// Governs a waiter no longer.
    fn let_go(&mut self, conn: ConnHandle, turn: &mut Turn<'_>) {
        if let Some(waiter) = self.queue.remove(conn) {
            self.end_wait(&waiter, Outcome::Bypassed, turn);
            turn.actions.push(Action::LetGo {
                lane: turn.lane,
                conn,
            });
        }
    }

    /// A wait ended without a start.
    pub(super) fn end_wait(&mut self, waiter: &Waiter, outcome: Outcome, turn: &mut Turn<'_>) {
        let ended = ended(waiter, outcome, turn.now, turn.lane);
        self.tally.ended(turn.now, &ended);
        turn.ended.push(ended);
    }

    /// A waiter starts, and leaves `floor` slots free.
    pub(super) fn admit(&mut self, waiter: Waiter, floor: u32, turn: &mut Turn<'_>) {
        let found = self.ledger.slots();
        let ended = ended(&waiter, Outcome::Admitted, turn.now, turn.lane);
        self.pacer.record(turn.now);
        self.tally.started(turn.now, &ended, found);
        turn.ended.push(ended);
        turn.actions.push(Action::Admit {
            lane: turn.lane,
            conn: waiter.conn,
            class: waiter.class,
            floor,
            wait: ended.wait,
        });
        let holder = Holder {
            class: waiter.class,
            account: waiter.account,
            counted: true,
            admission: Some(Admission {
                waiter,
                at: turn.now,
                found,
            }),
        };
        self.ledger.take(waiter.conn, holder);
        self.sync_cap(waiter.account, turn.names);
    }

    /// Whether the class is below its cap.
    pub(super) fn class_has_room(&self, class: Class) -> bool {
        let slots = self.ledger.by_class()[class.index()];
        self.rules.class_cap[class.index()].is_none_or(|cap| slots < cap)
    }

    pub(super) fn account_is_full(&self, account: Option<AccountId>, names: &AccountNames) -> bool {
        account.is_some_and(|account| {
            let cap = names.cap(&self.rules, account);
            cap.is_some_and(|cap| self.ledger.account_slots(account) >= cap)
        })
    }

    /// Looks again whether this account, whose cap may be another now, is at it.
    pub(super) fn recap(&mut self, account: AccountId, names: &AccountNames) {
        self.sync_cap(Some(account), names);
        if let Some(shadow) = &mut self.shadow {
            shadow.recap(account, names);
        }
    }

    /// Looks again whether this account is at its cap.
    pub(super) fn sync_cap(&mut self, account: Option<AccountId>, names: &AccountNames) {
        if let Some(account) = account {
            let full = self.account_is_full(Some(account), names);
            self.queue.set_full(account, full);
        }
    }

    /// Looks again at every account.
    fn refresh_caps(&mut self, names: &AccountNames) {
        for account in self.queue.account_ids() {
            self.sync_cap(Some(account), names);
        }
    }
}

fn ended(waiter: &Waiter, outcome: Outcome, at: Ns, lane: LaneId) -> Ended {
    Ended {
        lane,
        conn: waiter.conn,
        class: waiter.class,
        account: waiter.account,
        client: waiter.client,
        outcome,
        at,
        wait: at.since(waiter.place.arrived),
    }
}
