//! Who has a slot, and what is left of the budget, as far as the policy has heard.
//!
//! Keeps *credits + slots ≤ budget*, or no credits at all where slots alone reach the budget: a lowered budget revokes
//! nothing.

use std::collections::HashMap;

use shaper_common::{CLASS_COUNT, Class};

use super::{AccountId, ConnHandle, Ns, queue::Waiter};

/// A connection's slot.
#[derive(Debug)]
pub(super) struct Holder {
    pub(super) class: Class,
    pub(super) account: Option<AccountId>,
    /// Whether its start has been counted. A slot found in the kernel's maps may be older than the news of it.
    pub(super) counted: bool,
    /// How it got here, if the policy admitted it and may still hear that this failed.
    pub(super) admission: Option<Admission>,
}

/// What it takes to undo an admission.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) waiter: Waiter,
    pub(super) at: Ns,
    /// Slots in use just before.
    pub(super) found: u32,
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    budget: u32,
    credits: u32,
    holders: HashMap<ConnHandle, Holder>,
    by_class: [u32; CLASS_COUNT],
    by_account: HashMap<AccountId, [u32; CLASS_COUNT]>,
}

impl Ledger {
    /// Slots in use.
    pub(super) fn slots(&self) -> u32 {
        self.holders.len() as u32
    }

    /// Slots that are not in use; some of them may be promised as credits.
    pub(super) fn free(&self) -> u32 {
        self.budget.saturating_sub(self.slots())
    }

    pub(super) fn budget(&self) -> u32 {
        self.budget
    }

    pub(super) fn credits(&self) -> u32 {
        self.credits
    }

    pub(super) fn by_class(&self) -> [u32; CLASS_COUNT] {
        self.by_class
    }

    pub(super) fn account_slots(&self, account: AccountId) -> u32 {
        self.by_account
            .get(&account)
            .map_or(0, |by_class| by_class.iter().sum())
    }

    /// Accounts with a slot, and how many they have by class.
    pub(super) fn accounts(&self) -> impl Iterator<Item = (AccountId, [u32; CLASS_COUNT])> {
        self.by_account
            .iter()
            .map(|(&account, &by_class)| (account, by_class))
    }

    pub(super) fn conns(&self) -> impl Iterator<Item = ConnHandle> {
        self.holders.keys().copied()
    }

    pub(super) fn holders(&self) -> impl Iterator<Item = (ConnHandle, &Holder)> {
        self.holders.iter().map(|(&conn, holder)| (conn, holder))
    }

    pub(super) fn holder_mut(&mut self, conn: ConnHandle) -> Option<&mut Holder> {
        self.holders.get_mut(&conn)
    }

    pub(super) fn holds(&self, conn: ConnHandle) -> bool {
        self.holders.contains_key(&conn)
    }

    /// The connection takes a slot. It must not have one.
    pub(super) fn take(&mut self, conn: ConnHandle, holder: Holder) {
        self.by_class[holder.class.index()] += 1;
        if let Some(account) = holder.account {
            self.by_account.entry(account).or_default()[holder.class.index()] += 1;
        }
        let before = self.holders.insert(conn, holder);
        debug_assert!(before.is_none(), "{conn:?} had a slot already");
        self.trim();
    }

    /// The connection's slot comes back; `None`: it had none.
    pub(super) fn give_back(&mut self, conn: ConnHandle) -> Option<Holder> {
        let holder = self.holders.remove(&conn)?;
        self.by_class[holder.class.index()] -= 1;
        if let Some(account) = holder.account
            && let Some(by_class) = self.by_account.get_mut(&account)
        {
            by_class[holder.class.index()] -= 1;
            if by_class.iter().all(|&slots| slots == 0) {
                self.by_account.remove(&account);
            }
        }
        Some(holder)
    }

    pub(super) fn spend_credit(&mut self) {
        self.credits = self.credits.saturating_sub(1);
    }

    pub(super) fn add_credit(&mut self) {
        self.set_credits(self.credits.saturating_add(1));
    }

    /// Sets the credits to this or, if that is less, to what the budget leaves.
    pub(super) fn set_credits(&mut self, credits: u32) {
        self.credits = credits;
        self.trim();
    }

    pub(super) fn set_budget(&mut self, budget: u32) {
        self.budget = budget;
        self.trim();
    }

    fn trim(&mut self) {
        self.credits = self.credits.min(self.free());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(class: Class, account: u64) -> Holder {
        Holder {
            class,
            account: Some(AccountId(account)),
            counted: true,
            admission: None,
        }
    }

    /// D2: credits give way to slots, and slots to nothing.
    #[test]
    fn credits_and_slots_stay_within_the_budget() {
        let mut ledger = Ledger::default();
        ledger.set_budget(3);
        ledger.set_credits(9);
        assert_eq!(ledger.credits(), 3);
        ledger.take(ConnHandle(1), holder(Class::Bulk, 1));
        ledger.take(ConnHandle(2), holder(Class::Bulk, 1));
        assert_eq!((ledger.credits(), ledger.free()), (1, 1));
        ledger.set_budget(1);
        assert_eq!((ledger.slots(), ledger.credits(), ledger.free()), (2, 0, 0));
    }

    /// E4, A9: when everybody has left, nothing is left of anybody.
    #[test]
    fn an_account_without_slots_is_forgotten() {
        let mut ledger = Ledger::default();
        ledger.take(ConnHandle(1), holder(Class::Bulk, 1));
        ledger.take(ConnHandle(2), holder(Class::Default, 1));
        assert_eq!(ledger.account_slots(AccountId(1)), 2);
        assert!(ledger.give_back(ConnHandle(1)).is_some());
        assert!(ledger.give_back(ConnHandle(1)).is_none());
        ledger.give_back(ConnHandle(2));
        assert_eq!(ledger.by_class(), [0; CLASS_COUNT]);
        assert_eq!(ledger.accounts().count(), 0);
    }
}
