//! Additive increase, multiplicative decrease: how far a lane stays below what its file allows, because its gateway
//! asked for less (C7).

use std::time::Duration;

use super::{Adaptive, Ns};

/// The shortest time between two decreases. What was in flight when the first came tells nothing about it.
const SETTLE: Duration = Duration::from_secs(5);

/// Share of the configured limit and rates that a lane may use, above 0 and at most 1. In whole millionths, so that no
/// rounding surprises: 0.7 of 10 is 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Factor(u32);

impl Factor {
    const MILLION: u32 = 1_000_000;

    /// All of it.
    pub const ONE: Self = Self(Self::MILLION);

    /// Values out of range are taken to its nearest end; `NaN` to 1.
    pub fn new(share: f64) -> Self {
        if share.is_nan() {
            return Self::ONE;
        }
        let millionths = (share * f64::from(Self::MILLION)).round();
        Self(millionths.clamp(1.0, f64::from(Self::MILLION)) as u32)
    }

    pub fn get(self) -> f64 {
        f64::from(self.0) / f64::from(Self::MILLION)
    }

    /// Millionths.
    pub(super) fn millionths(self) -> u32 {
        self.0
    }

    /// That share of a limit, rounded down, but one slot at least if there was any.
    pub(super) fn of(self, limit: u32) -> u32 {
        let share = u64::from(limit) * u64::from(self.0) / u64::from(Self::MILLION);
        (share as u32).max(limit.min(1))
    }
}

/// A lane's factor and when it may change.
#[derive(Clone, Debug)]
pub(super) struct Adaptation {
    factor: Factor,
    last_cut: Option<Ns>,
    /// Since when nothing has happened: no refusal, no change.
    calm_since: Ns,
}

impl Default for Adaptation {
    fn default() -> Self {
        Self {
            factor: Factor::ONE,
            last_cut: None,
            calm_since: Ns::default(),
        }
    }
}

impl Adaptation {
    pub(super) fn factor(&self) -> Factor {
        self.factor
    }

    pub(super) fn calm_since(&self) -> Ns {
        self.calm_since
    }

    /// Goes on from where an earlier controller was.
    pub(super) fn restore(&mut self, factor: Factor, calm_since: Ns) {
        *self = Self {
            factor,
            last_cut: None,
            calm_since,
        };
    }

    /// The gateway asked for less.
    pub(super) fn asked_for_less(&mut self, now: Ns, rules: &Adaptive) {
        self.calm_since = now;
        if self.last_cut.is_some_and(|last| now.since(last) < SETTLE) {
            return;
        }
        self.last_cut = Some(now);
        let cut = Factor::new(self.factor.get() * rules.decrease);
        self.factor = cut.max(Factor::new(rules.min));
    }

    /// Raises the factor for every whole `cooldown` of calm, and keeps it within the rules.
    pub(super) fn recover(&mut self, now: Ns, rules: &Adaptive) {
        self.factor = self.factor.max(Factor::new(rules.min));
        while self.next_raise(rules).is_some_and(|at| at <= now) {
            self.calm_since = self.calm_since + rules.cooldown;
            self.factor = Factor::new(self.factor.get() + rules.increase);
        }
    }

    /// When the factor rises next, if nothing happens.
    pub(super) fn next_raise(&self, rules: &Adaptive) -> Option<Ns> {
        (self.factor < Factor::ONE).then(|| self.calm_since + rules.cooldown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULES: Adaptive = Adaptive {
        decrease: 0.7,
        increase: 0.1,
        min: 0.2,
        cooldown: Duration::from_secs(300),
    };

    fn at(seconds: u64) -> Ns {
        Ns(seconds * 1_000_000_000)
    }

    fn percent(adaptation: &Adaptation) -> u32 {
        (adaptation.factor().get() * 100.0).round() as u32
    }

    /// C7: at most one decrease in five seconds, and never below the minimum.
    #[test]
    fn decreases_are_spaced_and_bounded() {
        let mut adaptation = Adaptation::default();
        let mut seen = Vec::new();
        for second in 0..32 {
            adaptation.asked_for_less(at(second), &RULES);
            seen.push(percent(&adaptation));
        }
        seen.dedup();
        assert_eq!(seen, [70, 49, 34, 24, 20]);
    }

    /// C7: every cooldown without a refusal adds one step, up to all of it; a refusal begins the cooldown anew.
    #[test]
    fn calm_is_rewarded_step_by_step() {
        let mut adaptation = Adaptation::default();
        adaptation.asked_for_less(at(0), &RULES);
        adaptation.asked_for_less(at(4), &RULES);
        assert_eq!(adaptation.next_raise(&RULES), Some(at(304)));
        adaptation.recover(at(303), &RULES);
        assert_eq!(percent(&adaptation), 70);
        adaptation.recover(at(304), &RULES);
        assert_eq!(percent(&adaptation), 80);
        adaptation.recover(at(3000), &RULES);
        assert_eq!(
            (percent(&adaptation), adaptation.next_raise(&RULES)),
            (100, None)
        );
    }

    #[test]
    fn shares_of_a_limit_are_exact_and_leave_one_slot() {
        let shares: Vec<_> = [10, 6, 2, 1, 0]
            .map(|limit| Factor::new(0.7).of(limit))
            .into();
        assert_eq!(shares, [7, 4, 1, 1, 0]);
    }

    proptest! {
        /// C7: whatever happens, the factor stays between the minimum and 1.
        #[test]
        fn the_factor_stays_in_its_range(
            steps in prop::collection::vec((0u64..400, any::<bool>()), 0..200),
            min in 0.01..1.0f64,
        ) {
            let rules = Adaptive { min, ..RULES };
            let mut adaptation = Adaptation::default();
            let mut now = 0;
            for (pause, refused) in steps {
                now += pause;
                adaptation.recover(at(now), &rules);
                if refused {
                    adaptation.asked_for_less(at(now), &rules);
                }
                prop_assert!(adaptation.factor() >= Factor::new(min));
                prop_assert!(adaptation.factor() <= Factor::ONE);
            }
        }
    }
}
