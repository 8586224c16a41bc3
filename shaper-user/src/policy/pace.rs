//! When the next start may be: rates, spacing, and the gentle beginning after a pause.
//!
//! A paced lane has no credits: every start in it is a decision of the policy, taken at a known instant, so the windows
//! hold exactly. A credit would be a start at an instant that the kernel chooses and the policy learns of later.

use std::{collections::VecDeque, time::Duration};

use super::{Factor, Ns, Pace, PaceMode};

/// After a pause, the lane fills up to its budget over this time (C10)...
const RAMP: Duration = Duration::from_secs(5);
/// ... or sooner, if that would space starts wider than this.
const RAMP_GAP_MAX: Duration = Duration::from_millis(500);

/// Decides when starts may be, and remembers when they were.
#[derive(Clone, Debug, Default)]
pub(super) struct Pacer {
    /// `None`: the lane has no pace.
    spacing: Option<Spacing>,
    /// Starts in the longest window, oldest first.
    starts: VecDeque<Ns>,
    ramp: Option<Ramp>,
}

/// A [`Pace`] worked out.
#[derive(Clone, Debug)]
struct Spacing {
    /// The shortest time between two starts.
    gap: Duration,
    windows: Vec<Window>,
    /// The rates as configured, nothing taken off: what the operator believes the gateway to grant.
    granted: Vec<Window>,
}

/// At most `starts` within any time shorter than `length`.
#[derive(Clone, Copy, Debug)]
struct Window {
    starts: usize,
    length: Duration,
}

#[derive(Clone, Debug)]
struct Ramp {
    gap: Duration,
    last: Option<Ns>,
    ends: Ns,
}

impl Pacer {
    /// Sets the pace, and what is left of its rates. Starts that were counted go on counting.
    pub(super) fn set_pace(&mut self, pace: Option<&Pace>, left: Factor) {
        self.spacing = pace.map(|pace| Spacing::new(pace, left));
        if self.spacing.is_none() {
            self.starts.clear();
        }
    }

    /// The first instant from `now` on at which a request may start.
    pub(super) fn earliest(&self, now: Ns) -> Ns {
        let paced = self.spacing.as_ref().map(|s| s.earliest(&self.starts));
        let ramp = self.ramp.as_ref().and_then(|ramp| {
            let next = ramp.last? + ramp.gap;
            (now < ramp.ends).then_some(next)
        });
        [paced, ramp].into_iter().flatten().fold(now, Ns::max)
    }

    /// Whether every start is the policy's to time: there must be no credits.
    pub(super) fn is_pacing(&self, now: Ns) -> bool {
        self.spacing.is_some() || self.ramp_end(now).is_some()
    }

    /// Whether there are configured rates, and as far back as they reach all of them were kept.
    pub(super) fn kept_every_rate(&self) -> bool {
        let kept = |window: &Window| {
            let later = self.starts.iter().skip(window.starts);
            let mut pairs = self.starts.iter().zip(later);
            pairs.all(|(&first, &beyond)| beyond.since(first) >= window.length)
        };
        self.spacing
            .as_ref()
            .is_some_and(|spacing| spacing.granted.iter().all(kept))
    }

    /// A request starts now.
    pub(super) fn record(&mut self, now: Ns) {
        if let Some(spacing) = &self.spacing {
            let memory = spacing.memory();
            while self
                .starts
                .front()
                .is_some_and(|&start| now.since(start) >= memory)
            {
                self.starts.pop_front();
            }
            self.starts.push_back(now);
        }
        if let Some(ramp) = &mut self.ramp {
            ramp.last = Some(now);
        }
    }

    /// The start recorded at `at` did not happen after all: what never left is not counted as sent (C12).
    pub(super) fn take_back(&mut self, at: Ns) {
        if let Some(index) = self.starts.iter().rposition(|&start| start == at) {
            self.starts.remove(index);
        }
    }

    /// A pause has ended: starts spread out until the lane is full again.
    pub(super) fn ramp_up(&mut self, now: Ns, budget: u32) {
        if budget == 0 {
            return;
        }
        let gap = (RAMP / budget).min(RAMP_GAP_MAX);
        self.ramp = Some(Ramp {
            gap,
            last: None,
            ends: now + gap * budget,
        });
    }

    pub(super) fn stop_ramp(&mut self) {
        self.ramp = None;
    }

    /// When the gentle beginning after a pause is over, if it is not yet.
    pub(super) fn ramp_end(&self, now: Ns) -> Option<Ns> {
        let ends = self.ramp.as_ref()?.ends;
        (now < ends).then_some(ends)
    }
}

/// A rate after the margin, in whole millionths of a start, so that no rounding surprises: 0.7 of 30 is 21.
#[derive(Clone, Copy, Debug)]
struct Rate {
    millionths: u64,
    per: Duration,
}

impl Rate {
    const ONE: u64 = 1_000_000;

    fn new(starts: u32, per: Duration, margin: f64, left: Factor) -> Self {
        let taken_off = (margin * Self::ONE as f64).round() as u64;
        let kept = Self::ONE.saturating_sub(taken_off);
        let left = kept * u64::from(left.millionths()) / Self::ONE;
        Self {
            millionths: u64::from(starts.max(1)) * left.max(1),
            per,
        }
    }

    /// The time that one start takes at this rate, rounded up.
    fn interval(self) -> Duration {
        let nanos = (self.per.as_nanos() * u128::from(Self::ONE)).div_ceil(self.millionths.into());
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// The window in which that many whole starts fit. Below one start a window, the window grows instead.
    fn window(self, slack: Duration) -> Window {
        let starts = self.millionths / Self::ONE;
        let length = if starts == 0 {
            self.interval()
        } else {
            self.per
        };
        Window {
            starts: starts.max(1) as usize,
            length: length.saturating_add(slack),
        }
    }
}

impl Spacing {
    fn new(pace: &Pace, left: Factor) -> Self {
        let configured = || {
            [
                (pace.per_second, Duration::from_secs(1)),
                (pace.per_minute, Duration::from_secs(60)),
            ]
            .into_iter()
            .filter_map(|(starts, per)| Some((starts?, per)))
        };
        let rates =
            configured().map(|(starts, per)| Rate::new(starts, per, pace.safety_margin, left));
        let alone = Window {
            starts: 1,
            length: pace.min_interval,
        };
        let granted = configured()
            .map(|(starts, length)| Window {
                starts: starts as usize,
                length,
            })
            .chain([alone])
            .collect();
        match pace.mode {
            // The slack is for windows. Evenly spaced starts never bunch at the edge of one.
            PaceMode::Even => Self {
                gap: rates
                    .map(Rate::interval)
                    .fold(pace.min_interval, Duration::max),
                windows: Vec::new(),
                granted,
            },
            PaceMode::Burst => Self {
                gap: pace.min_interval,
                windows: rates.map(|rate| rate.window(pace.window_slack)).collect(),
                granted,
            },
        }
    }

    fn earliest(&self, starts: &VecDeque<Ns>) -> Ns {
        let spaced = starts.back().map(|&last| last + self.gap);
        let within = self.windows.iter().filter_map(|window| {
            let first = starts.len().checked_sub(window.starts)?;
            Some(starts[first] + window.length)
        });
        within.chain(spaced).max().unwrap_or_default()
    }

    /// How long a start matters.
    fn memory(&self) -> Duration {
        self.windows
            .iter()
            .chain(&self.granted)
            .map(|window| window.length)
            .fold(self.gap, Duration::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PACE: Pace = Pace {
        mode: PaceMode::Burst,
        per_second: None,
        per_minute: None,
        min_interval: Duration::ZERO,
        safety_margin: 0.0,
        window_slack: Duration::ZERO,
    };

    fn ms(ms: u64) -> Ns {
        Ns(ms * 1_000_000)
    }

    /// Starts of a sender that always has something to send.
    fn greedy(pacer: &mut Pacer, from: Ns, count: usize) -> Vec<Ns> {
        let mut now = from;
        (0..count)
            .map(|_| {
                now = pacer.earliest(now);
                pacer.record(now);
                now
            })
            .collect()
    }

    fn paced(pace: Pace) -> Pacer {
        let mut pacer = Pacer::default();
        pacer.set_pace(Some(&pace), Factor::ONE);
        pacer
    }

    /// C3: one start per interval.
    #[test]
    fn even_pace_spaces_every_start() {
        let mut pacer = paced(Pace {
            mode: PaceMode::Even,
            per_minute: Some(240),
            window_slack: Duration::from_millis(1500),
            ..PACE
        });
        let starts = greedy(&mut pacer, ms(1000), 4);
        assert_eq!(starts, [ms(1000), ms(1250), ms(1500), ms(1750)]);
    }

    /// C3: time that passed unused is not saved up.
    #[test]
    fn an_idle_even_lane_does_not_save_up_starts() {
        let mut pacer = paced(Pace {
            mode: PaceMode::Even,
            per_second: Some(10),
            ..PACE
        });
        greedy(&mut pacer, ms(0), 1);
        assert_eq!(
            greedy(&mut pacer, ms(5000), 3),
            [ms(5000), ms(5100), ms(5200)]
        );
    }

    /// C4: starts may bunch within a window, whose length includes the slack.
    #[test]
    fn burst_windows_let_starts_bunch() {
        let mut pacer = paced(Pace {
            per_second: Some(2),
            per_minute: Some(5),
            window_slack: Duration::from_millis(500),
            ..PACE
        });
        assert_eq!(
            greedy(&mut pacer, ms(0), 7),
            [
                ms(0),
                ms(0),
                ms(1500),
                ms(1500),
                ms(3000),
                ms(60_500),
                ms(60_500)
            ]
        );
    }

    /// C5: the margin keeps a share of every rate free.
    #[test]
    fn the_margin_keeps_a_share_free() {
        let mut burst = paced(Pace {
            per_second: Some(10),
            safety_margin: 0.25,
            ..PACE
        });
        let starts = greedy(&mut burst, ms(0), 8);
        assert_eq!((starts[6], starts[7]), (ms(0), ms(1000)));

        let mut even = paced(Pace {
            mode: PaceMode::Even,
            per_second: Some(8),
            safety_margin: 0.5,
            ..PACE
        });
        assert_eq!(greedy(&mut even, ms(0), 2)[1], ms(250));
    }

    /// C5: a margin never rounds a rate down to nothing, nor away.
    #[test]
    fn a_rate_below_one_a_window_stretches_the_window() {
        let mut pacer = paced(Pace {
            per_second: Some(1),
            safety_margin: 0.5,
            ..PACE
        });
        assert_eq!(greedy(&mut pacer, ms(0), 2), [ms(0), ms(2000)]);
    }

    /// C5: 0.7 of 30 is 21, also where floating point makes it 20.999.
    #[test]
    fn a_margin_is_exact() {
        let mut pacer = paced(Pace {
            per_minute: Some(30),
            safety_margin: 0.3,
            ..PACE
        });
        let starts = greedy(&mut pacer, ms(0), 22);
        assert_eq!((starts[20], starts[21]), (ms(0), ms(60_000)));
    }

    /// E8: a minimum interval between starts, whatever the windows allow.
    #[test]
    fn the_minimum_interval_holds_in_a_burst() {
        let mut pacer = paced(Pace {
            per_second: Some(100),
            min_interval: Duration::from_millis(30),
            ..PACE
        });
        assert_eq!(greedy(&mut pacer, ms(0), 3), [ms(0), ms(30), ms(60)]);
    }

    /// C12: what never left is never counted as sent.
    #[test]
    fn a_start_that_is_taken_back_makes_room_again() {
        let mut pacer = paced(Pace {
            per_second: Some(1),
            ..PACE
        });
        greedy(&mut pacer, ms(5), 1);
        pacer.take_back(ms(5));
        assert_eq!(pacer.earliest(ms(6)), ms(6));
    }

    /// C7: adaptation leaves a share of every rate, also of one start per interval.
    #[test]
    fn a_factor_leaves_a_share_of_every_rate() {
        let pace = Pace {
            per_second: Some(10),
            ..PACE
        };
        let mut burst = Pacer::default();
        burst.set_pace(Some(&pace), Factor::new(0.7));
        let starts = greedy(&mut burst, ms(0), 8);
        assert_eq!((starts[6], starts[7]), (ms(0), ms(1000)));

        let mode = PaceMode::Even;
        let mut even = Pacer::default();
        even.set_pace(Some(&Pace { mode, ..pace }), Factor::new(0.5));
        assert_eq!(greedy(&mut even, ms(0), 2)[1], ms(200));
    }

    /// C8: starts within every configured rate are told from those beyond one, however they came about.
    #[test]
    fn it_is_known_whether_every_rate_was_kept() {
        let mut pacer = paced(Pace {
            mode: PaceMode::Even,
            per_minute: Some(3),
            ..PACE
        });
        greedy(&mut pacer, ms(0), 3);
        assert!(pacer.kept_every_rate());
        // Not the pacer's decision: a lane that observes.
        pacer.record(ms(41_000));
        assert!(!pacer.kept_every_rate());
        pacer.record(ms(120_000));
        assert!(pacer.kept_every_rate(), "what is past is past");
        assert!(!Pacer::default().kept_every_rate(), "there are no rates");
    }

    /// C10: after a pause a lane without a pace spaces its starts, and only until it is full.
    #[test]
    fn starts_after_a_pause_spread_out() {
        let mut pacer = Pacer::default();
        pacer.ramp_up(ms(0), 20);
        assert!(pacer.is_pacing(ms(0)));
        assert_eq!(greedy(&mut pacer, ms(0), 3), [ms(0), ms(250), ms(500)]);
        assert_eq!(pacer.ramp_end(ms(4999)), Some(ms(5000)));
        assert!(!pacer.is_pacing(ms(5000)));
        assert_eq!(greedy(&mut pacer, ms(5000), 2), [ms(5000), ms(5000)]);
    }

    proptest! {
        /// C2, C4: no sliding window ever holds more starts than its rate, the margin taken off.
        #[test]
        fn no_sliding_window_holds_too_many_starts(
            per_second in prop::option::of(1u32..20),
            per_minute in prop::option::of(1u32..60),
            margin in 0.0..0.9f64,
            slack in 0u64..2000,
            min_interval in 0u64..300,
            pauses in prop::collection::vec(0u64..3000, 1..150),
        ) {
            let pace = Pace {
                per_second,
                per_minute,
                min_interval: Duration::from_millis(min_interval),
                safety_margin: margin,
                window_slack: Duration::from_millis(slack),
                ..PACE
            };
            let mut pacer = paced(pace);
            let mut now = ms(0);
            let mut starts = Vec::new();
            for pause in pauses {
                now = pacer.earliest(now + Duration::from_millis(pause));
                pacer.record(now);
                starts.push(now);
            }
            for (rate, window) in [(per_second, 1), (per_minute, 60)] {
                let Some(rate) = rate else { continue };
                let length = Duration::from_secs(window) + Duration::from_millis(slack);
                let allowed = ((f64::from(rate) * (1.0 - margin)) as usize).max(1);
                for first in 0..starts.len() {
                    let within = starts[first..].iter().filter(|s| s.since(starts[first]) < length).count();
                    prop_assert!(within <= allowed, "{within} starts within {length:?} of {:?}", starts[first]);
                }
            }
            for pair in starts.windows(2) {
                prop_assert!(pair[1].since(pair[0]) >= Duration::from_millis(min_interval));
            }
        }
    }
}
