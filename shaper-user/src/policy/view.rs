//! A lane as others see it: what the snapshot, the metrics and `top` are made of.

use std::{collections::BTreeMap, time::Duration};

use shaper_common::{CLASS_COUNT, Class};

use super::{
    AccountId, ClientId, ConnHandle, Counters, Diagnosis, Factor, GatewayError, Ns, Pause,
    SATURATED_AFTER, StartProfile, Trouble, Waiting, WouldHave, account::AccountNames, lane::Lane,
};

/// One lane at one instant.
#[derive(Clone, Debug)]
pub struct LaneView {
    pub name: String,
    pub limits: Limits,
    /// Slots in use, by class.
    pub in_flight: [u32; CLASS_COUNT],
    /// The most slots in use at once within the last five minutes.
    pub peak_in_flight: u32,
    /// Credits that the kernel has not spent, as far as the policy has heard.
    pub credits: u32,
    /// Waiters, by class.
    pub queued: [u32; CLASS_COUNT],
    /// Clients that went away while they waited and may still come back.
    pub tickets: u32,
    /// The longest that a present waiter has waited; `None`: nobody waits.
    pub oldest_wait: Option<Duration>,
    /// What the first in line waits for; `None`: nobody waits.
    pub waiting: Option<Waiting>,
    /// Half of the starts of the last five minutes waited no longer; `None`: nothing started.
    pub wait_p50: Option<Duration>,
    /// Nine in ten of the starts of the last five minutes waited no longer; `None`: nothing started.
    pub wait_p90: Option<Duration>,
    /// Within the last five minutes.
    pub queue_timeouts: u32,
    /// Within the last five minutes.
    pub refusals: u32,
    /// Clients that went away while they waited and did not come back in time, within the last five minutes.
    pub left: u32,
    /// Somebody has been waiting without a break for [`SATURATED_AFTER`] or longer.
    pub saturated: bool,
    pub pause: Option<Pause>,
    /// What adaptation leaves of limit and rates.
    pub factor: Factor,
    pub diagnosis: Diagnosis,
    /// What is wrong with the gateway, whatever the diagnosis.
    pub trouble: Option<Trouble>,
    pub first_byte: FirstByteView,
    /// Within the last five minutes, in the order of [`GatewayError::ALL`].
    pub gateway_errors: [u32; GatewayError::COUNT],
    /// Clients that went away before the first byte of their answer, within the last five minutes.
    pub gave_up: u32,
    /// In order of class and account.
    pub accounts: Vec<AccountView>,
    /// Since the lane was made.
    pub counters: Counters,
    /// Since the lane was made.
    pub starts: StartProfile,
    /// In a lane that observes and has a limit: what the limit would have done.
    pub would_have: Option<WouldHave>,
}

/// What most of the time is enough to know of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Slots in use.
    pub in_flight: u32,
    pub queued: u32,
    /// The longest that a present waiter has waited; `None`: nobody waits.
    pub oldest_wait: Option<Duration>,
}

/// How long first bytes take, from the moment a request began to leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FirstByteView {
    /// Half of the answers of the last five minutes began within this; `None`: there was none.
    pub p50: Option<Duration>,
    /// Nine in ten did.
    pub p90: Option<Duration>,
    /// The median of the lane's history; `None`: too short yet.
    pub usual: Option<Duration>,
}

/// What a lane may use, after everything that bounds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Slots, as configured; 0: none, the lane observes. A lane may also observe with a limit.
    pub limit: u32,
    /// Slots that the lane may use now: the budget, at most the limit.
    pub effective: u32,
    /// Slots of these that only interactive work may take.
    pub reserve: u32,
}

/// An account's share of one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountView {
    pub account: AccountId,
    pub class: Class,
    pub in_flight: u32,
    pub queued: u32,
}

/// One waiter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaiterView {
    pub conn: ConnHandle,
    pub class: Class,
    /// Where it stands now that it has aged.
    pub effective_class: Class,
    pub account: Option<AccountId>,
    pub client: ClientId,
    pub wait: Duration,
    /// The place in line, the first being 1.
    pub position: u32,
}

impl Lane {
    pub(super) fn view(&self, now: Ns, names: &AccountNames) -> LaneView {
        let slots = self.ledger.slots();
        let recent = &self.tally.recent;
        let [wait_p50, wait_p90] = recent.waits(now, [0.5, 0.9]);
        let [p50, p90] = recent.first_bytes(now, [0.5, 0.9]);
        let usual = self.health.first_bytes.usual();
        let trouble = self.health.trouble(now);
        LaneView {
            name: self.name.clone(),
            limits: self.limits(),
            in_flight: self.ledger.by_class(),
            peak_in_flight: recent.peak(now).max(slots),
            credits: self.ledger.credits(),
            queued: self.queue.by_class(),
            tickets: self.tickets.len() as u32,
            oldest_wait: self.oldest_wait(now),
            waiting: self.waiting(now, names),
            wait_p50,
            wait_p90,
            queue_timeouts: recent.timeouts(now),
            refusals: recent.refusals(now),
            left: recent.left(now),
            saturated: self
                .queue
                .occupied_since()
                .is_some_and(|since| now.since(since) >= SATURATED_AFTER),
            pause: self.pause,
            factor: self.adaptation.factor(),
            diagnosis: self.diagnosis(trouble),
            trouble,
            first_byte: FirstByteView { p50, p90, usual },
            gateway_errors: recent.errors(now),
            gave_up: recent.give_ups(now),
            accounts: self.account_views(),
            counters: self.tally.counters,
            starts: self.tally.starts.clone(),
            would_have: self.shadow.as_ref().map(|shadow| shadow.view(now)),
        }
    }

    pub(super) fn level(&self, now: Ns) -> Level {
        Level {
            in_flight: self.ledger.slots(),
            queued: self.queue.by_class().iter().sum(),
            oldest_wait: self.oldest_wait(now),
        }
    }

    fn oldest_wait(&self, now: Ns) -> Option<Duration> {
        let oldest = Class::ALL
            .into_iter()
            .filter_map(|class| self.queue.oldest_of(class));
        let arrived = oldest.map(|waiter| waiter.place.arrived).min()?;
        Some(now.since(arrived))
    }

    fn account_views(&self) -> Vec<AccountView> {
        let mut by_key = BTreeMap::<(Class, AccountId), (u32, u32)>::new();
        for (account, slots) in self.ledger.accounts() {
            for class in Class::ALL {
                by_key.entry((class, account)).or_default().0 = slots[class.index()];
            }
        }
        for (account, queued) in self.queue.accounts() {
            for class in Class::ALL {
                by_key.entry((class, account)).or_default().1 = queued[class.index()];
            }
        }
        by_key
            .into_iter()
            .filter(|&(_, counts)| counts != (0, 0))
            .map(|((class, account), (in_flight, queued))| AccountView {
                account,
                class,
                in_flight,
                queued,
            })
            .collect()
    }

    pub(super) fn waiters(&self, now: Ns) -> impl Iterator<Item = WaiterView> {
        let in_order = self.queue.in_order(now, self.rules.aging);
        (1..)
            .zip(in_order)
            .map(move |(position, (waiter, effective_class))| WaiterView {
                conn: waiter.conn,
                class: waiter.class,
                effective_class,
                account: waiter.account,
                client: waiter.client,
                wait: now.since(waiter.place.arrived),
                position,
            })
    }
}
