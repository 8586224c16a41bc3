//! Drawing conclusions: who goes next, who has waited too long, what the kernel may do by itself.

use shaper_common::Class;

use super::{
    Action, ConnHandle, ConnectHold, Expiry, Ns, Outcome, POSITION_MAX, Stage,
    lane::{Lane, Published, Turn},
    queue::{Waiter, next_step},
};

impl Lane {
    /// Does everything that is due, tells the kernel what changed, and works out when to look again.
    pub(super) fn settle(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now;
        if self.pause.is_some_and(|pause| pause.until <= now) {
            self.resume(false, turn);
        }
        self.settle_health(turn);
        self.stalled_until = self.stalled_until.filter(|&until| until > now);
        self.expire(turn);

        let told = self.ledger.credits();
        let first_admit = turn.actions.len();
        let pace_allows = self.admit_waiters(turn);
        self.publish(told, first_admit, turn);

        self.pass_connects(turn);
        while let Some(ticket) = self.tickets.lapse(now) {
            self.end_ticket(ticket, turn);
        }
        let own = self.next_deadline(now, pace_allows);
        let of_shadow = self.shadow.as_mut().and_then(|shadow| shadow.settle(turn));
        self.deadline = [own, of_shadow].into_iter().flatten().min();
    }

    /// Ends the wait of those who have waited as long as their class may (A3).
    fn expire(&mut self, turn: &mut Turn<'_>) {
        for class in Class::ALL {
            while let Some(waiter) = self.queue.oldest_of(class).copied()
                && waiter.place.arrived + self.rules.queue_timeout[class.index()] <= turn.now
            {
                turn.actions.push(Action::Expire(Expiry {
                    lane: turn.lane,
                    conn: waiter.conn,
                    class,
                    account: waiter.account,
                    client: waiter.client,
                    wait: turn.now.since(waiter.place.arrived),
                    position: self.position(waiter.conn, turn.now),
                    queued: self.queue.len(),
                    in_flight: self.ledger.slots(),
                    hindrance: self.hindrance(&waiter, turn.now, turn.names),
                }));
                self.queue.remove(waiter.conn);
                self.leaving.insert(waiter.conn);
                self.end_wait(&waiter, Outcome::Expired, turn);
            }
        }
    }

    fn position(&self, conn: ConnHandle, now: Ns) -> u32 {
        let ahead = self
            .queue
            .in_order(now, self.rules.aging)
            .take(POSITION_MAX as usize - 1)
            .take_while(|(waiter, _)| waiter.conn != conn);
        ahead.count() as u32 + 1
    }

    /// Admits all who may start. Returns when the pace allows the next one, if the pace is what stopped it.
    fn admit_waiters(&mut self, turn: &mut Turn<'_>) -> Option<Ns> {
        while let Some((waiter, floor)) = self.next_to_admit(turn.now) {
            if !self.rules.observes() {
                let earliest = self.pacer.earliest(turn.now);
                if earliest > turn.now {
                    return Some(earliest);
                }
            }
            self.queue.remove(waiter.conn);
            self.admit(waiter, floor, turn);
        }
        None
    }

    /// Who would start now if the pace allowed it, and how many slots must stay free when it does.
    fn next_to_admit(&self, now: Ns) -> Option<(Waiter, u32)> {
        let aging = self.rules.aging;
        if self.rules.observes() {
            let (waiter, _) = self.queue.in_order(now, aging).next()?;
            return Some((*waiter, 0));
        }
        let free = self.ledger.free();
        if free == 0 || self.pause.is_some() || self.stalled_until.is_some() {
            return None;
        }
        let (first, effective) = self
            .queue
            .first(now, aging, |class| self.class_has_room(class))?;
        let floor = self.floor(first.class, effective);
        if free > floor {
            return Some((*first, floor));
        }
        // What is free is the reserve, for interactive work that has been overtaken by what has aged.
        if effective != Class::Interactive || !self.class_has_room(Class::Interactive) {
            return None;
        }
        let next = self.queue.first_of(Class::Interactive)?;
        Some((*next, 0))
    }

    /// The slots that must stay free when a waiter of this class, which has aged up to `effective`, starts.
    pub(super) fn floor(&self, class: Class, effective: Class) -> u32 {
        if class == Class::Interactive {
            return 0;
        }
        let reserve = self.limits().reserve;
        if effective != Class::Interactive || self.ledger.free() > reserve {
            return reserve;
        }
        // It has waited so long that it ranks with interactive work, which would go on taking whatever comes free: it may
        // have a slot if interactive work has its reserve, be that free or in use.
        let interactive = self.ledger.by_class()[Class::Interactive.index()];
        reserve.saturating_sub(interactive)
    }

    /// Tells the kernel what it may hand out, where that differs from what it knows. `told`: the credits that it has.
    fn publish(&mut self, told: u32, first_admit: usize, turn: &mut Turn<'_>) {
        let limits = self.limits();
        let timed = self.pause.is_some() || self.pacer.is_pacing(turn.now);
        let ours_to_time = self.rules.observes() || timed;
        let barrier = if timed && !self.rules.observes() {
            // A connection that keeps its slot between two requests would begin the next one by itself.
            Some(Class::Interactive)
        } else {
            self.barrier(turn.now)
        };
        // Everybody who may start has been admitted, so what is free now serves newcomers alone. The kernel keeps the
        // reserve and the caps.
        let credits = if ours_to_time {
            0
        } else if self.stalled_until.is_some() {
            self.ledger.credits()
        } else {
            self.ledger.free()
        };
        let refunds = !ours_to_time && self.queue.is_empty();

        let before = self.published.replace(Published {
            limits,
            refunds,
            barrier,
        });
        if credits != told || before.is_none_or(|before| before.refunds != refunds) {
            let action = Action::SetCredits {
                lane: turn.lane,
                credits,
                refunds,
            };
            // Credits that are withdrawn make the room that the admissions need.
            if credits < told {
                turn.actions.insert(first_admit, action);
            } else {
                turn.actions.push(action);
            }
            self.ledger.set_credits(credits);
        }
        if before.is_none_or(|before| before.barrier != barrier) {
            turn.actions.push(Action::SetBarrier {
                lane: turn.lane,
                barrier,
            });
        }
        if before.is_none_or(|before| before.limits != limits) {
            let action = Action::SetLimits {
                lane: turn.lane,
                limits,
            };
            // All else was decided for these.
            turn.actions.insert(first_admit, action);
        }
    }

    /// The class that newcomers must stay below, because somebody who waits for the next slot has aged up to it.
    fn barrier(&self, now: Ns) -> Option<Class> {
        let (first, effective) = self
            .queue
            .first(now, self.rules.aging, |class| self.class_has_room(class))?;
        (effective < first.class).then_some(effective)
    }

    /// Lets the connections be made whose connect has been held long enough (A10).
    fn pass_connects(&mut self, turn: &mut Turn<'_>) {
        let ConnectHold::For(hold) = self.rules.connect_hold else {
            return;
        };
        while let Some((since, conn)) = self.queue.first_connecting()
            && since + hold <= turn.now
        {
            self.queue.set_stage(conn, Stage::Request);
            turn.actions.push(Action::PassConnect {
                lane: turn.lane,
                conn,
            });
        }
    }

    fn next_deadline(&self, now: Ns, pace_allows: Option<Ns>) -> Option<Ns> {
        let by_class = Class::ALL.into_iter().flat_map(|class| {
            let expiry = self
                .queue
                .oldest_of(class)
                .map(|waiter| waiter.place.arrived + self.rules.queue_timeout[class.index()]);
            let step = self
                .queue
                .first_of(class)
                .and_then(|w| next_step(class, w.place.arrived, now, self.rules.aging));
            [expiry, step]
        });
        let connect = match self.rules.connect_hold {
            ConnectHold::For(hold) => self.queue.first_connecting().map(|(since, _)| since + hold),
            ConnectHold::Always => None,
        };
        by_class
            .chain([
                connect,
                self.tickets.next_lapse(),
                self.pause.map(|pause| pause.until),
                self.health_deadline(),
                self.stalled_until,
                self.pacer.ramp_end(now),
                pace_allows,
            ])
            .flatten()
            .min()
    }
}
