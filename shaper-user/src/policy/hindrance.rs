//! What keeps a waiter from starting.

use shaper_common::Class;

use super::{
    AccountId, Limits, Ns, PausedBy,
    account::AccountNames,
    lane::Lane,
    queue::{Waiter, effective_class},
};

/// The first of these that holds, in this order: what is on everybody, on the waiter's own kind, on the lane's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hindrance {
    /// The lane is paused.
    Pause(PausedBy),
    /// The waiter's account is at its cap.
    AccountCap { in_use: u32, cap: u32 },
    /// The waiter's class is at its cap.
    ClassCap { in_use: u32, cap: u32 },
    /// All that the lane may use is in use.
    Limit { in_use: u32, limits: Limits },
    /// What is free is for interactive work.
    Reserve { free: u32, reserve: u32 },
    /// Starts are spaced: by the lane's pace, or for some seconds after a pause.
    Spacing,
}

/// What the first in line waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub class: Class,
    pub account: Option<AccountId>,
    pub hindrance: Hindrance,
}

impl Lane {
    /// What the first in line waits for, at the same cost however many wait; `None`: nobody waits.
    pub(super) fn waiting(&self, now: Ns, names: &AccountNames) -> Option<Waiting> {
        let (first, _) = self.queue.in_order(now, self.rules.aging).next()?;
        Some(Waiting {
            class: first.class,
            account: first.account,
            hindrance: self.hindrance(first, now, names),
        })
    }

    /// What keeps this waiter of the lane's queue from starting.
    pub(super) fn hindrance(&self, waiter: &Waiter, now: Ns, names: &AccountNames) -> Hindrance {
        if let Some(pause) = self.pause {
            return Hindrance::Pause(pause.by);
        }
        let account_cap = waiter.account.and_then(|account| {
            let in_use = self.ledger.account_slots(account);
            let cap = names.cap(&self.rules, account)?;
            (in_use >= cap).then_some(Hindrance::AccountCap { in_use, cap })
        });
        let class_cap = || {
            let in_use = self.ledger.by_class()[waiter.class.index()];
            let cap = self.rules.class_cap[waiter.class.index()]?;
            (in_use >= cap).then_some(Hindrance::ClassCap { in_use, cap })
        };
        if let Some(cap) = account_cap.or_else(class_cap) {
            return cap;
        }
        let limits = self.limits();
        let free = self.ledger.free();
        let aging = self.rules.aging;
        let effective = effective_class(waiter.class, waiter.place.arrived, now, aging);
        if free > 0 && free <= self.floor(waiter.class, effective) {
            let reserve = limits.reserve;
            return Hindrance::Reserve { free, reserve };
        }
        if free > 0 && self.pacer.is_pacing(now) {
            return Hindrance::Spacing;
        }
        let in_use = self.ledger.slots();
        Hindrance::Limit { in_use, limits }
    }
}
