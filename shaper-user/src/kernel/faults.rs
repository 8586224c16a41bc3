//! Losing and repeating messages on purpose. Only in builds with debug assertions, which the end-to-end tests use.
//!
//! `SHAPER_FAULTS=lose=5,repeat=5,until=2000`: percentages, and the number of messages after which there are no more faults.

use std::{collections::VecDeque, env};

use super::events::Message;

const VARIABLE: &str = "SHAPER_FAULTS";

/// Messages between one and its repetition: late enough to be wrong by then.
const LATE: u64 = 3;

/// What goes wrong with the messages of the ring.
#[derive(Debug, Default)]
pub struct Faults {
    lose: u64,
    repeat: u64,
    until: u64,
    seen: u64,
    /// Repetitions, and which message they follow.
    pending: VecDeque<(u64, Message)>,
}

impl Faults {
    /// # Panics
    /// When the variable is not of the form above: a test that injects nothing would prove nothing.
    pub fn from_environment() -> Self {
        let Ok(text) = env::var(VARIABLE) else {
            return Self::default();
        };
        let mut faults = Self::default();
        for part in text.split(',') {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let value = value
                .parse()
                .unwrap_or_else(|_| panic!("{VARIABLE}: {part:?} has no number"));
            match key {
                "lose" => faults.lose = value,
                "repeat" => faults.repeat = value,
                "until" => faults.until = value,
                _ => panic!("{VARIABLE}: {key:?} is none of lose, repeat, until"),
            }
        }
        faults
    }

    /// The next message, from `ring` or again.
    pub fn next(&mut self, mut ring: impl FnMut() -> Option<Message>) -> Option<Message> {
        loop {
            if self.pending.front().is_some_and(|(at, _)| *at <= self.seen) {
                return self.pending.pop_front().map(|(_, message)| message);
            }
            let Some(message) = ring() else {
                return self.pending.pop_front().map(|(_, message)| message);
            };
            self.seen += 1;
            if self.seen > self.until {
                return Some(message);
            }
            let chance = scramble(self.seen) % 100;
            if chance < self.lose {
                continue;
            }
            if chance < self.lose + self.repeat {
                self.pending.push_back((self.seen + LATE, message.clone()));
            }
            return Some(message);
        }
    }
}

/// The same sequence in every run (the finaliser of MurmurHash3).
fn scramble(number: u64) -> u64 {
    let mixed = (number ^ (number >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    mixed ^ (mixed >> 33)
}
