//! Places in line that outlive their sockets (A13).
//!
//! A client that gives up a connect and tries again is the same request to its user. When a waiter's socket disappears,
//! its ticket stays for `ticket_grace`; the next connection of the same process to the same lane takes it over.

use std::collections::BTreeMap;

use shaper_common::Class;

use super::{AccountId, ClientId, ConnHandle, Ns};

/// A place in line: earlier arrivals first. The number tells apart what arrived at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Place {
    pub(super) arrived: Ns,
    pub(super) number: u64,
}

/// The ticket of a waiter that went away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    pub(super) place: Place,
    pub(super) conn: ConnHandle,
    pub(super) class: Class,
    pub(super) account: Option<AccountId>,
    pub(super) client: ClientId,
    pub(super) gone_at: Ns,
}

#[derive(Debug, Default)]
pub(super) struct Tickets {
    by_client: BTreeMap<(ClientId, Place), (Ticket, Ns)>,
    by_lapse: BTreeMap<(Ns, Place), ClientId>,
}

impl Tickets {
    /// Keeps a ticket until `lapses`.
    pub(super) fn keep(&mut self, ticket: Ticket, lapses: Ns) {
        self.by_client
            .insert((ticket.client, ticket.place), (ticket, lapses));
        self.by_lapse.insert((lapses, ticket.place), ticket.client);
    }

    /// The earliest place that this client left behind and may still take over.
    pub(super) fn take(&mut self, client: ClientId, now: Ns) -> Option<Ticket> {
        const FIRST: Place = Place {
            arrived: Ns(0),
            number: 0,
        };
        let (&(_, place), &(ticket, lapses)) = self
            .by_client
            .range((client, FIRST)..)
            .take_while(|((owner, _), _)| *owner == client)
            .find(|(_, (_, lapses))| *lapses > now)?;
        self.by_client.remove(&(client, place));
        self.by_lapse.remove(&(lapses, place));
        Some(ticket)
    }

    /// Removes a ticket whose time is over.
    pub(super) fn lapse(&mut self, now: Ns) -> Option<Ticket> {
        let (lapses, place) = self.next_lapse_key().filter(|(lapses, _)| *lapses <= now)?;
        let client = self.by_lapse.remove(&(lapses, place))?;
        let (ticket, _) = self.by_client.remove(&(client, place))?;
        Some(ticket)
    }

    pub(super) fn next_lapse(&self) -> Option<Ns> {
        self.next_lapse_key().map(|(lapses, _)| lapses)
    }

    pub(super) fn len(&self) -> usize {
        self.by_client.len()
    }

    fn next_lapse_key(&self) -> Option<(Ns, Place)> {
        self.by_lapse.keys().next().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(client: u32, arrived: u64) -> Ticket {
        Ticket {
            place: Place {
                arrived: Ns(arrived),
                number: arrived,
            },
            conn: ConnHandle(arrived),
            class: Class::Default,
            account: None,
            client: ClientId(client),
            gone_at: Ns(50),
        }
    }

    /// A13: the earliest place goes first, and each place once.
    #[test]
    fn a_client_takes_over_its_own_earliest_place() {
        let mut tickets = Tickets::default();
        for (client, arrived) in [(7, 20), (7, 10), (8, 5)] {
            tickets.keep(ticket(client, arrived), Ns(100));
        }
        let taken: Vec<_> = (0..3)
            .map(|_| tickets.take(ClientId(7), Ns(60)).map(|t| t.place.arrived))
            .collect();
        assert_eq!(taken, [Some(Ns(10)), Some(Ns(20)), None]);
        assert_eq!(tickets.len(), 1);
    }

    /// A13, A9: a ticket that nobody came back for lapses, and cannot be taken from then on.
    #[test]
    fn a_ticket_lapses() {
        let mut tickets = Tickets::default();
        tickets.keep(ticket(7, 10), Ns(100));
        assert_eq!(tickets.next_lapse(), Some(Ns(100)));
        assert_eq!(tickets.lapse(Ns(99)), None);
        assert_eq!(tickets.take(ClientId(7), Ns(100)), None);
        assert_eq!(tickets.lapse(Ns(100)), Some(ticket(7, 10)));
        assert_eq!((tickets.len(), tickets.next_lapse()), (0, None));
    }
}
