//! Counting what passed ungoverned and what was lost.

use shaper_common::Counter;

use crate::maps::COUNTERS;

#[inline(always)]
pub fn count(counter: Counter) {
    if let Some(value) = COUNTERS.get_ptr_mut(counter as u32) {
        // SAFETY: a per-CPU element; programs of one CPU do not interrupt each other's increment in a way that matters
        // to a statistic.
        unsafe { *value += 1 };
    }
}
