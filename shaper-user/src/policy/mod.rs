//! Who goes next: pure, with a made-up clock. No I/O, no kernel types.

mod rules;

pub use rules::{ConnectHold, LaneRules, Pace, PaceMode};
