//! Taking and giving back slots: the lane's word, the class cap and the account cap, together or not at all.

use shaper_common::{Account, Class, Conn, Counter, Lane, LaneMode, SlotWord};

use crate::{
    count::count,
    maps::{ACCOUNTS, LANES},
};

/// What becomes of a connect.
pub enum Decision {
    /// It has a slot.
    Open,
    /// It waits, counted in the lane's queue.
    Hold,
    /// The queue is full; this errno.
    Refuse(u32),
}

/// Whether the queue is bounded for this one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// `max_queue`.
    Queue,
    None,
}

/// The caps of an account in a lane.
pub enum Purse {
    /// No account, or accounts have no caps here.
    None,
    /// The account's element.
    Known(u32),
    /// The controller has not made an element yet: wait for it.
    Unknown,
}

#[inline(always)]
pub fn lane(index: u32) -> Option<&'static Lane> {
    // SAFETY: the lane array lives as long as the program; all its fields are atomics.
    LANES.get_ptr(index).map(|lane| unsafe { &*lane })
}

/// Decides about a new connect, or a request on a parked connection, of `class` in `lane`.
#[inline(always)]
pub fn decide(lane: &Lane, class: Class, purse: &Purse, bound: Bound) -> Decision {
    let by_class = class.index();
    if lane.mode.load() == LaneMode::Observe as u32 {
        force(lane, class, purse);
        return Decision::Open;
    }
    if !someone_ahead(lane, class, 0) && take(lane, class, purse) {
        return Decision::Open;
    }
    let ahead = lane.queued.add(1);
    if bound == Bound::Queue && ahead >= places(lane, purse) {
        lane.queued.sub(1);
        lane.refused[by_class].add(1);
        return Decision::Refuse(lane.refuse_errno.load());
    }
    lane.waiting[by_class].add(1);
    // A slot may have been refunded between our look and our entry in the queue; the releasing side looks at the queue
    // after its refund, so one of us sees the other.
    if !someone_ahead(lane, class, 1) && take(lane, class, purse) {
        leave_queue(lane, class);
        return Decision::Open;
    }
    Decision::Hold
}

/// Whether a request of `class` on a connection with a slot must give it up to somebody who waits.
#[inline(always)]
pub fn must_wait(lane: &Lane, class: Class) -> bool {
    lane.mode.load() == LaneMode::Enforce as u32 && someone_ahead(lane, class, 0)
}

/// How many may wait. An account without an element waits for the controller to make one, not for a slot: for that there
/// is a place even in a lane in which nobody may wait.
#[inline(always)]
fn places(lane: &Lane, purse: &Purse) -> u32 {
    let places = lane.max_queue.load();
    if let Purse::Unknown = purse {
        places.max(1)
    } else {
        places
    }
}

/// Whether a waiter of this class or a more urgent one, besides `own` of our own, must go first.
#[inline(always)]
fn someone_ahead(lane: &Lane, class: Class, own: u32) -> bool {
    let mut ahead = lane.waiting[0].load();
    if class >= Class::Default {
        ahead += lane.waiting[1].load();
    }
    if class >= Class::Bulk {
        ahead += lane.waiting[2].load();
    }
    ahead > own || lane.barrier.load() <= class as u32
}

/// Takes a slot with a credit.
#[inline(always)]
pub fn take(lane: &Lane, class: Class, purse: &Purse) -> bool {
    let by_class = class.index();
    let cap = lane.class_cap[by_class].load();
    if lane.class_slots[by_class]
        .update(|used| below(used, cap))
        .is_err()
    {
        return false;
    }
    if !take_account(purse) {
        lane.class_slots[by_class].sub(1);
        return false;
    }
    let floor = if class == Class::Interactive {
        0
    } else {
        lane.reserve.load()
    };
    let spend = |word| SlotWord::from_bits(word).spend(floor).map(SlotWord::bits);
    if lane.slots.update(spend).is_err() {
        give_account(purse);
        lane.class_slots[by_class].sub(1);
        return false;
    }
    true
}

#[inline(always)]
fn below(used: u32, cap: u32) -> Option<u32> {
    if used < cap { Some(used + 1) } else { None }
}

/// Takes a slot whatever the limit says.
#[inline(always)]
pub fn force(lane: &Lane, class: Class, purse: &Purse) {
    lane.class_slots[class.index()].add(1);
    if let Purse::Known(index) = purse
        && let Some(account) = account(*index)
    {
        account.slots.add(1);
    }
    if lane
        .slots
        .update(|word| Some(SlotWord::from_bits(word).force().bits()))
        .is_err()
    {
        count(Counter::Contended);
    }
}

#[inline(always)]
fn take_account(purse: &Purse) -> bool {
    match purse {
        Purse::None => true,
        Purse::Unknown => false,
        Purse::Known(index) => match account(*index) {
            None => true,
            Some(account) => {
                let cap = account.cap.load();
                account.slots.update(|used| below(used, cap)).is_ok()
            }
        },
    }
}

#[inline(always)]
fn give_account(purse: &Purse) {
    if let Purse::Known(index) = purse
        && let Some(account) = account(*index)
    {
        account.slots.sub(1);
    }
}

#[inline(always)]
fn account(index: u32) -> Option<&'static Account> {
    // SAFETY: the account array lives as long as the program; all its fields are atomics.
    ACCOUNTS.get_ptr(index).map(|account| unsafe { &*account })
}

/// How a slot came back.
pub struct GaveBack {
    /// The kernel turned it into a credit again.
    pub refunded: bool,
    /// Somebody waits for it: the controller must know now.
    pub awaited: bool,
}

/// Gives the slot of `conn` back. The caller has just changed its gate from one that holds a slot.
#[inline(always)]
pub fn give_back(lane: &Lane, conn: &Conn) -> GaveBack {
    lane.class_slots[Class::from_index(conn.class).index()].sub(1);
    match conn.account.load() {
        0 => {}
        index => give_account(&Purse::Known(index - 1)),
    }
    let refund = lane.queued.load() == 0;
    let change = |word| Some(SlotWord::from_bits(word).release(refund).bits());
    let refunded = match lane.slots.update(change) {
        Ok((before, after)) => {
            SlotWord::from_bits(after).credits() > SlotWord::from_bits(before).credits()
        }
        Err(_) => {
            count(Counter::Contended);
            false
        }
    };
    GaveBack {
        refunded,
        awaited: lane.queued.load() != 0,
    }
}

/// Whether somebody waits for the slot of `conn`, or the next one of its kind would have to.
#[inline(always)]
pub fn is_wanted(conn: &Conn) -> bool {
    let Some(lane) = lane(conn.lane) else {
        return false;
    };
    let class = Class::from_index(conn.class).index();
    let credits = SlotWord::from_bits(lane.slots.load()).credits();
    let full = credits <= lane.reserve.load()
        || lane.class_slots[class].load() >= lane.class_cap[class].load();
    let full = full
        || match conn.account.load() {
            0 => false,
            index => {
                account(index - 1).is_some_and(|account| account.slots.load() >= account.cap.load())
            }
        };
    // Where nobody may wait, the next one would be turned away.
    full || lane.queued.load() != 0 || lane.max_queue.load() == 0
}

/// Counts a waiter of `class`.
#[inline(always)]
pub fn join_queue(lane: &Lane, class: Class) {
    lane.queued.add(1);
    lane.waiting[class.index()].add(1);
}

/// Takes a waiter of `class` out of the queue's count. The caller has just changed its gate from one that waits.
#[inline(always)]
pub fn leave_queue(lane: &Lane, class: Class) {
    lane.waiting[class.index()].sub(1);
    lane.queued.sub(1);
}
