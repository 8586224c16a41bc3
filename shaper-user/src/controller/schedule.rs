//! Times at which to look at connections again.

use std::collections::{BTreeSet, HashMap};

use shaper_common::ConnId;

use crate::policy::Ns;

/// One time for each connection, and the earliest of all at hand. Every operation costs the logarithm of their number.
#[derive(Debug, Default)]
pub struct Schedule {
    at: HashMap<ConnId, Ns>,
    order: BTreeSet<(Ns, ConnId)>,
}

impl Schedule {
    /// Sets the time for `id`, whatever it was.
    pub fn set(&mut self, id: ConnId, at: Ns) {
        self.remove(id);
        self.at.insert(id, at);
        self.order.insert((at, id));
    }

    /// Moves the time for `id` forward to `at`, if it has one that is later.
    pub fn hasten(&mut self, id: ConnId, at: Ns) {
        if self.at.get(&id).is_some_and(|present| *present > at) {
            self.set(id, at);
        }
    }

    pub fn remove(&mut self, id: ConnId) -> bool {
        match self.at.remove(&id) {
            Some(at) => self.order.remove(&(at, id)),
            None => false,
        }
    }

    pub fn len(&self) -> usize {
        self.at.len()
    }

    pub fn contains(&self, id: ConnId) -> bool {
        self.at.contains_key(&id)
    }

    /// Takes all whose time has come, the earliest first.
    pub fn take_due(&mut self, now: Ns) -> Vec<ConnId> {
        let mut due = Vec::new();
        while let Some((at, id)) = self.order.first().copied()
            && at <= now
        {
            self.remove(id);
            due.push(id);
        }
        due
    }

    /// The earliest time.
    pub fn next(&self) -> Option<Ns> {
        self.order.first().map(|(at, _)| *at)
    }

    /// Keeps only those that `keep` names.
    pub fn retain(&mut self, keep: impl Fn(ConnId) -> bool) {
        self.at.retain(|id, _| keep(*id));
        self.order.retain(|(_, id)| keep(*id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(index: u32) -> ConnId {
        ConnId {
            index,
            generation: 1,
        }
    }

    #[test]
    fn what_is_due_comes_in_order_and_once() {
        let mut schedule = Schedule::default();
        schedule.set(id(1), Ns(30));
        schedule.set(id(2), Ns(10));
        schedule.set(id(3), Ns(20));
        schedule.set(id(1), Ns(5));
        assert_eq!(schedule.next(), Some(Ns(5)));
        assert_eq!(schedule.take_due(Ns(10)), [id(1), id(2)]);
        assert_eq!(schedule.take_due(Ns(10)), []);
        assert_eq!(schedule.next(), Some(Ns(20)));
    }

    #[test]
    fn a_time_is_hastened_and_never_put_off() {
        let mut schedule = Schedule::default();
        schedule.hasten(id(1), Ns(1));
        assert_eq!(schedule.next(), None);
        schedule.set(id(1), Ns(10));
        schedule.hasten(id(1), Ns(20));
        assert_eq!(schedule.next(), Some(Ns(10)));
        schedule.hasten(id(1), Ns(2));
        assert_eq!(schedule.next(), Some(Ns(2)));
        assert!(schedule.remove(id(1)));
        assert_eq!(schedule.next(), None);
    }
}
