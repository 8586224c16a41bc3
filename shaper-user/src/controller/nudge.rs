//! Making TCP go on with what a gate held back: the held SYN again, or a probe for held request bytes.
//!
//! TCP's own timer may be a minute away after a long hold. So a nudge that is lost is repeated here until the connection
//! moves, and while a request is held a probe now and then resets TCP's count of failures.

use std::{collections::HashMap, time::Duration};

use shaper_common::{ConnId, Gate};
use tracing::{debug, warn};

use crate::{
    kernel::{Namespaces, Tables},
    policy::Ns,
};

/// Pauses between nudges: a fresh SYN's (RFC 6298: 1 s, doubled), but for an early first one.
const PAUSES: [Duration; 6] = [
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(16),
];

/// Pause between the probes of a held request: well within the quarter of an hour after which TCP gives up with the
/// default `tcp_retries2`, and within the idle times of common middleboxes.
const PROBE_INTERVAL: Duration = Duration::from_secs(15);

/// What is to be sent, and when.
#[derive(Debug, Default)]
pub struct Nudges {
    /// Gates that have opened and whose connection does not move yet.
    opened: HashMap<ConnId, Attempt>,
    /// Requests that are held, and when to probe for each.
    held: HashMap<ConnId, Ns>,
    /// Whether a failure to send has been reported: it concerns the host, not the connection.
    reported: bool,
}

#[derive(Debug)]
struct Attempt {
    number: usize,
    next: Ns,
}

impl Nudges {
    /// The gate of `id` has opened: nudges at once, and until the connection moves.
    pub fn opened(&mut self, now: Ns, id: ConnId, tables: &Tables, namespaces: &mut Namespaces) {
        self.held.remove(&id);
        // Where nothing was held back yet, the first packet finds the gate open.
        if self.send(now, id, tables, namespaces) {
            let next = now + PAUSES[0];
            self.opened.insert(id, Attempt { number: 0, next });
        }
    }

    /// Request bytes of `id` are held: probes from time to time.
    pub fn request_held(&mut self, now: Ns, id: ConnId) {
        self.held.insert(id, now + PROBE_INTERVAL);
    }

    /// The connection moves or is gone.
    pub fn forget(&mut self, id: ConnId) {
        self.opened.remove(&id);
        self.held.remove(&id);
    }

    /// Sends what is due.
    pub fn tick(&mut self, now: Ns, tables: &Tables, namespaces: &mut Namespaces) {
        let due = |next: &Ns| *next <= now;
        let opened: Vec<_> = self
            .opened
            .iter()
            .filter(|(_, attempt)| due(&attempt.next))
            .map(|(id, attempt)| (*id, attempt.number + 1))
            .collect();
        for (id, number) in opened {
            let moving = tables.view(id).is_none_or(|view| view.is_moving());
            match PAUSES.get(number) {
                Some(pause) if !moving && self.send(now, id, tables, namespaces) => {
                    let next = now + *pause;
                    self.opened.insert(id, Attempt { number, next });
                }
                _ => {
                    self.opened.remove(&id);
                }
            }
        }
        let held: Vec<_> = self
            .held
            .iter()
            .filter(|(_, next)| due(next))
            .map(|(id, _)| *id)
            .collect();
        for id in held {
            let waits = tables
                .view(id)
                .is_some_and(|view| view.gate() == Gate::HeldRequest);
            if waits && self.send(now, id, tables, namespaces) {
                self.held.insert(id, now + PROBE_INTERVAL);
            } else {
                self.held.remove(&id);
            }
        }
    }

    pub fn next_deadline(&self) -> Option<Ns> {
        let opened = self.opened.values().map(|attempt| attempt.next);
        opened.chain(self.held.values().copied()).min()
    }

    /// Sends the nudge of `id`. `false`: there is nothing to send.
    fn send(&mut self, now: Ns, id: ConnId, tables: &Tables, namespaces: &mut Namespaces) -> bool {
        let Some(view) = tables.view(id) else {
            return false;
        };
        let Some(packet) = view.nudge(now) else {
            return false;
        };
        let sent = namespaces
            .open(view.netns(), view.record.pid)
            .and_then(|namespace| namespace.raw.send(&view.route(), &packet));
        match sent {
            Ok(()) => self.reported = false,
            Err(error) if !self.reported => {
                self.reported = true;
                warn!(
                    %error,
                    "cannot send packets in a held connection's name; until that works, an admitted connection goes on \
                     only when TCP retries by itself, which can take a minute (`shaper doctor` shows what is missing)"
                );
            }
            Err(error) => debug!(%id, %error, "nudge not sent"),
        }
        true
    }
}
