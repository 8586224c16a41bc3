//! The waiters of one lane, in line.
//!
//! Within a class the order is that of arrival, and an older waiter never ranks below a younger one of its class, however
//! they age. So the next in line is always the first of one of three lists, and no list needs re-sorting as time passes.
//! Accounts that are at their cap are skipped without a look at their waiters: each account has its own lists, and only
//! the first of each account that has room stands in `ready`. Every operation costs the logarithm of the number of waiters.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    iter::Peekable,
    time::Duration,
};

use shaper_common::{CLASS_COUNT, Class};

use super::{AccountId, ClientId, ConnHandle, HeldConn, Ns, Stage, ticket::Place};

/// Waiters in order of arrival.
type Line = BTreeMap<Place, ConnHandle>;

#[derive(Clone, Copy, Debug)]
pub(super) struct Waiter {
    pub(super) conn: ConnHandle,
    pub(super) class: Class,
    pub(super) account: Option<AccountId>,
    pub(super) client: ClientId,
    pub(super) stage: Stage,
    /// When this socket began to wait. Its ticket may be older.
    pub(super) since: Ns,
    pub(super) place: Place,
}

impl Waiter {
    /// The waiter as the kernel told of it.
    pub(super) fn as_held(&self) -> HeldConn {
        HeldConn {
            conn: self.conn,
            class: self.class,
            account: self.account,
            client: self.client,
            stage: self.stage,
            since: self.since,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    waiters: HashMap<ConnHandle, Waiter>,
    /// Everyone, by class.
    lines: [Line; CLASS_COUNT],
    /// By class, the first waiter of each account that has room.
    ready: [Line; CLASS_COUNT],
    accounts: HashMap<Option<AccountId>, AccountLines>,
    /// Those whose connect is held, by when that began.
    connecting: BTreeSet<(Ns, ConnHandle)>,
    /// Since when somebody has been waiting without a break.
    occupied_since: Option<Ns>,
}

#[derive(Debug)]
struct AccountLines {
    lines: [Line; CLASS_COUNT],
    /// The account is at its cap.
    full: bool,
}

/// The class that a waiter counts as after aging: one step up for every `aging` waited. Zero: no aging.
pub(super) fn effective_class(class: Class, arrived: Ns, now: Ns, aging: Duration) -> Class {
    let steps = now.since(arrived).as_nanos().checked_div(aging.as_nanos());
    let steps = steps.unwrap_or(0).min(CLASS_COUNT as u128) as usize;
    Class::ALL[class.index().saturating_sub(steps)]
}

/// When a waiter next rises a step, if it can.
pub(super) fn next_step(class: Class, arrived: Ns, now: Ns, aging: Duration) -> Option<Ns> {
    let effective = effective_class(class, arrived, now, aging);
    if aging.is_zero() || effective == Class::ALL[0] {
        return None;
    }
    let steps = class.index() - effective.index();
    Some(arrived + aging.saturating_mul(steps as u32 + 1))
}

impl Queue {
    pub(super) fn len(&self) -> u32 {
        self.waiters.len() as u32
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(super) fn by_class(&self) -> [u32; CLASS_COUNT] {
        self.lines.each_ref().map(|line| line.len() as u32)
    }

    pub(super) fn get(&self, conn: ConnHandle) -> Option<&Waiter> {
        self.waiters.get(&conn)
    }

    pub(super) fn conns(&self) -> impl Iterator<Item = ConnHandle> {
        self.waiters.keys().copied()
    }

    pub(super) fn occupied_since(&self) -> Option<Ns> {
        self.occupied_since
    }

    /// Adds a waiter that is not in the queue. `full`: its account is at its cap, if nobody of it waits yet.
    pub(super) fn insert(&mut self, waiter: Waiter, full: bool) {
        let Waiter {
            conn, class, place, ..
        } = waiter;
        let class = class.index();
        // This socket has been waiting since then, whether or not the queue knew of it.
        let occupied_since = self.occupied_since.get_or_insert(waiter.since);
        *occupied_since = waiter.since.min(*occupied_since);
        self.lines[class].insert(place, conn);
        let account = self
            .accounts
            .entry(waiter.account)
            .or_insert_with(|| AccountLines {
                lines: Default::default(),
                full,
            });
        let line = &mut account.lines[class];
        if let Some((&first, _)) = line.first_key_value() {
            self.ready[class].remove(&first);
        }
        line.insert(place, conn);
        account.show_first(class, &mut self.ready);
        if waiter.stage == Stage::Connect {
            self.connecting.insert((waiter.since, conn));
        }
        self.waiters.insert(conn, waiter);
    }

    pub(super) fn remove(&mut self, conn: ConnHandle) -> Option<Waiter> {
        let waiter = self.waiters.remove(&conn)?;
        let class = waiter.class.index();
        self.lines[class].remove(&waiter.place);
        self.ready[class].remove(&waiter.place);
        self.connecting.remove(&(waiter.since, conn));
        if let Some(account) = self.accounts.get_mut(&waiter.account) {
            account.lines[class].remove(&waiter.place);
            account.show_first(class, &mut self.ready);
            if account.lines.iter().all(BTreeMap::is_empty) {
                self.accounts.remove(&waiter.account);
            }
        }
        if self.waiters.is_empty() {
            self.occupied_since = None;
        }
        Some(waiter)
    }

    /// Notes whether an account is at its cap.
    pub(super) fn set_full(&mut self, account: AccountId, full: bool) {
        let Some(lines) = self.accounts.get_mut(&Some(account)) else {
            return;
        };
        if lines.full == full {
            return;
        }
        lines.full = full;
        for (line, ready) in lines.lines.iter().zip(&mut self.ready) {
            match line.first_key_value() {
                Some((first, _)) if full => ready.remove(first),
                Some((&first, &conn)) => ready.insert(first, conn),
                None => continue,
            };
        }
    }

    /// The accounts of all waiters.
    pub(super) fn account_ids(&self) -> Vec<AccountId> {
        self.accounts.keys().flatten().copied().collect()
    }

    /// The next in line of all classes that are `open`, accounts at their cap left out, and the class it counts as.
    pub(super) fn first(
        &self,
        now: Ns,
        aging: Duration,
        open: impl Fn(Class) -> bool,
    ) -> Option<(&Waiter, Class)> {
        let (effective, _, conn) = Class::ALL
            .into_iter()
            .filter(|&class| open(class))
            .filter_map(|class| {
                let (&place, &conn) = self.ready[class.index()].first_key_value()?;
                let effective = effective_class(class, place.arrived, now, aging);
                Some((effective, place, conn))
            })
            .min()?;
        Some((&self.waiters[&conn], effective))
    }

    /// The next in line of one class, accounts at their cap left out.
    pub(super) fn first_of(&self, class: Class) -> Option<&Waiter> {
        let (_, conn) = self.ready[class.index()].first_key_value()?;
        Some(&self.waiters[conn])
    }

    /// Who has waited longest in this class, whatever blocks them.
    pub(super) fn oldest_of(&self, class: Class) -> Option<&Waiter> {
        let (_, conn) = self.lines[class.index()].first_key_value()?;
        Some(&self.waiters[conn])
    }

    /// Whose connect has been held longest.
    pub(super) fn first_connecting(&self) -> Option<(Ns, ConnHandle)> {
        self.connecting.first().copied()
    }

    /// Moves a waiter to another stage; it keeps its place.
    pub(super) fn set_stage(&mut self, conn: ConnHandle, stage: Stage) {
        let Some(waiter) = self.waiters.get_mut(&conn) else {
            return;
        };
        waiter.stage = stage;
        let key = (waiter.since, conn);
        match stage {
            Stage::Connect => self.connecting.insert(key),
            Stage::Request => self.connecting.remove(&key),
        };
    }

    /// Everyone in line, the next one first, with the class each counts as. Caps are not looked at.
    pub(super) fn in_order(&self, now: Ns, aging: Duration) -> InOrder<'_> {
        InOrder {
            queue: self,
            now,
            aging,
            lines: self.lines.each_ref().map(|line| line.iter().peekable()),
        }
    }

    /// Accounts with waiters, and how many they have by class.
    pub(super) fn accounts(&self) -> impl Iterator<Item = (AccountId, [u32; CLASS_COUNT])> {
        self.accounts.iter().filter_map(|(account, lines)| {
            let queued = lines.lines.each_ref().map(|line| line.len() as u32);
            account.map(|account| (account, queued))
        })
    }
}

impl AccountLines {
    /// Puts the first of a line where the lane looks for it, unless the account is at its cap.
    fn show_first(&self, class: usize, ready: &mut [Line; CLASS_COUNT]) {
        if !self.full
            && let Some((&first, &conn)) = self.lines[class].first_key_value()
        {
            ready[class].insert(first, conn);
        }
    }
}

/// Iterator of [`Queue::in_order`].
#[derive(Debug)]
pub(super) struct InOrder<'a> {
    queue: &'a Queue,
    now: Ns,
    aging: Duration,
    lines: [Peekable<std::collections::btree_map::Iter<'a, Place, ConnHandle>>; CLASS_COUNT],
}

impl<'a> Iterator for InOrder<'a> {
    type Item = (&'a Waiter, Class);

    fn next(&mut self) -> Option<Self::Item> {
        let mut best: Option<(Class, Place, Class)> = None;
        for class in Class::ALL {
            if let Some(&(&place, _)) = self.lines[class.index()].peek() {
                let effective = effective_class(class, place.arrived, self.now, self.aging);
                if best.is_none_or(|(rank, first, _)| (effective, place) < (rank, first)) {
                    best = Some((effective, place, class));
                }
            }
        }
        let (effective, _, class) = best?;
        let (_, conn) = self.lines[class.index()].next()?;
        Some((&self.queue.waiters[conn], effective))
    }
}
