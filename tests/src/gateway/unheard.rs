//! Connections from which no byte has come, or none ever came.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::Moment;

/// How far apart the two ends of a connection may date the same moment on a busy machine.
const AROUND: Duration = Duration::from_secs(3);

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

    pub(super) fn has(&self, port: u16, at: Moment) -> bool {
        let near = |one: &Accepted| one.at.since(at).max(at.since(one.at)) < AROUND;
        self.all().iter().any(|one| one.port == port && near(one))
    }

    fn all(&self) -> std::sync::MutexGuard<'_, Vec<Accepted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
