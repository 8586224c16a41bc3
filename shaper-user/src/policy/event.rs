//! What the policy is told about one lane.
//!
//! Events of one connection come in order. They may come late, be lost, or repeat what a [`Picture`] has already told:
//! the kernel's own words are the truth and every decision is checked against them when it is carried out, so a wrong
//! belief here may delay somebody and never lets the lane exceed its budget.

use shaper_common::Class;

use super::{AccountId, ClientId, ConnHandle, Factor, Ns, Pause, Sign};

/// A connection that has a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenConn {
    pub conn: ConnHandle,
    pub class: Class,
    pub account: Option<AccountId>,
    pub client: ClientId,
    /// When the kernel gave it its slot.
    pub since: Ns,
}

/// A connection that waits for a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldConn {
    pub conn: ConnHandle,
    pub class: Class,
    pub account: Option<AccountId>,
    pub client: ClientId,
    pub stage: Stage,
    /// When the kernel began to hold it.
    pub since: Ns,
}

/// What is being held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The connect itself.
    Connect,
    /// The request, on a connection that is made.
    Request,
}

/// Why an admission could not be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmitFailure {
    /// The connection does not wait any more.
    Gone,
    /// The kernel had handed out the room in the meantime; news of that is on its way.
    NoRoom,
}

/// A lane as its kernel maps show it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Picture {
    /// Every connection that has a slot.
    pub open: Vec<OpenConn>,
    /// Every connection that waits.
    pub held: Vec<HeldConn>,
    /// Connections whose request is unanswered, and since when.
    pub unanswered: Vec<(ConnHandle, Ns)>,
    /// Credits that nobody has spent.
    pub credits: u32,
}

/// What of a lane outlives the controller (C6, C7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lasting {
    pub factor: Factor,
    /// When the factor last changed, or the gateway last asked for less. Means nothing while the factor is 1.
    pub calm_since: Ns,
    pub pause: Option<Pause>,
}

/// What a controller finds of a lane when it starts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    pub lasting: Option<Lasting>,
    pub picture: Picture,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The kernel opened a gate by itself: with a credit or, in a lane that observes, without.
    Opened(OpenConn),
    /// The same for a further request, on a parked connection.
    Resumed(OpenConn),
    /// A new waiter.
    Held(HeldConn),
    /// A connect was refused because the queue was full.
    Refused { class: Class },
    /// A slot came back. `refunded`: the kernel has already made it a credit again.
    Released { conn: ConnHandle, refunded: bool },
    /// A waiter's socket disappeared.
    Gone { conn: ConnHandle },
    /// A parked connection took a slot by force, because its response went on.
    Overrun(OpenConn),
    /// Answer to [`Action::Admit`](super::Action::Admit), if it failed.
    AdmitFailed { conn: ConnHandle, why: AdmitFailure },
    /// Answer to [`Action::SetCredits`](super::Action::SetCredits): the credits that the lane's word had right after it.
    Credits { outstanding: u32 },
    /// Nobody starts before its end. A pause never shortens one that is longer.
    Pause(Pause),
    /// The pause is over now.
    Resume,
    /// What the lane may use at a time, if that is less than its limit.
    Budget(u32),
    /// What the gateway did to a connection of this class.
    Gateway { class: Class, sign: Sign },
    /// What an earlier controller left. Before anything else happens in the lane.
    Restore(Lasting),
    /// The truth, which replaces what was believed. Waiters that are known keep their place.
    Reconcile(Picture),
}
