//! Accounts by name, for the caps that name them.

use std::collections::HashMap;

use super::{AccountId, LaneRules};

/// The names that accounts are known by.
#[derive(Debug, Default)]
pub(super) struct AccountNames(HashMap<AccountId, String>);

impl AccountNames {
    pub(super) fn set(&mut self, account: AccountId, name: String) {
        self.0.insert(account, name);
    }

    pub(super) fn forget(&mut self, account: AccountId) {
        self.0.remove(&account);
    }

    /// The most slots that the account may use under these rules; `None`: no cap.
    pub(super) fn cap(&self, rules: &LaneRules, account: AccountId) -> Option<u32> {
        // Most lanes name nobody: spare them the look-up.
        if rules.account_overrides.is_empty() {
            return rules.account_cap;
        }
        self.0
            .get(&account)
            .and_then(|name| rules.account_overrides.get(name).copied())
            .or(rules.account_cap)
    }
}
