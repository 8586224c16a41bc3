//! Is a gateway slow? The time to the first byte of an answer, now and as usual.
//!
//! Prompts differ in length and so do first bytes, often by a factor of ten within one lane, so no fixed ratio would do.
//! The question asked is the sign test's: if nothing had changed, each answer would come later than the slowest
//! twentieth of the lane's own history in one case out of twenty, whatever the shape of that history. More than half of
//! the latest six or more doing so is chance in about one of ten thousand looks (15 × 0.05⁴), and a tenfold slowdown does
//! it at once.
//!
//! A median and a quantile of ranks are moved by no outlier; what a lane does while it is slow is not learnt as usual,
//! or every incident would end by itself; and what stays slow for half an hour is the new usual, or some would never end.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use super::{ConnHandle, Ns};

/// The latest answers: those of this time...
const LATEST: Duration = Duration::from_secs(10);
/// ... or, if these are too few to tell anything, this many...
const ENOUGH: usize = 6;
/// ... but none older than this.
const STALE: Duration = Duration::from_secs(60);
/// The most answers that are looked at; in a busy lane these are the last of `LATEST`.
const LATEST_MAX: usize = 64;

/// Answers before which there is no "usual".
const LEARNT_ENOUGH: usize = 20;
/// The history is kept in slices of this length, of each no more than some samples, so that a busy minute does not outweigh
/// a quiet hour.
const SLICE: Duration = Duration::from_secs(10);
const SAMPLES_A_SLICE: usize = 8;
/// An hour of traffic.
const SLICES: usize = 360;

/// The slowest share of the history that is no surprise, in per cent.
const ORDINARY: usize = 95;
/// Slow is at least this many times the usual median...
const RATIO: u32 = 3;
/// ... and at least this much more: a millisecond for a tenth of one is no incident.
const MARGIN: Duration = Duration::from_millis(250);

/// After so long the slowness is the new usual.
const ACCEPTED: Duration = Duration::from_secs(30 * 60);

/// First bytes that take longer than usual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slowness {
    /// The median of the latest, those counted in that have not come yet.
    pub now: Duration,
    /// The median of the history.
    pub usual: Duration,
}

/// What a lane knows of its gateway's first bytes.
#[derive(Debug, Default)]
pub(super) struct FirstBytes {
    /// The latest answers, oldest first: when each came, and how long it took.
    latest: VecDeque<(Ns, Duration)>,
    /// Requests that were unanswered at the last look, and since when.
    unanswered: HashMap<ConnHandle, Ns>,
    history: History,
    slow_since: Option<Ns>,
}

#[derive(Debug, Default)]
struct History {
    /// By index of the slice, oldest first.
    slices: VecDeque<(u64, Vec<Duration>)>,
    usual: Option<Usual>,
}

#[derive(Clone, Copy, Debug)]
struct Usual {
    median: Duration,
    /// An answer that takes longer is slow.
    ordinary: Duration,
}

impl FirstBytes {
    /// A first byte came.
    pub(super) fn answered(&mut self, now: Ns, conn: ConnHandle, after: Duration) {
        self.unanswered.remove(&conn);
        self.take(now, after);
    }

    /// A client gave up on its answer, which would have taken longer than this: that says something only if it already
    /// was slow.
    pub(super) fn gave_up(&mut self, now: Ns, conn: ConnHandle, after: Duration) {
        self.unanswered.remove(&conn);
        if self
            .history
            .usual
            .is_some_and(|usual| after > usual.ordinary)
        {
            self.take(now, after);
        }
    }

    /// The connection has no request under way any more.
    pub(super) fn ended(&mut self, conn: ConnHandle) {
        self.unanswered.remove(&conn);
    }

    /// Every request that is unanswered now, and since when.
    pub(super) fn set_unanswered(
        &mut self,
        unanswered: impl IntoIterator<Item = (ConnHandle, Ns)>,
    ) {
        self.unanswered = unanswered.into_iter().collect();
    }

    /// The median of the history; `None`: too few answers yet.
    pub(super) fn usual(&self) -> Option<Duration> {
        self.history.usual.map(|usual| usual.median)
    }

    /// Whether first bytes take longer than usual, at this moment.
    pub(super) fn slowness(&self, now: Ns) -> Option<Slowness> {
        let usual = self.history.usual?;
        // Those that have not come yet are among the slow once they would be by far: who asks at a random moment finds
        // more long ones than short ones under way.
        let overdue = self
            .unanswered
            .values()
            .map(|&since| now.since(since))
            .filter(|&age| age > usual.ordinary * 2);
        let mut latest: Vec<Duration> = overdue.collect();
        for &(at, after) in self.latest.iter().rev() {
            let age = now.since(at);
            if age >= STALE || (age >= LATEST && latest.len() >= ENOUGH) {
                break;
            }
            latest.push(after);
        }
        let slow = latest
            .iter()
            .filter(|&&after| after > usual.ordinary)
            .count();
        if latest.len() < ENOUGH || slow * 2 <= latest.len() {
            return None;
        }
        latest.sort_unstable();
        Some(Slowness {
            now: latest[latest.len() / 2],
            usual: usual.median,
        })
    }

    fn take(&mut self, now: Ns, after: Duration) {
        self.latest.push_back((now, after));
        self.note_slowness(now);
        while self.latest.len() > ENOUGH
            && let Some(&(at, after)) = self.latest.front()
            && (now.since(at) >= LATEST || self.latest.len() > LATEST_MAX)
        {
            self.latest.pop_front();
            if self.slow_since.is_none() {
                self.history.learn(at, after);
            }
        }
    }

    fn note_slowness(&mut self, now: Ns) {
        if self.slowness(now).is_none() {
            self.slow_since = None;
            return;
        }
        let since = *self.slow_since.get_or_insert(now);
        if now.since(since) >= ACCEPTED {
            self.history = History::default();
            self.slow_since = None;
        }
    }
}

impl History {
    fn learn(&mut self, at: Ns, after: Duration) {
        let index = (at.since(Ns::default()).as_nanos() / SLICE.as_nanos()) as u64;
        match self.slices.back_mut() {
            Some((last, samples)) if *last >= index => {
                if samples.len() == SAMPLES_A_SLICE {
                    return;
                }
                samples.push(after);
            }
            _ => self.slices.push_back((index, vec![after])),
        }
        if self.slices.len() > SLICES {
            self.slices.pop_front();
        }
        self.usual = self.work_out();
    }

    fn work_out(&self) -> Option<Usual> {
        let mut samples: Vec<_> = self.slices.iter().flat_map(|(_, s)| s).copied().collect();
        if samples.len() < LEARNT_ENOUGH {
            return None;
        }
        samples.sort_unstable();
        let median = samples[samples.len() / 2];
        let late = samples[(samples.len() * ORDINARY).div_ceil(100) - 1];
        Some(Usual {
            median,
            ordinary: late.max(median * RATIO).max(median + MARGIN),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);

    /// A lane with `clients` that ask again as soon as they have their answer.
    struct Lane {
        now: Ns,
        first_bytes: FirstBytes,
        /// State of a small generator (Marsaglia's xorshift), so that every run is the same.
        random: u64,
    }

    impl Lane {
        fn new(seed: u64) -> Self {
            Self {
                now: Ns(1_000_000_000_000),
                first_bytes: FirstBytes::default(),
                random: seed * 2_654_435_761 + 1,
            }
        }

        /// Uniform in 0..1.
        fn uniform(&mut self) -> f64 {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            (self.random >> 11) as f64 / (1u64 << 53) as f64
        }

        /// Log-normal around `median`: two thirds within a factor of e^`spread`.
        fn log_normal(&mut self, median: Duration, spread: f64) -> Duration {
            let (a, b) = (1.0 - self.uniform(), self.uniform());
            let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
            median.mul_f64((spread * normal).exp())
        }

        /// Answers come every `pause`, each of some time; returns how many of them found the lane slow.
        fn answers(&mut self, count: u32, pause: Duration, median: Duration, spread: f64) -> u32 {
            (0..count)
                .filter(|_| {
                    self.now = self.now + pause;
                    let after = self.log_normal(median, spread);
                    self.first_bytes.answered(self.now, ConnHandle(0), after);
                    self.first_bytes.slowness(self.now).is_some()
                })
                .count() as u32
        }
    }

    /// A18: a gateway slowed tenfold is told within 30 s, by three clients that wait for each answer, and says by how much.
    #[test]
    fn a_tenfold_slowdown_is_told_within_30_seconds() {
        for spread in [0.1, 0.5, 1.0] {
            let mut lane = Lane::new(7);
            lane.answers(400, 300 * MS, 900 * MS, spread);
            let usual = lane.first_bytes.usual().unwrap();
            assert!(usual > 700 * MS && usual < 1100 * MS, "{usual:?}");
            // Three clients whose answers take 9 s each.
            lane.now = lane.now + 9 * SECOND;
            let told = (1..=8).find(|_| lane.answers(1, 3 * SECOND, 9 * SECOND, spread) > 0);
            let told = told.unwrap_or_else(|| panic!("spread {spread}: not told"));
            assert!(9 + told * 3 <= 30, "spread {spread}: after {told} answers");
        }
    }

    /// A18: few false alarms when prompts differ in length: ten thousand answers, two thirds of them within a factor of
    /// 2.7 around the median, others hundredfold apart.
    #[test]
    fn answers_of_different_length_are_no_slowdown() {
        let mut false_alarms = 0;
        for seed in 1..=10 {
            let mut lane = Lane::new(seed);
            lane.answers(200, SECOND, 900 * MS, 1.0);
            false_alarms += lane.answers(1000, 5 * SECOND, 900 * MS, 1.0);
        }
        assert!(false_alarms <= 10, "{false_alarms} of 10000 looks");
    }

    /// A18: a gateway that answers nothing at all is slow before it has answered.
    #[test]
    fn requests_that_are_never_answered_are_slow() {
        let mut lane = Lane::new(3);
        lane.answers(100, SECOND, 500 * MS, 0.3);
        let since = lane.now;
        let hung = (1..=6).map(|conn| (ConnHandle(conn), since));
        lane.first_bytes.set_unanswered(hung);
        assert_eq!(lane.first_bytes.slowness(since + SECOND), None);
        let slowness = lane.first_bytes.slowness(since + 20 * SECOND).unwrap();
        assert_eq!(slowness.now, 20 * SECOND);
        for conn in 1..=6 {
            lane.first_bytes.ended(ConnHandle(conn));
        }
        assert_eq!(lane.first_bytes.slowness(since + 20 * SECOND), None);
    }

    /// A client that gives up early says nothing of the gateway; one that gives up late does.
    #[test]
    fn giving_up_counts_once_it_is_late() {
        let mut lane = Lane::new(3);
        lane.answers(100, SECOND, 500 * MS, 0.1);
        lane.now = lane.now + LATEST;
        for (after, slow) in [(SECOND, false), (10 * SECOND, true)] {
            for _ in 0..6 {
                lane.first_bytes.gave_up(lane.now, ConnHandle(1), after);
            }
            assert_eq!(
                lane.first_bytes.slowness(lane.now).is_some(),
                slow,
                "{after:?}"
            );
        }
    }

    /// An incident does not end by becoming usual, unless it lasts for half an hour.
    #[test]
    fn what_is_slow_is_not_learnt_until_it_has_lasted() {
        let mut lane = Lane::new(5);
        lane.answers(400, SECOND, 500 * MS, 0.5);
        lane.answers(20, SECOND, 5 * SECOND, 0.5);
        let usual = lane.first_bytes.usual();
        assert_eq!(lane.answers(980, SECOND, 5 * SECOND, 0.5), 980);
        assert_eq!(lane.first_bytes.usual(), usual);
        lane.answers(1800, SECOND, 5 * SECOND, 0.5);
        assert!(lane.first_bytes.usual().unwrap() > 4 * SECOND);
        assert_eq!(lane.answers(100, SECOND, 5 * SECOND, 0.5), 0);
        assert_eq!(lane.first_bytes.slowness(lane.now), None);
    }

    #[test]
    fn nothing_is_said_without_history_or_news() {
        let mut lane = Lane::new(5);
        assert_eq!(lane.answers(19, SECOND, 5 * SECOND, 0.5), 0);
        assert_eq!(lane.first_bytes.usual(), None);
        lane.answers(100, SECOND, 500 * MS, 0.5);
        lane.answers(20, SECOND, 50 * SECOND, 0.1);
        assert!(lane.first_bytes.slowness(lane.now).is_some());
        assert_eq!(lane.first_bytes.slowness(lane.now + STALE), None);
    }
}
