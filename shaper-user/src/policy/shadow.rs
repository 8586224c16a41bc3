//! What a lane that observes would have done, had it enforced its limit.
//!
//! Such a lane has a shadow: a lane of its own with the same rules, enforced on paper. It is told what really happens and
//! decides as the kernel and the policy would have; nobody carries out what it wants. A request arrives in it when it
//! starts in reality, and ends when it ends there; one that has ended before its turn came leaves the line. What the
//! shadow shows is therefore the least that the limit would have done: a request that starts later also ends later, and
//! holds up those behind it.

use std::{collections::HashSet, time::Duration};

use shaper_common::Class;

use super::{
    AccountId, Action, ConnHandle, Ended, Erred, Event, HeldConn, LaneRules, Ns, OpenConn, Outcome,
    Picture, Stage,
    account::AccountNames,
    lane::{Lane, Turn},
    ledger::Holder,
};

/// What the limit of a lane that observes would have done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WouldHave {
    /// Within the last five minutes.
    pub recent: Setbacks,
    /// Since the lane began to observe with a limit.
    pub total: Setbacks,
    /// Requests that would wait now.
    pub queued: u32,
    /// Half of the requests of the last five minutes would have waited no longer; `None`: there was none.
    pub wait_p50: Option<Duration>,
    /// Nine in ten of the requests of the last five minutes would have waited no longer; `None`: there was none.
    pub wait_p90: Option<Duration>,
}

/// Requests that did not find a slot at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Setbacks {
    /// Had to wait, however that ended.
    pub waited: u64,
    /// Found the queue full.
    pub refused: u64,
    /// Waited until their queue timeout: these waited, too.
    pub expired: u64,
}

/// The shadow of one lane. Everybody in it is in flight in reality, so it is no larger than what it is the shadow of.
#[derive(Debug)]
pub(super) struct Shadow {
    pub(super) lane: Lane,
    /// Requests in flight that were turned away here: refused, or ended by their queue timeout.
    pub(super) turned_away: HashSet<ConnHandle>,
    /// Requests in flight that the last picture showed and no news has told of.
    pub(super) unheard: HashSet<ConnHandle>,
    /// Requests that had to wait, since the shadow was made.
    waited: u64,
    /// What the shadow wants done, which nobody does.
    actions: Vec<Action>,
    ended: Vec<Ended>,
    erred: Vec<Erred>,
}

impl Shadow {
    /// The shadow of `lane` with [`LaneRules::on_paper`]: it begins with what is in flight and what waits (A21).
    pub(super) fn of(lane: &Lane, rules: LaneRules, turn: &Turn<'_>) -> Self {
        let mut shadow = Self {
            lane: Lane::new(&lane.name, rules.clone()),
            turned_away: HashSet::new(),
            unheard: HashSet::new(),
            waited: 0,
            actions: Vec::new(),
            ended: Vec::new(),
            erred: Vec::new(),
        };
        shadow.lane.share = lane.share;
        shadow.lane.pause = lane.pause;
        shadow.lane.pacer = lane.pacer.clone();
        for (conn, holder) in lane.ledger.holders() {
            let holder = Holder {
                class: holder.class,
                account: holder.account,
                counted: true,
                admission: None,
            };
            shadow.lane.ledger.take(conn, holder);
        }
        shadow.turn(turn, |own, turn| {
            for (waiter, _) in lane.queue.in_order(turn.now, lane.rules.aging) {
                let held = HeldConn {
                    since: waiter.place.arrived,
                    ..waiter.as_held()
                };
                own.enqueue(held, turn);
            }
            own.change(&lane.name, rules, turn);
        });
        shadow
    }

    /// The lane's rules have changed, and it still observes.
    pub(super) fn change(&mut self, name: &str, rules: LaneRules, turn: &Turn<'_>) {
        self.turn(turn, |lane, turn| lane.change(name, rules, turn));
    }

    /// Does what is due, and tells when there is something to do again.
    pub(super) fn settle(&mut self, turn: &Turn<'_>) -> Option<Ns> {
        if self.lane.deadline.is_some_and(|due| due <= turn.now) {
            self.turn(turn, Lane::settle);
        }
        self.lane.deadline
    }

    pub(super) fn recap(&mut self, account: AccountId, names: &AccountNames) {
        self.lane.recap(account, names);
    }

    /// Hears what the lane hears.
    pub(super) fn on_event(&mut self, event: &Event, turn: &Turn<'_>) {
        match *event {
            Event::Opened(open) => self.arrive(as_held(&open, Stage::Connect, turn.now), turn),
            Event::Resumed(open) => self.arrive(as_held(&open, Stage::Request, turn.now), turn),
            // It was held before the lane observed, or while the news of that was on its way.
            Event::Held(held) => self.arrive(held, turn),
            // Not a request but more of a response: the kernel gives it a slot without asking.
            Event::Overrun(open) => {
                self.unheard.remove(&open.conn);
                if !self.turned_away.contains(&open.conn) {
                    self.tell(Event::Overrun(open), turn);
                }
            }
            Event::Released { conn, .. }
            | Event::Gone { conn }
            | Event::AdmitFailed { conn, .. } => self.leave(conn, turn),
            Event::Pause(_) | Event::Resume | Event::Budget(_) => {
                self.tell(event.clone(), turn);
            }
            Event::Reconcile(ref picture) => self.reconcile(picture, turn),
            Event::Refused { .. } | Event::Credits { .. } => {}
            // Under the limit less would have been sent, and other answers would have come.
            Event::Gateway { .. } | Event::Restore(_) => {}
        }
    }

    /// A request that starts in reality asks for a slot here.
    fn arrive(&mut self, held: HeldConn, turn: &Turn<'_>) {
        let conn = held.conn;
        self.unheard.remove(&conn);
        if self.knows(conn) {
            return;
        }
        let class = held.class;
        if self.opens(&held, turn.names) {
            let open = OpenConn {
                conn,
                class,
                account: held.account,
                client: held.client,
                since: held.since,
            };
            self.tell(Event::Opened(open), turn);
        } else if held.stage == Stage::Connect && self.lane.queue.len() >= self.lane.rules.max_queue
        {
            self.turned_away.insert(conn);
            self.tell(Event::Refused { class }, turn);
        } else {
            self.tell(Event::Held(held), turn);
            if !self.lane.ledger.holds(conn) {
                self.waited += 1;
                self.lane.tally.recent.held(turn.now);
            }
        }
    }

    /// What the kernel decides about a newcomer: nobody ahead, room below the caps, and a credit above the reserve.
    fn opens(&self, newcomer: &HeldConn, names: &AccountNames) -> bool {
        let (lane, class) = (&self.lane, newcomer.class);
        let waiting = lane.queue.by_class();
        let somebody_ahead = waiting[..=class.index()].iter().any(|&count| count > 0);
        let barrier = lane.published.and_then(|published| published.barrier);
        let floor = match class {
            Class::Interactive => 0,
            Class::Default | Class::Bulk => lane.limits().reserve,
        };
        !somebody_ahead
            && barrier.is_none_or(|barrier| class < barrier)
            && lane.class_has_room(class)
            && !lane.account_is_full(newcomer.account, names)
            && lane.ledger.credits() > floor
    }

    /// A request has ended in reality.
    fn leave(&mut self, conn: ConnHandle, turn: &Turn<'_>) {
        if self.turned_away.remove(&conn) || self.unheard.remove(&conn) {
            return;
        }
        let event = if self.lane.queue.get(conn).is_some() {
            Event::Gone { conn }
        } else {
            Event::Released {
                conn,
                refunded: false,
            }
        };
        self.tell(event, turn);
    }

    /// Who is not in flight in reality has left. The news of who is and is not known here may be on its way; at the second
    /// picture it is lost, and the request gets a slot unasked.
    fn reconcile(&mut self, picture: &Picture, turn: &Turn<'_>) {
        let open = picture.open.iter().map(|open| open.conn);
        let held = picture.held.iter().map(|held| held.conn);
        let present: HashSet<_> = open.chain(held).collect();
        self.turned_away.retain(|conn| present.contains(conn));

        let (mut open, mut unheard) = (Vec::new(), HashSet::new());
        for &conn in &picture.open {
            if self.lane.ledger.holds(conn.conn) || self.unheard.contains(&conn.conn) {
                open.push(conn);
            } else if !self.knows(conn.conn) {
                unheard.insert(conn.conn);
            }
        }
        self.unheard = unheard;
        let line = self.lane.queue.in_order(turn.now, self.lane.rules.aging);
        let waiting = line.map(|(waiter, _)| waiter.as_held());
        let own = Picture {
            open,
            held: waiting.filter(|w| present.contains(&w.conn)).collect(),
            credits: self.lane.ledger.credits(),
            unanswered: Vec::new(),
        };
        self.tell(Event::Reconcile(own), turn);
        // The lane lets them start at once.
        for &held in &picture.held {
            self.arrive(held, turn);
        }
    }

    /// Whether the request has come here already.
    fn knows(&self, conn: ConnHandle) -> bool {
        self.lane.ledger.holds(conn)
            || self.lane.queue.get(conn).is_some()
            || self.turned_away.contains(&conn)
    }

    fn tell(&mut self, event: Event, turn: &Turn<'_>) {
        self.turn(turn, |lane, turn| lane.on_event(event, turn));
    }

    /// Runs `work` on the shadow's lane, and notes what ended by it.
    fn turn(&mut self, turn: &Turn<'_>, work: impl FnOnce(&mut Lane, &mut Turn<'_>)) {
        let mut own = Turn {
            now: turn.now,
            lane: turn.lane,
            names: turn.names,
            actions: &mut self.actions,
            ended: &mut self.ended,
            erred: &mut self.erred,
            // Nothing of it happens.
            changed: &mut Vec::new(),
            // What is wrong here is no drift: nothing of it exists.
            corrected: &mut Vec::new(),
        };
        work(&mut self.lane, &mut own);
        self.actions.clear();
        for ended in self.ended.drain(..) {
            match ended.outcome {
                Outcome::Expired => {
                    // Its socket does not disappear.
                    self.lane.leaving.remove(&ended.conn);
                    self.turned_away.insert(ended.conn);
                }
                Outcome::Gone | Outcome::Bypassed => {
                    self.lane.tally.recent.waited(turn.now, ended.wait);
                }
                Outcome::Admitted | Outcome::Refused(_) => {}
            }
        }
    }

    pub(super) fn view(&self, now: Ns) -> WouldHave {
        let tally = &self.lane.tally;
        let [wait_p50, wait_p90] = tally.recent.waits(now, [0.5, 0.9]);
        let refusals = Outcome::ALL
            .into_iter()
            .filter(|outcome| matches!(outcome, Outcome::Refused(_)));
        WouldHave {
            recent: Setbacks {
                waited: tally.recent.holds(now).into(),
                refused: tally.recent.refusals(now).into(),
                expired: tally.recent.timeouts(now).into(),
            },
            total: Setbacks {
                waited: self.waited,
                refused: refusals.map(|why| tally.counters.total(why)).sum(),
                expired: tally.counters.total(Outcome::Expired),
            },
            queued: self.lane.queue.len(),
            wait_p50,
            wait_p90,
        }
    }
}

fn as_held(open: &OpenConn, stage: Stage, since: Ns) -> HeldConn {
    HeldConn {
        conn: open.conn,
        class: open.class,
        account: open.account,
        client: open.client,
        stage,
        since,
    }
}
