//! The one word that keeps a lane's promise: *credits + slots held ≤ budget*.
//!
//! Slots in use, credits that the kernel may still spend, and the budget share one 64-bit word, so that every change
//! is a single compare-and-swap and no reader ever sees a sum that was not true. Two counters would not do: between
//! "credit spent" and "slot counted" the other side would read a sum that is one too low and hand out one too many.
//!
//! ```text
//!  63  62        42 41        21 20         0
//! ┌──┬────────────┬────────────┬────────────┐
//! │RE│   budget   │  credits   │   slots    │
//! └──┴────────────┴────────────┴────────────┘
//! RE: the kernel refunds a released slot as a credit by itself, while nobody waits.
//! ```

/// Bits of each count in the word.
const BITS: u32 = 21;
const MASK: u64 = (1 << BITS) - 1;
const CREDITS_SHIFT: u32 = BITS;
const BUDGET_SHIFT: u32 = 2 * BITS;
const REFUND: u64 = 1 << 63;

/// The largest budget, and so the largest number of slots a lane can have.
pub const MAX_SLOTS: u32 = MASK as u32;

/// A lane's slots, credits and budget at one instant.
///
/// Invariant of every method: if `credits + slots ≤ budget` or `credits == 0` held before, it holds after. (The second
/// case is a budget lowered below the slots in use: held slots are never revoked.)
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SlotWord(u64);

impl core::fmt::Debug for SlotWord {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SlotWord")
            .field("slots", &self.slots())
            .field("credits", &self.credits())
            .field("budget", &self.budget())
            .field("refunds", &self.refunds())
            .finish()
    }
}

impl SlotWord {
    #[inline(always)]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    #[inline(always)]
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// A lane in which nothing is in flight and no credit has been minted.
    pub const fn idle(budget: u32) -> Self {
        Self(((budget as u64) & MASK) << BUDGET_SHIFT)
    }

    /// Requests in flight.
    #[inline(always)]
    pub const fn slots(self) -> u32 {
        (self.0 & MASK) as u32
    }

    /// Slots that the kernel may hand out without asking.
    #[inline(always)]
    pub const fn credits(self) -> u32 {
        ((self.0 >> CREDITS_SHIFT) & MASK) as u32
    }

    /// Slots that the lane may use now.
    #[inline(always)]
    pub const fn budget(self) -> u32 {
        ((self.0 >> BUDGET_SHIFT) & MASK) as u32
    }

    /// Whether the kernel turns a released slot into a credit by itself.
    #[inline(always)]
    pub const fn refunds(self) -> bool {
        self.0 & REFUND != 0
    }

    /// Slots neither in use nor promised as credits.
    #[inline(always)]
    pub const fn room(self) -> u32 {
        self.budget().saturating_sub(self.slots() + self.credits())
    }

    /// The kernel takes a slot with a credit. `floor` credits stay untouched: the reserve, for all but interactive work.
    #[inline(always)]
    pub const fn spend(self, floor: u32) -> Option<Self> {
        if self.credits() <= floor {
            return None;
        }
        Some(Self(self.0 - (1 << CREDITS_SHIFT) + 1))
    }

    /// The controller takes a slot for a waiter: from room if there is any, else by turning a credit above `floor` into it.
    pub const fn admit(self, floor: u32) -> Option<Self> {
        if self.room() > 0 && self.room() + self.credits() > floor {
            return Some(Self(self.0 + 1));
        }
        self.spend(floor)
    }

    /// A slot is taken whatever the budget says: observe mode, and a parked connection whose response goes on.
    #[inline(always)]
    pub const fn force(self) -> Self {
        if self.slots() == MAX_SLOTS {
            return self;
        }
        let taken = Self(self.0 + 1);
        // A credit gives way, so that the sum stays within the budget whenever it can.
        if taken.credits() > 0 && taken.slots() + taken.credits() > taken.budget() {
            return Self(taken.0 - (1 << CREDITS_SHIFT));
        }
        taken
    }

    /// A slot comes back. With `refund`, and where the word allows refunds and the budget has room, it becomes a credit.
    #[inline(always)]
    pub const fn release(self, refund: bool) -> Self {
        if self.slots() == 0 {
            return self;
        }
        let released = Self(self.0 - 1);
        if refund && self.refunds() && released.slots() + released.credits() < released.budget() {
            return Self(released.0 + (1 << CREDITS_SHIFT));
        }
        released
    }

    /// Sets the credits to `wanted`, or to what the budget leaves beside the slots in use.
    pub const fn with_credits(self, wanted: u32) -> Self {
        let free = self.budget().saturating_sub(self.slots());
        let credits = if wanted < free { wanted } else { free };
        Self((self.0 & !(MASK << CREDITS_SHIFT)) | ((credits as u64) << CREDITS_SHIFT))
    }

    /// Sets the budget and trims the credits to it. Slots in use stay.
    pub const fn with_budget(self, budget: u32) -> Self {
        let budget = if budget > MAX_SLOTS {
            MAX_SLOTS
        } else {
            budget
        };
        let set = Self((self.0 & !(MASK << BUDGET_SHIFT)) | ((budget as u64) << BUDGET_SHIFT));
        set.with_credits(set.credits())
    }

    /// Sets whether the kernel refunds.
    pub const fn with_refunds(self, on: bool) -> Self {
        if on {
            Self(self.0 | REFUND)
        } else {
            Self(self.0 & !REFUND)
        }
    }

    /// Sets the slots to a recount and trims the credits to it.
    pub const fn with_slots(self, slots: u32) -> Self {
        let slots = if slots > MAX_SLOTS { MAX_SLOTS } else { slots };
        let set = Self((self.0 & !MASK) | slots as u64);
        set.with_credits(set.credits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Op {
        Spend(u32),
        Admit(u32),
        Force,
        Release(bool),
        Credits(u32),
        Budget(u32),
        Refunds(bool),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0..4u32).prop_map(Op::Spend),
            (0..4u32).prop_map(Op::Admit),
            Just(Op::Force),
            any::<bool>().prop_map(Op::Release),
            (0..20u32).prop_map(Op::Credits),
            (0..20u32).prop_map(Op::Budget),
            any::<bool>().prop_map(Op::Refunds),
        ]
    }

    proptest! {
        /// E4, D2: whatever the two sides do, credits and slots together stay within the budget.
        #[test]
        fn credits_and_slots_never_exceed_the_budget(ops in prop::collection::vec(op(), 0..200)) {
            let mut word = SlotWord::idle(8).with_refunds(true);
            for op in ops {
                let before = word;
                word = match op {
                    Op::Spend(floor) => before.spend(floor).unwrap_or(before),
                    Op::Admit(floor) => before.admit(floor).unwrap_or(before),
                    Op::Force => before.force(),
                    Op::Release(refund) => before.release(refund),
                    Op::Credits(n) => before.with_credits(n),
                    Op::Budget(n) => before.with_budget(n),
                    Op::Refunds(on) => before.with_refunds(on),
                };
                prop_assert!(
                    word.slots() + word.credits() <= word.budget() || word.credits() == 0,
                    "{before:?} -> {word:?}"
                );
                if matches!(op, Op::Spend(_) | Op::Admit(_)) {
                    prop_assert!(word.slots() <= word.budget().max(before.slots()));
                }
            }
        }

        /// A4: the reserve is a floor under which only interactive work may go.
        #[test]
        fn a_floor_of_credits_is_never_spent(budget in 1u32..50, floor in 0u32..50) {
            let mut word = SlotWord::idle(budget).with_credits(budget);
            while let Some(next) = word.spend(floor) {
                word = next;
            }
            prop_assert_eq!(word.credits(), floor.min(budget));
        }
    }

    #[test]
    fn counts_do_not_spill_into_each_other() {
        let word = SlotWord::idle(MAX_SLOTS).with_credits(MAX_SLOTS);
        assert_eq!(
            (word.slots(), word.credits(), word.budget()),
            (0, MAX_SLOTS, MAX_SLOTS)
        );
        assert_eq!(word.with_slots(u32::MAX).force().slots(), MAX_SLOTS);
        assert!(!word.refunds());
    }

    /// A14: a lower budget never revokes a slot, and no release refunds until the lane is within it again.
    #[test]
    fn a_lowered_budget_is_reached_by_releases_alone() {
        let mut word = SlotWord::idle(5).with_credits(5).with_refunds(true);
        for _ in 0..5 {
            word = word.spend(0).unwrap();
        }
        word = word.with_budget(2);
        assert_eq!(word.slots(), 5);
        for _ in 0..3 {
            word = word.release(true);
            assert_eq!(word.credits(), 0);
        }
        assert_eq!(word.release(true).credits(), 1);
    }
}
