//! Counting what happens, hour by hour. Pure: what has been counted is taken out now and then, and kept elsewhere.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use shaper_common::Class;

use super::{
    hour::{ClassHour, Hour, LaneHour},
    peak::PeakWindow,
};
use crate::{
    metrics::Outcome,
    policy::{GatewayError, Ns},
    snapshot::ByClass,
};

/// Hours for which news waits to be taken or written, for each lane; then the oldest is given up.
pub const HOURS_HELD: usize = 48;

/// How the wall clock and the monotonic one belong together, at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WallClock {
    /// Since 1970 at the monotonic clock's zero.
    zero: Duration,
}

impl WallClock {
    /// Both clocks at one moment.
    pub fn new(now: Ns, wall: Timestamp) -> Self {
        let since_1970 = Duration::try_from(wall.duration_since(Timestamp::UNIX_EPOCH));
        Self {
            zero: since_1970
                .unwrap_or_default()
                .saturating_sub(now.since(Ns(0))),
        }
    }

    fn hour(self, at: Ns) -> Hour {
        Hour::of(self.zero + at.since(Ns(0)))
    }

    fn ms(self, at: Ns) -> u64 {
        u64::try_from((self.zero + at.since(Ns(0))).as_millis()).unwrap_or(u64::MAX)
    }

    /// `None`: before the monotonic clock began, so before this boot.
    fn instant(self, ms: u64) -> Option<Ns> {
        Some(Ns(0) + Duration::from_millis(ms).checked_sub(self.zero)?)
    }
}

/// What is new since the last time, by hour and lane.
pub type News = BTreeMap<(Hour, String), LaneHour>;

/// Adds what is new to what was new before, and gives up what is too old to hold on to.
pub fn add_news(news: &mut News, more: News) {
    for ((hour, lane), new) in more {
        let kept = news.entry((hour, lane.clone())).or_default();
        kept.merge(&new);
        let of_lane = news.keys().filter(|(_, other)| *other == lane);
        if of_lane.count() > HOURS_HELD
            && let Some(oldest) = news.keys().find(|(_, other)| *other == lane).cloned()
        {
            news.remove(&oldest);
        }
    }
}

/// The starts of the last minute, by lane: what a peak that spans a restart needs.
pub type Windows = BTreeMap<String, LaneWindows>;

/// One lane's starts of the last minute: milliseconds since 1970, and how many.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LaneWindows {
    all: Vec<(u64, u32)>,
    classes: ByClass<Vec<(u64, u32)>>,
}

/// What is new, and the windows as they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    pub news: News,
    /// `None`: as before.
    pub windows: Option<Windows>,
}

impl Batch {
    /// Whether there is nothing to keep.
    pub fn is_empty(&self) -> bool {
        self.news.is_empty() && self.windows.is_none()
    }
}

/// Counts what happens.
#[derive(Debug)]
pub struct Tally {
    clock: WallClock,
    news: News,
    windows: BTreeMap<String, Peaks>,
    /// There have been starts since the windows were taken.
    started: bool,
}

#[derive(Debug, Default)]
struct Peaks {
    all: PeakWindow,
    classes: ByClass<PeakWindow>,
}

impl Tally {
    pub fn new(clock: WallClock) -> Self {
        Self {
            clock,
            news: News::new(),
            windows: BTreeMap::new(),
            started: false,
        }
    }

    /// The wall clock may be set, and the host may sleep: tell it often.
    pub fn set_clock(&mut self, clock: WallClock) {
        self.clock = clock;
    }

    /// Goes on with windows of a run before.
    pub fn resume(&mut self, windows: &Windows) {
        let clock = self.clock;
        let entries = |of: &Vec<(u64, u32)>| -> Vec<(Ns, u32)> {
            of.iter()
                .filter_map(|&(ms, count)| Some((clock.instant(ms)?, count)))
                .collect()
        };
        for (lane, windows) in windows {
            let peaks = self.windows.entry(lane.clone()).or_default();
            peaks.all.resume(&entries(&windows.all));
            for class in Class::ALL {
                let of = windows.classes.get(class);
                peaks.classes.get_mut(class).resume(&entries(of));
            }
        }
    }

    /// A request that had waited `wait` started at `at`.
    pub fn start(&mut self, at: Ns, lane: &str, class: Class, wait: Duration) {
        let counted = self.class(at, lane, class);
        counted.starts += 1;
        counted.waits.add(wait);
        counted.wait_total += wait;
        self.started = true;
        let Self {
            clock,
            news,
            windows,
            ..
        } = self;
        let peaks = windows.entry(lane.to_owned()).or_default();
        peaks.all.count(at, |end, count| {
            let hour = entry(news, clock.hour(end), lane);
            hour.peak = hour.peak.max(count);
        });
        peaks.classes.get_mut(class).count(at, |end, count| {
            let of_class = entry(news, clock.hour(end), lane).classes.get_mut(class);
            of_class.peak = of_class.peak.max(count);
        });
    }

    /// `count` connections ended in this way.
    pub fn end(&mut self, at: Ns, lane: &str, class: Class, outcome: Outcome, count: u64) {
        if count > 0 {
            self.class(at, lane, class).ends.add(outcome, count);
        }
    }

    /// Something went wrong at the gateway.
    pub fn gateway_error(&mut self, at: Ns, lane: &str, class: Class, error: GatewayError) {
        self.class(at, lane, class).gateway_errors.add(error);
    }

    /// Takes what is new out.
    pub fn take(&mut self, now: Ns) -> Batch {
        let windows = std::mem::take(&mut self.started).then(|| self.windows(now));
        Batch {
            news: std::mem::take(&mut self.news),
            windows,
        }
    }

    /// Puts back what could not be kept: it is new again.
    pub fn put_back(&mut self, batch: Batch) {
        let since = std::mem::replace(&mut self.news, batch.news);
        add_news(&mut self.news, since);
        self.started |= batch.windows.is_some();
    }

    fn windows(&mut self, now: Ns) -> Windows {
        self.windows.retain(|_, peaks| !peaks.all.is_over(now));
        let clock = self.clock;
        let saved = |window: &PeakWindow| {
            window
                .entries()
                .map(|(at, count)| (clock.ms(at), count))
                .collect()
        };
        self.windows
            .iter()
            .map(|(lane, peaks)| {
                let windows = LaneWindows {
                    all: saved(&peaks.all),
                    classes: ByClass::from_fn(|class| saved(peaks.classes.get(class))),
                };
                (lane.clone(), windows)
            })
            .collect()
    }

    fn class(&mut self, at: Ns, lane: &str, class: Class) -> &mut ClassHour {
        let hour = self.clock.hour(at);
        entry(&mut self.news, hour, lane).classes.get_mut(class)
    }
}

fn entry<'a>(news: &'a mut News, hour: Hour, lane: &str) -> &'a mut LaneHour {
    news.entry((hour, lane.to_owned())).or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const HOUR: Duration = Duration::from_secs(3600);
    const LANE: &str = "reasoning";

    /// The monotonic clock began at this time of 1970, on the stroke of an hour.
    fn booted() -> (Tally, Ns) {
        let zero = Ns(0);
        let wall = Timestamp::from_second(500_000 * 3600).unwrap();
        (Tally::new(WallClock::new(zero, wall)), zero)
    }

    fn first_hour() -> Hour {
        Hour(500_000)
    }

    fn of(news: &News, hour: Hour) -> &LaneHour {
        &news[&(hour, LANE.to_owned())]
    }

    /// C11: everything is counted in its lane, class and hour.
    #[test]
    fn what_happens_is_counted_in_its_lane_class_and_hour() {
        let (mut tally, boot) = booted();
        tally.start(boot + SECOND, LANE, Class::Bulk, SECOND * 3);
        tally.start(boot + SECOND * 2, LANE, Class::Bulk, SECOND);
        tally.end(boot + SECOND * 4, LANE, Class::Bulk, Outcome::Completed, 1);
        tally.end(boot + SECOND * 4, LANE, Class::Default, Outcome::Refused, 5);
        let error = GatewayError::ThrottledUnderLimit;
        tally.gateway_error(boot + SECOND * 5, LANE, Class::Bulk, error);
        tally.start(boot + HOUR, LANE, Class::Bulk, Duration::ZERO);
        tally.start(boot + SECOND, "other", Class::Bulk, Duration::ZERO);

        let Batch { news, .. } = tally.take(boot + HOUR);
        assert_eq!(news.len(), 3);
        let bulk = &of(&news, first_hour()).classes.bulk;
        assert_eq!((bulk.starts, bulk.wait_mean()), (2, SECOND * 2));
        let p90 = bulk.wait_p90().as_secs_f64();
        assert!((p90 - 3.0).abs() < 0.12, "{p90}");
        assert_eq!(bulk.ends.completed, 1);
        assert_eq!(bulk.gateway_errors.throttled_under_limit, 1);
        assert_eq!(of(&news, first_hour()).classes.default.ends.refused, 5);
        assert_eq!(of(&news, first_hour()).total().starts, 2);
        assert_eq!(of(&news, Hour(500_001)).classes.bulk.starts, 1);
        assert_eq!(tally.take(boot + HOUR), Batch::default(), "taken once");
    }

    /// C11: a minute that spans two hours counts in the one in which it ends.
    #[test]
    fn the_peak_is_exact_over_the_hour() {
        let (mut tally, boot) = booted();
        let mut starts = Vec::new();
        starts.extend((0..10).map(|n| HOUR - SECOND * 30 + SECOND * n));
        starts.extend((0..5).map(|n| HOUR + SECOND * 10 + SECOND * n));
        for (number, start) in starts.into_iter().enumerate() {
            let class = Class::ALL[number % 3];
            tally.start(boot + start, LANE, class, Duration::ZERO);
        }
        let Batch { news, .. } = tally.take(boot + HOUR * 2);
        assert_eq!(of(&news, first_hour()).peak, 10);
        assert_eq!(of(&news, Hour(500_001)).peak, 15);
        assert_eq!(of(&news, Hour(500_001)).classes.bulk.peak, 5);
    }

    /// C11: news that comes after the hour still counts in it.
    #[test]
    fn late_news_belongs_to_the_hour_in_which_it_happened() {
        let (mut tally, boot) = booted();
        tally.start(boot + HOUR, LANE, Class::Default, Duration::ZERO);
        tally.take(boot + HOUR + SECOND);
        let before = boot + (HOUR - SECOND / 2);
        tally.start(before, LANE, Class::Default, Duration::ZERO);
        let Batch { news, .. } = tally.take(boot + HOUR + SECOND * 2);
        assert_eq!(of(&news, first_hour()).total().starts, 1);
        assert_eq!(of(&news, first_hour()).peak, 1);
        assert_eq!(of(&news, Hour(500_001)).peak, 2);
    }

    /// C11: a restart in the middle of a burst hides nothing of it.
    #[test]
    fn a_burst_across_a_restart_is_one_peak() {
        let (mut tally, boot) = booted();
        for n in 0..10 {
            tally.start(boot + SECOND * n, LANE, Class::Bulk, Duration::ZERO);
        }
        let before = tally.take(boot + SECOND * 10);
        let (mut tally, boot) = booted();
        tally.resume(&before.windows.unwrap());
        for n in 20..25 {
            tally.start(boot + SECOND * n, LANE, Class::Bulk, Duration::ZERO);
        }
        let mut news = before.news;
        add_news(&mut news, tally.take(boot + SECOND * 30).news);
        assert_eq!(of(&news, first_hour()).peak, 15);
        assert_eq!(of(&news, first_hour()).classes.bulk.starts, 15);
    }

    #[test]
    fn a_clock_that_is_set_back_harms_nothing_that_was_counted() {
        let (mut tally, boot) = booted();
        tally.start(boot + HOUR, LANE, Class::Bulk, Duration::ZERO);
        let set_back = Timestamp::from_second(499_999 * 3600).unwrap();
        tally.set_clock(WallClock::new(boot + HOUR + SECOND, set_back));
        tally.start(boot + HOUR + SECOND, LANE, Class::Bulk, Duration::ZERO);
        let Batch { news, .. } = tally.take(boot + HOUR + SECOND);
        assert_eq!(of(&news, Hour(500_001)).classes.bulk.starts, 1);
        assert_eq!(of(&news, Hour(499_999)).classes.bulk.starts, 1);
        assert_eq!(of(&news, Hour(499_999)).peak, 2);
    }

    #[test]
    fn what_was_put_back_is_new_again() {
        let (mut tally, boot) = booted();
        tally.start(boot, LANE, Class::Bulk, SECOND);
        let batch = tally.take(boot + SECOND);
        tally.start(boot + SECOND, LANE, Class::Bulk, SECOND);
        tally.put_back(batch);
        let batch = tally.take(boot + SECOND * 2);
        assert_eq!(of(&batch.news, first_hour()).classes.bulk.starts, 2);
        assert!(batch.windows.is_some());
    }

    #[test]
    fn memory_is_bounded_while_nothing_is_kept() {
        let mut news = News::new();
        for hour in 0..1000 {
            for lane in ["a", "b"] {
                let new = News::from([((Hour(hour), lane.to_owned()), LaneHour::default())]);
                add_news(&mut news, new);
            }
        }
        assert_eq!(news.len(), 2 * HOURS_HELD);
        assert!(news.keys().all(|(hour, _)| hour.0 >= 1000 - 48));
    }
}
