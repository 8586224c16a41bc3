//! Replacing what was believed by what is.

use std::collections::{HashMap, HashSet};

use super::{
    Picture,
    lane::{Lane, Turn},
};

impl Lane {
    /// Takes over the kernel's picture of the lane. Waiters that are known keep their place; news that is still on its
    /// way about anything in the picture does no harm when it comes.
    pub(super) fn reconcile(&mut self, picture: Picture, turn: &mut Turn<'_>) {
        self.stalled_until = None;
        let open: HashSet<_> = picture.open.iter().map(|open| open.conn).collect();
        let held: HashMap<_, _> = picture.held.iter().map(|held| (held.conn, held)).collect();

        let released: Vec<_> = self.ledger.conns().filter(|c| !open.contains(c)).collect();
        turn.corrected.extend(&released);
        for conn in released {
            let holder = self.ledger.give_back(conn);
            self.sync_cap(holder.and_then(|holder| holder.account), turn.names);
        }

        let waiting: Vec<_> = self.queue.conns().collect();
        for conn in waiting {
            match held.get(&conn) {
                Some(held) => self.queue.set_stage(conn, held.stage),
                None if open.contains(&conn) => {}
                None => {
                    if let Some(waiter) = self.queue.remove(conn) {
                        turn.corrected.push(conn);
                        self.leave_ticket(waiter, turn.now);
                    }
                }
            }
        }
        self.leaving.retain(|conn| held.contains_key(conn));

        for open in picture.open {
            if self.ledger.holds(open.conn) {
                continue;
            }
            turn.corrected.push(open.conn);
            let waited = self.queue.get(open.conn).is_some();
            if waited {
                let found = self.ledger.slots();
                self.start(open, found, turn);
            }
            // Without a known wait, the start is counted when the news of it comes: it may have been counted before this
            // controller began.
            self.adopt(open, waited, turn.names);
        }
        for held in picture.held {
            if self.queue.get(held.conn).is_none() && !self.leaving.contains(&held.conn) {
                turn.corrected.push(held.conn);
            }
            self.enqueue(held, turn);
        }
        self.health.first_bytes.set_unanswered(picture.unanswered);
        self.ledger.set_credits(picture.credits);
    }
}
