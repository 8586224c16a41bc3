//! The sum over all test suites, read from what Rust's test harness prints.

use std::fmt;

/// How many tests ended how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    pub passed: u64,
    pub failed: u64,
    pub skipped: u64,
}

impl Tally {
    /// Reads the harness's closing line, `test result: ok. 3 passed; 0 failed; 1 ignored; …`; `None` for other lines.
    pub fn from_result_line(line: &str) -> Option<Self> {
        let (_verdict, counts) = line.strip_prefix("test result: ")?.split_once(". ")?;
        let count = |word: &str| {
            counts
                .split("; ")
                .find_map(|part| part.strip_suffix(word)?.trim_end().parse::<u64>().ok())
        };
        Some(Self {
            passed: count("passed")?,
            failed: count("failed")?,
            skipped: count("ignored")?,
        })
    }

    /// Counts `skipped` of the passed tests as skipped: the harness has no word for a test that looked at the machine
    /// and did not run.
    pub fn with_skipped(self, skipped: u64) -> Self {
        let skipped = skipped.min(self.passed);
        Self {
            passed: self.passed - skipped,
            failed: self.failed,
            skipped: self.skipped + skipped,
        }
    }
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// The line that CI reads.
impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAILED: &str = "test result: FAILED. 12 passed; 2 failed; 1 ignored; 0 measured; 3 filtered out; finished in 0.5s";

    #[test]
    fn a_result_line_is_read() {
        assert_eq!(
            Tally::from_result_line(FAILED),
            Some(Tally {
                passed: 12,
                failed: 2,
                skipped: 1
            })
        );
    }

    #[test]
    fn other_lines_are_no_result() {
        for line in [
            "",
            "running 3 tests",
            "test result: ",
            "test result: ok",
            "test result: ok. many passed",
        ] {
            assert_eq!(Tally::from_result_line(line), None, "{line:?}");
        }
    }

    #[test]
    fn a_test_that_did_not_run_has_not_passed() {
        let tally = Tally {
            passed: 3,
            failed: 1,
            skipped: 1,
        };
        assert_eq!(
            tally.with_skipped(2),
            Tally {
                passed: 1,
                failed: 1,
                skipped: 3
            }
        );
    }

    #[test]
    fn the_sum_reads_as_ci_expects() {
        let mut sum = Tally::default();
        sum += Tally {
            passed: 2,
            failed: 0,
            skipped: 0,
        };
        sum += Tally {
            passed: 3,
            failed: 1,
            skipped: 4,
        };
        assert_eq!(sum.to_string(), "5 passed, 1 failed, 4 skipped");
    }
}
