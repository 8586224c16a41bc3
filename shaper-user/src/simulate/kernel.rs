//! The kernel's part of one lane: what the connect programs and a release do to its word and its caps.
//!
//! Counterpart of `slot.rs` in the kernel object, for one CPU.

use std::collections::HashMap;

use shaper_common::{CLASS_COUNT, Class, SlotWord};

use crate::policy::{AccountId, LaneRules, Limits};

/// What becomes of a connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Open,
    Hold,
    Refuse,
}

/// Who asks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asker {
    pub(super) class: Class,
    pub(super) account: Option<AccountId>,
    /// The account's cap; `None`: it has none.
    pub(super) cap: Option<u32>,
}

#[derive(Debug)]
pub(super) struct KernelLane {
    word: SlotWord,
    observes: bool,
    reserve: u32,
    max_queue: u32,
    class_cap: [Option<u32>; CLASS_COUNT],
    class_slots: [u32; CLASS_COUNT],
    account_slots: HashMap<AccountId, u32>,
    waiting: [u32; CLASS_COUNT],
    /// Classes from this index on are held whatever the credits.
    barrier: usize,
}

impl KernelLane {
    pub(super) fn new(rules: &LaneRules) -> Self {
        Self {
            word: SlotWord::idle(0),
            observes: rules.observes(),
            reserve: 0,
            max_queue: rules.max_queue,
            class_cap: rules.class_cap,
            class_slots: [0; CLASS_COUNT],
            account_slots: HashMap::new(),
            waiting: [0; CLASS_COUNT],
            barrier: CLASS_COUNT,
        }
    }

    /// Requests in flight.
    pub(super) fn slots(&self) -> u32 {
        self.word.slots()
    }

    pub(super) fn connect(&mut self, asker: Asker) -> Decision {
        if self.observes {
            self.word = self.word.force();
            self.count_slot(asker);
            return Decision::Open;
        }
        if !self.someone_ahead(asker.class) && self.take(asker) {
            return Decision::Open;
        }
        if self.waiting.iter().sum::<u32>() >= self.max_queue {
            return Decision::Refuse;
        }
        self.waiting[asker.class.index()] += 1;
        Decision::Hold
    }

    fn someone_ahead(&self, class: Class) -> bool {
        let ahead: u32 = self.waiting[..=class.index()].iter().sum();
        ahead > 0 || self.barrier <= class.index()
    }

    fn take(&mut self, asker: Asker) -> bool {
        let used = |account| self.account_slots.get(&account).copied().unwrap_or(0);
        let class_full = self.class_cap[asker.class.index()]
            .is_some_and(|cap| self.class_slots[asker.class.index()] >= cap);
        let account_full = asker
            .account
            .zip(asker.cap)
            .is_some_and(|(account, cap)| used(account) >= cap);
        if class_full || account_full {
            return false;
        }
        let Some(spent) = self.word.spend(self.floor(asker.class)) else {
            return false;
        };
        self.word = spent;
        self.count_slot(asker);
        true
    }

    fn floor(&self, class: Class) -> u32 {
        if class == Class::Interactive {
            0
        } else {
            self.reserve
        }
    }

    fn count_slot(&mut self, asker: Asker) {
        self.class_slots[asker.class.index()] += 1;
        if let Some(account) = asker.account {
            *self.account_slots.entry(account).or_default() += 1;
        }
    }

    /// The controller gives a waiter a slot, if `floor` are free besides it. `false`: there is no room.
    pub(super) fn admit(&mut self, asker: Asker, floor: u32) -> bool {
        let Some(taken) = self.word.admit(floor) else {
            return false;
        };
        self.word = taken;
        self.leave_queue(asker.class);
        self.count_slot(asker);
        true
    }

    /// A request ends. `true`: its slot has become a credit again.
    pub(super) fn release(&mut self, asker: Asker) -> bool {
        self.class_slots[asker.class.index()] -= 1;
        if let Some(slots) = asker
            .account
            .and_then(|account| self.account_slots.get_mut(&account))
        {
            *slots -= 1;
        }
        let before = self.word;
        let nobody_waits = self.waiting.iter().all(|&waiting| waiting == 0);
        self.word = before.release(nobody_waits);
        self.word.credits() > before.credits()
    }

    /// A waiter goes without a slot.
    pub(super) fn leave_queue(&mut self, class: Class) {
        self.waiting[class.index()] -= 1;
    }

    pub(super) fn set_limits(&mut self, limits: Limits) {
        self.word = self.word.with_budget(limits.effective);
        self.reserve = limits.reserve;
    }

    /// Returns the credits that there are then.
    pub(super) fn set_credits(&mut self, credits: u32, refunds: bool) -> u32 {
        self.word = self.word.with_refunds(refunds).with_credits(credits);
        self.word.credits()
    }

    pub(super) fn set_barrier(&mut self, barrier: Option<Class>) {
        self.barrier = barrier.map_or(CLASS_COUNT, Class::index);
    }
}
