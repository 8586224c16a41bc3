//! Sending held SYNs again, until the handshake shows that one arrived.

use std::{collections::HashMap, io, time::Duration};

use shaper_common::ConnId;
use tracing::{debug, warn};

use crate::{
    kernel::{Namespaces, Tables},
    policy::Ns,
};

/// Pauses between attempts. TCP's own timer may be a minute away after a long hold, so a lost replay is repeated here
/// at the pace at which TCP sends a fresh SYN again (RFC 6298: 1 s, doubled).
const PAUSES: [Duration; 6] = [
    Duration::from_millis(200),
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(16),
];

/// SYNs sent again that nobody has answered yet.
#[derive(Debug, Default)]
pub struct Replays {
    unanswered: HashMap<ConnId, Attempt>,
    /// Whether a failure to send has been reported: it concerns the host, not the connection.
    reported: bool,
}

#[derive(Debug)]
struct Attempt {
    number: usize,
    next: Ns,
}

impl Replays {
    /// Sends the SYN of `id`, whose gate has just opened, and watches for the answer.
    pub fn start(&mut self, now: Ns, id: ConnId, tables: &Tables, namespaces: &mut Namespaces) {
        // Without a kept SYN none was dropped yet: the first one finds the gate open.
        if self.send(now, id, tables, namespaces) {
            self.unanswered.insert(
                id,
                Attempt {
                    number: 0,
                    next: now + PAUSES[0],
                },
            );
        }
    }

    /// The connection is established or gone.
    pub fn answered(&mut self, id: ConnId) {
        self.unanswered.remove(&id);
    }

    /// Sends again what is due.
    pub fn tick(&mut self, now: Ns, tables: &Tables, namespaces: &mut Namespaces) {
        let due: Vec<_> = self
            .unanswered
            .iter()
            .filter(|(_, attempt)| attempt.next <= now)
            .map(|(id, _)| *id)
            .collect();
        for id in due {
            let established = tables.view(id).is_none_or(|view| view.is_established());
            let number = self
                .unanswered
                .get(&id)
                .map_or(0, |attempt| attempt.number + 1);
            match PAUSES.get(number) {
                Some(pause) if !established && self.send(now, id, tables, namespaces) => {
                    self.unanswered.insert(
                        id,
                        Attempt {
                            number,
                            next: now + *pause,
                        },
                    );
                }
                _ => {
                    self.unanswered.remove(&id);
                }
            }
        }
    }

    pub fn next_deadline(&self) -> Option<Ns> {
        self.unanswered.values().map(|attempt| attempt.next).min()
    }

    fn send(&mut self, now: Ns, id: ConnId, tables: &Tables, namespaces: &mut Namespaces) -> bool {
        let Some(view) = tables.view(id) else {
            return false;
        };
        let Some(packet) = view.held_syn(now) else {
            return false;
        };
        let sent = namespaces
            .open(view.netns(), view.record.pid)
            .and_then(|namespace| namespace.raw.send(&view.route(), &packet));
        match sent {
            Ok(()) => self.reported = false,
            // ECONNREFUSED here is an earlier ICMP answer, reported on the raw socket.
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                debug!(%id, %error, "SYN not sent")
            }
            Err(error) if !self.reported => {
                self.reported = true;
                warn!(
                    %error,
                    "cannot send a held connection's SYN again; until that works, an admitted connect completes only \
                     when TCP retries by itself, which can take a minute (CAP_NET_RAW and CAP_SYS_ADMIN are needed)"
                );
            }
            Err(error) => debug!(%id, %error, "SYN not sent"),
        }
        true
    }
}
