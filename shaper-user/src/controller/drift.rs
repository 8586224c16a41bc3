//! Comparing the kernel's counts with its own records, and mending what has drifted apart.
//!
//! Counts and records change together by compare-and-swap, one after the other, so a difference seen once is work in
//! progress. One that is the same at two looks some seconds apart is drift.

use std::collections::{HashMap, HashSet};

use shaper_common::{CLASS_COUNT, Class, ConnId, Gate, Lane, SharedU32, SlotWord};
use tracing::warn;

use super::{
    Controller,
    hidden::{cookies, in_one_go},
};
use crate::{
    kernel::{ConnView, Tables, change_slots},
    metrics,
    policy::{LaneId, Ns},
};

/// Looks that must agree before a count is corrected.
const LOOKS: usize = 4;

/// Age at which a record whose socket TCP never took up is given back: a connect that failed at once (no route), on a
/// socket that its program keeps.
pub(super) const UNTRACKED_MAX_AGE: std::time::Duration = std::time::Duration::from_secs(5);

/// What the records of a lane add up to, or how far its counts are from that.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    slots: [i64; CLASS_COUNT],
    waiting: [i64; CLASS_COUNT],
    /// Differs from the sum over `slots` only in a difference.
    all_slots: i64,
    all_waiting: i64,
}

impl Sums {
    fn add(&mut self, class: Class, gate: Gate) {
        if gate.holds_slot() {
            self.slots[class.index()] += 1;
            self.all_slots += 1;
        } else if gate.waits() {
            self.waiting[class.index()] += 1;
            self.all_waiting += 1;
        }
    }

    fn counted(lane: &Lane) -> Self {
        let load =
            |words: &[SharedU32; CLASS_COUNT]| words.each_ref().map(|word| word.load().into());
        Self {
            slots: load(&lane.class_slots),
            waiting: load(&lane.waiting),
            all_slots: SlotWord::from_bits(lane.slots.load()).slots().into(),
            all_waiting: lane.queued.load().into(),
        }
    }

    fn minus(&self, other: &Self) -> Self {
        let minus =
            |a: &[i64; CLASS_COUNT], b: &[i64; CLASS_COUNT]| std::array::from_fn(|i| a[i] - b[i]);
        Self {
            slots: minus(&self.slots, &other.slots),
            waiting: minus(&self.waiting, &other.waiting),
            all_slots: self.all_slots - other.all_slots,
            all_waiting: self.all_waiting - other.all_waiting,
        }
    }

    /// Takes this difference off the lane's counts.
    fn correct(&self, lane: &Lane) {
        for class in Class::ALL {
            shift(&lane.class_slots[class.index()], -self.slots[class.index()]);
            shift(&lane.waiting[class.index()], -self.waiting[class.index()]);
        }
        shift(&lane.queued, -self.all_waiting);
        change_slots(lane, |word| {
            let slots = i64::from(word.slots()) - self.all_slots;
            Some(word.with_slots(u32::try_from(slots).unwrap_or(0)))
        });
    }
}

fn shift(word: &SharedU32, by: i64) {
    // Two's complement: adding a negative number wraps to a subtraction.
    word.add(by as u32);
}

/// What seemed wrong at the last look.
#[derive(Debug, Default)]
pub struct Drift {
    lanes: HashMap<LaneId, Sums>,
    /// Slots of the accounts' elements too many, by index.
    accounts: HashMap<u32, i64>,
    /// Connections of which a picture told something new, and no event since.
    unheard: HashSet<ConnId>,
    /// The namespace that [`Controller::reap`] comes to first, or the next one that there is.
    next_netns: u64,
}

impl Drift {
    /// A picture told something new of these connections. Events tell what pictures told: late, or never.
    pub fn doubt(&mut self, conns: HashSet<ConnId>) {
        self.unheard = conns;
    }

    /// Whether a count differs from the records, and needs a second look.
    pub fn is_pending(&self) -> bool {
        !self.lanes.is_empty() || !self.accounts.is_empty()
    }

    /// There is an event of this connection.
    pub fn heard_of(&mut self, conn: ConnId) {
        self.unheard.remove(&conn);
    }

    /// Compares the counts of every lane and account with the records, and mends what has differed in the same way before
    /// and differs so in every one of several looks now. Returns how many were mended; `name` is for the log.
    pub(super) fn mend(&mut self, tables: &Tables, name: impl Fn(LaneId) -> String) -> u64 {
        let records = sums_of_records(tables);
        self.mend_lanes(tables, &records, name) + self.mend_accounts(tables, &records)
    }

    fn mend_lanes(
        &mut self,
        tables: &Tables,
        records: &Records,
        name: impl Fn(LaneId) -> String,
    ) -> u64 {
        let before = std::mem::take(&mut self.lanes);
        let mut mended = 0;
        for (index, lane) in tables.lanes.iter() {
            let Ok(id) = u16::try_from(index).map(LaneId) else {
                continue;
            };
            let difference = Sums::counted(lane).minus(&records.lane(id));
            if difference == Sums::default() {
                continue;
            }
            if before.get(&id) == Some(&difference)
                && (0..LOOKS).all(|_| look(tables, id, lane) == Some(difference))
            {
                warn!(
                    lane = name(id),
                    ?difference,
                    "the lane's counts had drifted from its connections; corrected"
                );
                difference.correct(lane);
                mended += 1;
            } else {
                self.lanes.insert(id, difference);
            }
        }
        mended
    }

    fn mend_accounts(&mut self, tables: &Tables, records: &Records) -> u64 {
        let before = std::mem::take(&mut self.accounts);
        let mut mended = 0;
        for (index, account) in tables.accounts.iter() {
            let difference = i64::from(account.slots.load()) - records.account(index);
            if difference == 0 {
                continue;
            }
            let looks = || {
                let recorded = sums_of_records(tables).account(index);
                i64::from(account.slots.load()) - recorded
            };
            if before.get(&index) == Some(&difference) && (0..LOOKS).all(|_| looks() == difference)
            {
                warn!(
                    element = index,
                    difference, "an account's slots had drifted from its connections; corrected"
                );
                shift(&account.slots, -difference);
                mended += 1;
            } else {
                self.accounts.insert(index, difference);
            }
        }
        mended
    }
}

/// The difference now; `None` if the counts change during the look.
fn look(tables: &Tables, id: LaneId, lane: &Lane) -> Option<Sums> {
    let before = Sums::counted(lane);
    let recorded = sums_of_records(tables).lane(id);
    let after = Sums::counted(lane);
    (before == after).then(|| after.minus(&recorded))
}

/// What the records add up to.
#[derive(Debug, Default)]
struct Records {
    lanes: HashMap<LaneId, Sums>,
    /// Slots by the index of the account's element.
    accounts: HashMap<u32, i64>,
}

impl Records {
    fn lane(&self, id: LaneId) -> Sums {
        self.lanes.get(&id).copied().unwrap_or_default()
    }

    fn account(&self, index: u32) -> i64 {
        self.accounts.get(&index).copied().unwrap_or_default()
    }
}

fn sums_of_records(tables: &Tables) -> Records {
    let mut records = Records::default();
    for view in tables.views() {
        if let Some(lane) = view.lane() {
            let sums = records.lanes.entry(lane).or_default();
            sums.add(view.class(), view.gate());
        }
        if view.gate().holds_slot()
            && let Some(index) = view.record.account.load().checked_sub(1)
        {
            *records.accounts.entry(index).or_default() += 1;
        }
    }
    records
}

/// Whether [`Controller::reap`] may have something to do with the connection.
pub(super) fn is_to_be_reaped(view: &ConnView) -> bool {
    view.gate() == Gate::Doomed || view.record.tracked == 0
}

impl Controller {
    /// Counts what the last picture told and no event since: that news was lost. Call it when the ring has been read.
    pub(super) fn count_lost_news(&mut self) {
        let lost = std::mem::take(&mut self.drift.unheard);
        if !lost.is_empty() {
            warn!(
                connections = lost.len(),
                "news of connections was lost, or came twice; corrected from the kernel's records"
            );
            self.metrics
                .count_drift(metrics::Drift::News, lost.len() as u64);
        }
    }

    /// Mends counts that differ from the records.
    pub(super) fn mend_counts(&mut self) {
        let lanes = &self.lanes;
        let name = |id| {
            lanes
                .get(id)
                .map_or_else(|| id.0.to_string(), |lane| lane.config.name.clone())
        };
        let mended = self.drift.mend(&self.tables, name);
        self.metrics.count_drift(metrics::Drift::Counts, mended);
    }

    /// Gives back what belongs to connections that no program of ours will see the end of.
    pub(super) fn reap(&mut self, now: Ns, views: Vec<ConnView>) {
        let (doomed, untracked): (Vec<_>, Vec<_>) = views
            .into_iter()
            .partition(|view| view.gate() == Gate::Doomed);
        for view in doomed {
            // The event that asked for this was lost, or could not be carried out.
            self.end_socket(view.id);
        }
        let mut old: Vec<_> = untracked
            .into_iter()
            .filter(|view| now.since(view.since()) >= UNTRACKED_MAX_AGE)
            .collect();
        // Those of further namespaces have their turn in a later round.
        let next = self.drift.next_netns;
        old.sort_by_key(|view| view.netns().0.wrapping_sub(next));
        let (batches, _) = in_one_go(old, ConnView::netns);
        if let Some(last) = batches.last() {
            self.drift.next_netns = last[0].netns().0.wrapping_add(1);
        }
        for batch in batches {
            let connecting = self.connecting(&batch);
            for view in batch {
                if !connecting.contains(&view.record.cookie) {
                    self.reap_untracked(now, &view);
                }
            }
        }
    }

    /// The cookies of those that TCP is yet to connect, all of one namespace: with the first write, if the program has asked
    /// for that (TCP_FASTOPEN_CONNECT, `tcp_fastopen_defer_connect`). Whoever cannot be asked does not keep a slot by it.
    fn connecting(&mut self, batch: &[ConnView]) -> HashSet<u64> {
        /// Processes by which a namespace is sought: that takes a look at files of each.
        const PROCESSES: usize = 4;
        let netns = batch[0].netns();
        let mut pids: Vec<u32> = batch.iter().map(|view| view.record.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        let entered = pids
            .into_iter()
            .take(PROCESSES)
            .any(|pid| self.namespaces.open(netns, pid).is_ok());
        let asked = match self.namespaces.get(netns) {
            Some(namespace) if entered => namespace.diag.connecting(&cookies(batch)),
            _ => return HashSet::new(),
        };
        asked.unwrap_or_default()
    }

    fn reap_untracked(&mut self, now: Ns, view: &ConnView) {
        if let Some(lane) = view.lane()
            && let Some(gate) = self.tables.reap(view)
        {
            self.stillness.moved();
            if gate.holds_slot() {
                self.released(now, lane, view.id);
            } else if gate.waits() {
                self.gone(now, lane, view.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane() -> Lane {
        // SAFETY: all fields are integers.
        unsafe { std::mem::zeroed() }
    }

    /// E4: a stranded slot is found and freed, credits and budget untouched.
    #[test]
    fn a_difference_is_taken_off_every_count() {
        let lane = lane();
        lane.slots
            .store(SlotWord::idle(8).with_slots(3).with_credits(2).bits());
        lane.class_slots[2].store(3);
        lane.queued.store(4);
        lane.waiting[1].store(4);
        let mut recorded = Sums::default();
        recorded.add(Class::Bulk, Gate::Open);
        recorded.add(Class::Bulk, Gate::Lingering);
        recorded.add(Class::Default, Gate::HeldSyn);
        recorded.add(Class::Default, Gate::Parked);
        Sums::counted(&lane).minus(&recorded).correct(&lane);
        assert_eq!(Sums::counted(&lane), recorded);
        let word = SlotWord::from_bits(lane.slots.load());
        assert_eq!((word.slots(), word.credits(), word.budget()), (2, 2, 8));
    }

    #[test]
    fn counts_that_are_too_low_are_raised() {
        let lane = lane();
        let mut recorded = Sums::default();
        recorded.add(Class::Interactive, Gate::Open);
        recorded.add(Class::Interactive, Gate::HeldRequest);
        Sums::counted(&lane).minus(&recorded).correct(&lane);
        assert_eq!(Sums::counted(&lane), recorded);
    }
}
