//! Connections from which no byte has come, or none ever came.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::clock::Moment;

/// One connection, by its client's port and when it was accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Accepted {
    port: u16,
    at: Moment,
}

#[derive(Debug, Default)]
pub(super) struct Unheard(Mutex<Vec<Accepted>>);

impl Unheard {
    pub(super) fn begin(&self, peer: SocketAddr) -> Accepted {
        let accepted = Accepted {
            port: peer.port(),
            at: Moment::now(),
        };
        self.all().push(accepted);
        accepted
    }

    /// A byte has come.
    pub(super) fn end(&self, accepted: Accepted) {
        let mut all = self.all();
        if let Some(index) = all.iter().rposition(|one| *one == accepted) {
            all.swap_remove(index);
        }
    }

    /// When connections from this port were accepted of which no byte has come.
    pub(super) fn from(&self, port: u16) -> Vec<Moment> {
        let all = self.all();
        let from_port = all.iter().filter(|one| one.port == port);
        from_port.map(|one| one.at).collect()
    }

    fn all(&self) -> MutexGuard<'_, Vec<Accepted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
