//! What the policy wants done. The controller carries actions out in order and reports what failed.

use std::time::Duration;

use shaper_common::Class;

use super::{AccountId, ClientId, ConnHandle, Hindrance, LaneId, Limits};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Take a slot for this waiter and open its gate. In a lane that observes, take it by force.
    ///
    /// If that is not possible, answer with [`Event::AdmitFailed`](super::Event::AdmitFailed).
    Admit {
        lane: LaneId,
        conn: ConnHandle,
        /// The waiter's own class.
        class: Class,
        /// Slots that must be free, credits included, besides the one it takes: the reserve, or what interactive work does
        /// not use of it. Whatever the floor, work of the other classes may never use more than *budget − reserve*.
        floor: u32,
        wait: Duration,
    },
    /// Let the connection be made and hold its request instead. It stays a waiter.
    PassConnect { lane: LaneId, conn: ConnHandle },
    /// End this waiter: it has waited as long as its class may.
    Expire(Expiry),
    /// Govern this waiter no longer: its lane is gone.
    LetGo { lane: LaneId, conn: ConnHandle },
    /// Set what the lane may use, the credits trimmed to it.
    SetLimits { lane: LaneId, limits: Limits },
    /// Set the unspent credits, and whether the kernel may turn a released slot into a credit by itself.
    ///
    /// Answer with [`Event::Credits`](super::Event::Credits).
    SetCredits {
        lane: LaneId,
        credits: u32,
        refunds: bool,
    },
    /// Hold newcomers of this class or a lower one whatever the credits; `None`: no such barrier.
    SetBarrier {
        lane: LaneId,
        barrier: Option<Class>,
    },
}

/// A queue timeout: all that its log line needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    pub lane: LaneId,
    pub conn: ConnHandle,
    pub class: Class,
    pub account: Option<AccountId>,
    pub client: ClientId,
    /// Since the ticket's arrival.
    pub wait: Duration,
    /// The place in line, the first being 1. Counted up to [`POSITION_MAX`](super::POSITION_MAX).
    pub position: u32,
    /// Waiters in the lane, this one included.
    pub queued: u32,
    /// Slots in use in the lane.
    pub in_flight: u32,
    /// What kept it from starting at the end.
    pub hindrance: Hindrance,
}
