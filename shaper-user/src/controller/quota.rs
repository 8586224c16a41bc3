//! So many log lines of one kind in a while, and no more.

use std::time::Duration;

use crate::policy::Ns;

/// How long a quota is for.
pub const PERIOD: Duration = Duration::from_secs(10);

/// Lines told one by one in a period: enough to see a pattern, too few to fill a disk.
const LINES: u32 = 10;

/// Counts the lines of one kind. A period begins with its first line.
#[derive(Debug, Default)]
pub struct Quota {
    began: Ns,
    told: u32,
    left_out: u64,
}

impl Quota {
    /// Whether one more line may be told now. If not, it is counted as left out.
    pub fn allows(&mut self, now: Ns) -> bool {
        if self.is_over(now) && self.left_out == 0 {
            (self.began, self.told) = (now, 0);
        }
        let allows = self.told < LINES;
        if allows {
            self.told += 1;
        } else {
            self.left_out += 1;
        }
        allows
    }

    /// After a period in which lines were left out, once: how many.
    pub fn take_left_out(&mut self, now: Ns) -> Option<u64> {
        if self.left_out == 0 || !self.is_over(now) {
            return None;
        }
        Some(std::mem::take(&mut self.left_out))
    }

    fn is_over(&self, now: Ns) -> bool {
        self.told == 0 || now.since(self.began) >= PERIOD
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Ns {
        Ns(seconds * 1_000_000_000)
    }

    #[test]
    fn a_flood_is_told_in_ten_lines_and_a_number() {
        let mut quota = Quota::default();
        let told = (0..1000).filter(|_| quota.allows(at(100))).count();
        assert_eq!(told, 10);
        assert_eq!(quota.take_left_out(at(109)), None, "the period is not over");
        assert_eq!(quota.take_left_out(at(110)), Some(990));
        assert_eq!(quota.take_left_out(at(110)), None, "told once");
        assert!(quota.allows(at(110)), "a new period");
    }

    /// Also if nobody asks for a while how many were left out.
    #[test]
    fn every_line_is_told_or_counted() {
        let mut quota = Quota::default();
        let mut told = 0;
        let mut left_out = 0;
        for second in 0..100 {
            for _ in 0..3 {
                told += u64::from(quota.allows(at(second)));
            }
            if second % 7 == 0 {
                left_out += quota.take_left_out(at(second)).unwrap_or_default();
            }
        }
        left_out += quota.take_left_out(at(200)).unwrap_or_default();
        assert_eq!(told + left_out, 300);
        assert!((60..=110).contains(&told), "{told}");
    }
}
