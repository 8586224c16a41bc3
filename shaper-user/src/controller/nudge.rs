//! Making TCP go on with what a gate held back: the held SYN again, or a probe for held request bytes.
//!
//! TCP's own timer may be a minute away after a long hold. So a nudge that is lost is repeated here until the connection
//! moves, and while a request is held a probe now and then resets TCP's count of failures.

use std::{collections::HashMap, time::Duration};

use shaper_common::{ConnId, Gate};
use tracing::{debug, warn};

use super::schedule::Schedule;
use crate::{
    kernel::{ConnView, Namespaces, Tables},
    policy::Ns,
};

/// Pauses between nudges: a fresh SYN's (RFC 6298: 1 s, doubled), but for an early first one.
const PAUSES: [Duration; 8] = [
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(16),
    Duration::from_secs(32),
    Duration::from_secs(64),
];

/// The longest pause between the probes of a held request: within the idle times of common middleboxes.
const PROBE_PAUSE_MAX: Duration = Duration::from_secs(15);

/// The pause where TCP is patient and few wait. After each answer TCP tries again after 0.2, 0.6, 1.4, 3.0, 6.2 s and so on
/// (RFC 9293, 3.8.6.1): should the controller be lost, the next try comes within 3 s of the gate's opening, by default.
const PROBE_PAUSE: Duration = Duration::from_secs(1);

/// The most probes a second, over all held requests, where TCP's patience allows fewer: a per cent or two of a CPU. More
/// than three thousand take more, at one every [`PROBE_PAUSE_MAX`] each.
const PROBES_PER_SECOND: u32 = 200;

/// The shortest, for hosts that let TCP give up within a second or two.
const PROBE_PAUSE_MIN: Duration = Duration::from_millis(500);

/// TCP's first retransmission timeout where the round trip is short (`TCP_RTO_MIN`); it doubles.
const FIRST_TIMEOUT: Duration = Duration::from_millis(200);

/// Pause between the probes of a held request where TCP gives up after `retries` unanswered tries: a third as long as
/// those take, for each probe that is answered lets TCP start its count again. `held`: requests that are held.
fn probe_pause(retries: u32, held: u32) -> Duration {
    let tries = FIRST_TIMEOUT.saturating_mul(1 << retries.min(16)) - FIRST_TIMEOUT;
    let affordable = Duration::from_secs(held.into()) / PROBES_PER_SECOND;
    let longest = affordable.clamp(PROBE_PAUSE, PROBE_PAUSE_MAX);
    (tries / 3).clamp(PROBE_PAUSE_MIN, longest)
}

/// How long an acknowledgement that was held back may wait: as long as TCP delays one (`TCP_DELACK_MIN`), and less than
/// the gateway waits before it repeats itself (`TCP_RTO_MIN`, 200 ms).
const ACKNOWLEDGE_AFTER: Duration = Duration::from_millis(40);

/// What is to be sent, and when.
#[derive(Debug, Default)]
pub struct Nudges {
    /// Gates that have opened and whose connection does not move yet.
    opened: Schedule,
    /// How many nudges those have had.
    attempts: HashMap<ConnId, usize>,
    /// Requests that are held.
    held: Schedule,
    /// Whether a failure to send has been reported: it concerns the host, not the connection.
    reported: bool,
}

impl Nudges {
    /// The gate of `id` has opened: nudges at once, and until the connection moves.
    pub fn opened(&mut self, now: Ns, id: ConnId, tables: &Tables, namespaces: &mut Namespaces) {
        self.held.remove(id);
        self.attempt(now, id, 0, tables, namespaces);
    }

    /// Request bytes of `id` are held, and with them an acknowledgement of what has come from the gateway: a probe that
    /// makes up for it, and further ones from time to time.
    pub fn request_held(&mut self, now: Ns, id: ConnId) {
        let at = now + ACKNOWLEDGE_AFTER;
        if self.held.contains(id) {
            self.held.hasten(id, at);
        } else {
            self.held.set(id, at);
        }
    }

    /// Request bytes of `id` are held, whether or not the kernel's word of that was heard.
    pub fn request_still_held(&mut self, now: Ns, id: ConnId) {
        if !self.held.contains(id) {
            self.request_held(now, id);
        }
    }

    fn probe_later(&mut self, now: Ns, view: &ConnView, namespaces: &Namespaces) {
        // A namespace that cannot be entered now may be later.
        let pause = namespaces
            .get(view.netns())
            .map_or(PROBE_PAUSE_MAX, |namespace| {
                probe_pause(namespace.tcp_retries2, self.held.len() as u32)
            });
        self.held.set(view.id, now + pause);
    }

    /// The connection is gone.
    pub fn forget(&mut self, id: ConnId) {
        self.opened.remove(id);
        self.attempts.remove(&id);
        self.held.remove(id);
    }

    /// Sends what is due. Returns connections to be ended: their SYN has been sent for as long as TCP sends one, but a held
    /// connect may retry for hours (`TCP_SYNCNT`), and would keep its slot all the time.
    #[must_use]
    pub fn tick(&mut self, now: Ns, tables: &Tables, namespaces: &mut Namespaces) -> Vec<ConnId> {
        let mut given_up = Vec::new();
        for id in self.opened.take_due(now) {
            let number = self.attempts.get(&id).map_or(0, |number| number + 1);
            if number == PAUSES.len() && tables.view(id).is_some_and(|view| !view.is_established())
            {
                given_up.push(id);
            }
            self.attempt(now, id, number, tables, namespaces);
        }
        for id in self.held.take_due(now) {
            let waits = |view: &ConnView| view.gate() == Gate::HeldRequest;
            if let Some(view) = tables.view(id).filter(waits)
                && self.send(now, &view, namespaces)
            {
                self.probe_later(now, &view, namespaces);
            }
        }
        given_up
    }

    pub fn next_deadline(&self) -> Option<Ns> {
        self.opened.next().into_iter().chain(self.held.next()).min()
    }

    /// Sends nudge number `number` of `id`, unless the connection moves by itself.
    fn attempt(
        &mut self,
        now: Ns,
        id: ConnId,
        number: usize,
        tables: &Tables,
        namespaces: &mut Namespaces,
    ) {
        let stuck = tables.view(id).filter(|view| !view.is_moving());
        match (stuck, PAUSES.get(number)) {
            (Some(view), Some(pause)) if self.send(now, &view, namespaces) => {
                self.opened.set(id, now + *pause);
                self.attempts.insert(id, number);
            }
            // Where nothing was held back yet, the first packet finds the gate open.
            _ => {
                self.opened.remove(id);
                self.attempts.remove(&id);
            }
        }
    }

    /// Sends a nudge. `false`: there is nothing to send.
    fn send(&mut self, now: Ns, view: &ConnView, namespaces: &mut Namespaces) -> bool {
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
            Err(error) => debug!(id = %view.id, %error, "nudge not sent"),
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A10: probes come in time for hosts that let TCP give up early, and not too often elsewhere.
    #[test]
    fn probes_come_before_tcp_gives_up() {
        assert_eq!(probe_pause(4, 1), Duration::from_secs(1));
        assert_eq!(probe_pause(15, 1), PROBE_PAUSE);
        assert_eq!(probe_pause(15, 1000), Duration::from_secs(5));
        assert_eq!(probe_pause(15, 60_000), PROBE_PAUSE_MAX);
        for retries in [0, 1, u32::MAX] {
            assert!((PROBE_PAUSE_MIN..=PROBE_PAUSE_MAX).contains(&probe_pause(retries, 9)));
        }
        for retries in 3..8 {
            let gives_up_after = FIRST_TIMEOUT * ((1 << retries) - 1);
            assert!(probe_pause(retries, 60_000) < gives_up_after);
        }
    }
}
