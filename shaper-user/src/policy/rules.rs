//! What an operator asks of a lane, as the policy understands it. Filled from a lane file by `config`.

use std::{collections::BTreeMap, time::Duration};

use shaper_common::CLASS_COUNT;

/// How long a connect is held before the connection is let through and its request is held instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectHold {
    /// After this long. Zero: only requests are held.
    For(Duration),
    /// For the whole wait.
    Always,
}

/// The rules of one lane.
#[derive(Clone, Debug, PartialEq)]
pub struct LaneRules {
    /// Requests in flight at once; 0: observe only.
    pub max_inflight: u32,
    /// Whether anything is held. If not, the lane observes, and a `max_inflight` of more than 0 is what it would have done.
    pub enforce: bool,
    /// Waiters at which a further connect is refused.
    pub max_queue: u32,
    /// The longest wait, by class.
    pub queue_timeout: [Duration; CLASS_COUNT],
    /// Slots that only interactive work may take. Less than `max_inflight`.
    pub interactive_reserve: u32,
    pub connect_hold: ConnectHold,
    /// Silence after a response at which a connection gives its slot back.
    pub idle_release: Duration,
    /// How long the slot of an abandoned request stays taken.
    pub abort_hold: Duration,
    /// Payload bytes that pass a gate which holds requests.
    pub wake_bytes: u32,
    /// Wait after which a waiter's effective class rises one step.
    pub aging: Duration,
    /// How long a ticket outlives its socket.
    pub ticket_grace: Duration,
    /// The most slots each class may use.
    pub class_cap: [Option<u32>; CLASS_COUNT],
    /// The most slots an account may use, unless named in `account_overrides`.
    pub account_cap: Option<u32>,
    pub account_overrides: BTreeMap<String, u32>,
    pub pace: Option<Pace>,
    /// `None`: the limit and the rates stay as configured.
    pub adaptive: Option<Adaptive>,
    /// The longest pause that a gateway's `Retry-After` can cause; zero: none.
    pub retry_after_max: Duration,
}

/// How limit and rates follow what the gateway bears (C7). Shares are above 0 and at most 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adaptive {
    /// What is left of limit and rates when the gateway asks for less.
    pub decrease: f64,
    /// What is added for every `cooldown` in which it does not.
    pub increase: f64,
    /// The least that is left.
    pub min: f64,
    pub cooldown: Duration,
}

/// How starts are spaced.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    pub mode: PaceMode,
    /// Starts allowed within any one second.
    pub per_second: Option<u32>,
    /// Starts allowed within any minute.
    pub per_minute: Option<u32>,
    /// The shortest time between two starts.
    pub min_interval: Duration,
    /// Share of every rate that stays free, 0 ≤ margin < 1.
    pub safety_margin: f64,
    /// Added to each window, for jitter between sending here and counting there.
    pub window_slack: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaceMode {
    /// Sliding windows: starts may bunch within them.
    Burst,
    /// One start per interval.
    Even,
}

impl Pace {
    /// The time that so many starts take at the least, after a rest.
    pub fn time_for(&self, starts: u32) -> Duration {
        let rates = [
            (self.per_second, Duration::from_secs(1)),
            (self.per_minute, Duration::from_secs(60)),
        ];
        let by_rate = rates.into_iter().filter_map(|(rate, per)| {
            let rate = rate?;
            let at_once = match self.mode {
                PaceMode::Burst => rate,
                PaceMode::Even => 1,
            };
            let kept = f64::from(rate) * (1.0 - self.safety_margin);
            let later = f64::from(starts.saturating_sub(at_once));
            Duration::try_from_secs_f64(per.as_secs_f64() * later / kept).ok()
        });
        let spaced = self.min_interval.saturating_mul(starts.saturating_sub(1));
        by_rate.fold(spaced, Duration::max)
    }
}

impl LaneRules {
    /// The reserve under a budget of this many slots: at least one slot is left for the rest (A4).
    pub fn reserve_within(&self, budget: u32) -> u32 {
        self.interactive_reserve.min(budget.saturating_sub(1))
    }

    /// Whether the lane only observes: nothing is held (A2).
    pub fn observes(&self) -> bool {
        self.max_inflight == 0 || !self.enforce
    }

    /// The rules that a lane which observes enforces on paper (A21); `None`: it enforces its own, or has no limit.
    pub(super) fn on_paper(&self) -> Option<Self> {
        (self.observes() && self.max_inflight > 0).then(|| Self {
            enforce: true,
            // No socket is there to be held in two stages, and no client gives up and comes back for its place.
            connect_hold: ConnectHold::Always,
            ticket_grace: Duration::ZERO,
            ..self.clone()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pace_takes_time() {
        let pace = |mode, per_minute, min_interval| Pace {
            mode,
            per_second: None,
            per_minute: Some(per_minute),
            min_interval: Duration::from_secs(min_interval),
            safety_margin: 0.5,
            window_slack: Duration::ZERO,
        };
        let seconds = Duration::from_secs;
        for (pace, starts, expected) in [
            (pace(PaceMode::Even, 60, 0), 31, seconds(60)),
            (pace(PaceMode::Burst, 60, 0), 60, seconds(0)),
            (pace(PaceMode::Burst, 60, 0), 90, seconds(60)),
            (pace(PaceMode::Burst, 60, 3), 31, seconds(90)),
            (pace(PaceMode::Even, 60, 0), 0, seconds(0)),
        ] {
            assert_eq!(pace.time_for(starts), expected, "{pace:?} {starts}");
        }
    }
}
