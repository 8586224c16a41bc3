//! Accounts: child cgroups of class cgroups, by name, with their caps in the kernel.

use std::{
    collections::{HashMap, HashSet},
    ffi::OsStr,
    path::PathBuf,
};

use shaper_common::{AccountKey, ConnId, MAX_ACCOUNTS};
use tracing::warn;

use crate::{
    kernel::{CgroupId, CgroupRoot, Tables},
    policy::{AccountId, LaneId, Policy},
    systemd::slice::account_of,
};

/// "No cap" in the kernel's words.
const NO_CAP: u32 = u32::MAX;

/// What is known of the accounts seen so far.
#[derive(Debug)]
pub struct Accounts {
    root: CgroupRoot,
    /// By the id of their cgroup; `None`: that is no account, see [`account_of`].
    names: HashMap<AccountId, Option<String>>,
    elements: HashMap<(LaneId, AccountId), u32>,
    /// Those of `elements` that the kernel does not find any more.
    retired: HashSet<(LaneId, AccountId)>,
    free: Vec<u32>,
}

impl Accounts {
    pub fn new(root: CgroupRoot) -> Self {
        let free = (0..MAX_ACCOUNTS).rev().collect();
        Self {
            root,
            names: HashMap::new(),
            elements: HashMap::new(),
            retired: HashSet::new(),
            free,
        }
    }

    /// Takes over the elements that an earlier controller has given out: those that connects find, and those that
    /// connections count on.
    pub fn adopt(&mut self, tables: &Tables) {
        let found = tables.accounts_known().into_iter().map(|(key, index)| {
            let lane = u16::try_from(key.lane).ok();
            (lane, key.cgroup, index)
        });
        let counted = tables.views().filter_map(|view| {
            let index = view.record.account.load().checked_sub(1)?;
            let lane = view.lane().map(|lane| lane.0);
            Some((lane, view.record.account_cgroup, index))
        });
        let known: Vec<_> = found.collect();
        for (lane, cgroup, index) in counted.chain(known) {
            if let Some(lane) = lane {
                self.elements
                    .insert((LaneId(lane), AccountId(cgroup)), index);
            }
        }
        let taken: HashSet<u32> = self.elements.values().copied().collect();
        self.free.retain(|index| !taken.contains(index));
    }

    /// Indices of the elements in use.
    pub fn elements(&self) -> impl Iterator<Item = u32> {
        self.elements.values().copied()
    }

    /// Whether an element is to be taken back at the next look.
    pub fn is_retiring(&self) -> bool {
        !self.retired.is_empty()
    }

    /// The name of an account: of its cgroup, or the id if that is gone already.
    pub fn name(&self, account: AccountId) -> String {
        let name = self.names.get(&account).cloned().flatten();
        name.unwrap_or_else(|| format!("cgroup-{}", account.0))
    }

    /// The account that a child cgroup of a class cgroup stands for, if it does for one; by its id, 0 for no such cgroup.
    pub fn of_cgroup(&self, id: u64) -> Option<AccountId> {
        let account = AccountId(id);
        (id != 0 && self.names.get(&account) != Some(&None)).then_some(account)
    }

    /// Whether it is known what the cgroup stands for.
    pub fn knows(&self, account: AccountId) -> bool {
        self.names.contains_key(&account)
    }

    /// Learns the account's name from the class cgroups, in which accounts live. `None`: it is none, or its cgroup is gone.
    pub fn learn(&mut self, account: AccountId, parents: &[PathBuf]) -> Option<&str> {
        let cgroup = self.root.child(parents, CgroupId(account.0))?;
        let text = |name: Option<&OsStr>| name.unwrap_or_default().to_string_lossy().into_owned();
        let class = text(cgroup.parent()?.file_name());
        let name = account_of(&class, &text(cgroup.file_name()));
        self.names.entry(account).or_insert(name).as_deref()
    }

    /// The kernel counts what is no account, too, if it is a child of a class cgroup; but without a cap.
    fn cap(&self, lane: LaneId, account: AccountId, policy: &Policy) -> u32 {
        let account = self.of_cgroup(account.0);
        let cap = account.and_then(|account| policy.account_cap(lane, account));
        cap.unwrap_or(NO_CAP)
    }

    /// Sees to it that a waiter's account has an element in the lane, if it has a cap there, and that the waiter is
    /// counted on it. Without a free element the account has no cap.
    pub fn settle(
        &mut self,
        lane: LaneId,
        account: AccountId,
        conn: ConnId,
        policy: &Policy,
        tables: &mut Tables,
    ) {
        let index = match self.elements.get(&(lane, account)) {
            Some(index) => *index,
            None => {
                let Some(index) = self.free.pop() else {
                    warn!(
                        account = self.name(account),
                        "too many accounts: this one has no cap"
                    );
                    return;
                };
                self.elements.insert((lane, account), index);
                index
            }
        };
        let Some(element) = tables.accounts.get(index) else {
            return;
        };
        element.cap.store(self.cap(lane, account, policy));
        if let Some(record) = tables.conns.get(conn.index)
            && tables.view(conn).is_some_and(|view| view.gate().waits())
        {
            record.account.store(index + 1);
        }
        self.retired.remove(&(lane, account));
        // The kernel takes slots on the account by itself from here on; before, it held each connect for us.
        if let Err(error) = tables.add_account(key(lane, account), index) {
            warn!(account = self.name(account), %error, "every connect of the account waits for the controller");
        }
    }

    /// Writes the caps of a lane whose rules have changed.
    pub fn recap(&self, lane: LaneId, policy: &Policy, tables: &Tables) {
        for ((of_lane, account), index) in &self.elements {
            if *of_lane == lane
                && let Some(element) = tables.accounts.get(*index)
            {
                element.cap.store(self.cap(lane, *account, policy));
            }
        }
    }

    /// Forgets accounts that have no connection in a lane any more: `used` has those that do.
    ///
    /// In two steps: a connect that found an element just before it was taken away may still take a slot on it, and the
    /// element must not be another account's by then. By the next call, seconds later, that connect is in `used`.
    pub fn retain(&mut self, used: &HashSet<(LaneId, AccountId)>, tables: &mut Tables) {
        self.retired.retain(|of| !used.contains(of));
        let unused = self.elements.keys().filter(|of| !used.contains(of));
        for of in unused.copied().collect::<Vec<_>>() {
            let (lane, account) = of;
            if self.retired.insert(of) {
                // Absent already: nothing to do. A connect from now on finds nothing and waits for `settle`.
                let _ = tables.remove_account(key(lane, account));
            } else if let Some(index) = self.elements.remove(&of) {
                self.retired.remove(&of);
                self.free.push(index);
            }
        }
        let names: HashSet<_> = used.iter().map(|(_, account)| *account).collect();
        self.names.retain(|account, _| names.contains(account));
    }
}

fn key(lane: LaneId, account: AccountId) -> AccountKey {
    AccountKey {
        cgroup: account.0,
        lane: u32::from(lane.0),
        reserved: 0,
    }
}
