//! What a machine says, line by line, and what comes of it. Its script marks its own lines; the rest is the tests' output.

use std::{fmt, fs, io, path::Path, time::Duration};

use super::{guest::Suite, machine::Accelerator};
use crate::test_report::Tally;

/// Begins the lines of the script in the machine.
const MARK: &str = "@vm ";

/// How the scenarios went on one kernel.
#[derive(Debug)]
pub struct Report {
    pub release: String,
    pub tally: Tally,
    pub skips: Vec<String>,
    accelerator: Accelerator,
    took: Duration,
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "Linux {} ({}): {} in {} s",
            self.release,
            self.accelerator.name(),
            self.tally,
            self.took.as_secs()
        )
    }
}

/// A machine at work.
#[derive(Debug)]
pub struct Progress<'a> {
    accelerator: Accelerator,
    suites: &'a [Suite],
    release: String,
    sum: Tally,
    skips: Vec<String>,
    /// The suite that runs, and its own counts.
    current: Option<(&'a Suite, Tally)>,
    /// Why the verifier refuses a program, if it does.
    verifier_log: String,
    finished: bool,
}

impl<'a> Progress<'a> {
    pub fn new(accelerator: Accelerator, suites: &'a [Suite]) -> Self {
        Self {
            accelerator,
            suites,
            release: "?".to_owned(),
            sum: Tally::default(),
            skips: Vec::new(),
            current: None,
            verifier_log: String::new(),
            finished: false,
        }
    }

    /// Takes a line of the machine's and gives what a person should see of it.
    pub fn take(&mut self, line: &str) -> Option<String> {
        let Some((word, rest)) = line
            .strip_prefix(MARK)
            .map(|marked| marked.split_once(' ').unwrap_or((marked, "")))
        else {
            if let Some((_, tally)) = &mut self.current {
                *tally += Tally::from_result_line(line).unwrap_or_default();
            }
            return Some(line.to_owned());
        };
        match word {
            "ready" => {
                self.release = rest.to_owned();
                Some(format!("Linux {rest} is up ({})", self.accelerator.name()))
            }
            "doctor" => {
                let able = rest == "0";
                self.sum.passed += u64::from(able);
                self.sum.failed += u64::from(!able);
                None
            }
            "verifier" => {
                self.verifier_log += rest;
                self.verifier_log.push('\n');
                None
            }
            "suite" => {
                let suite = self.suites.iter().find(|suite| suite.name == rest)?;
                self.current = Some((suite, Tally::default()));
                Some(format!("suite {rest}"))
            }
            "ended" => {
                let (suite, tally) = self.current.take()?;
                let (tally, complaint) = judge(suite, tally, rest);
                self.sum += tally;
                complaint
            }
            "skipped" => {
                self.skips.push(rest.to_owned());
                None
            }
            "finished" => {
                self.finished = true;
                None
            }
            _ => Some(line.to_owned()),
        }
    }

    /// The machine has ended, or has not said anything for too long.
    pub fn finish(mut self, took: Duration, directory: &Path) -> Report {
        if !self.finished {
            let during = self
                .current
                .map_or("between two suites", |(suite, _)| &suite.name);
            println!(
                "Linux {} has ended too early, or not at all, in {during}: see {}",
                self.release,
                directory.join("console.log").display()
            );
            self.sum.failed += 1;
        }
        if let Err(error) = self.keep_verifier_log(directory) {
            println!("cannot keep the verifier's log: {error}");
        }
        Report {
            release: self.release,
            tally: self.sum.with_skipped(self.skips.len() as u64),
            skips: self.skips,
            accelerator: self.accelerator,
            took,
        }
    }
}

impl Progress<'_> {
    /// Leaves no log of an earlier run behind.
    fn keep_verifier_log(&self, directory: &Path) -> io::Result<()> {
        let path = directory.join("verifier.log");
        if self.verifier_log.is_empty() {
            return match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            };
        }
        fs::write(&path, &self.verifier_log)?;
        println!("the verifier refuses a program: see {}", path.display());
        Ok(())
    }
}

/// The counts of a suite that ended with exit code `code`, and what was wrong with them.
fn judge(suite: &Suite, mut tally: Tally, code: &str) -> (Tally, Option<String>) {
    let ran = tally.passed + tally.failed + tally.skipped;
    let complaint = if code != "0" && tally.failed == 0 {
        Some(format!(
            "suite {} ended with {code} and no result",
            suite.name
        ))
    } else if ran < suite.expected {
        Some(format!(
            "suite {} ran {ran} of {} tests: have some other names now?",
            suite.name, suite.expected
        ))
    } else {
        None
    };
    if complaint.is_some() {
        tally.failed += 1;
    }
    (tally, complaint)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULT: &str = "test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 7 filtered out; finished in 1.00s";

    fn suite(expected: u64) -> Suite {
        Suite {
            name: "admission".to_owned(),
            program: "/t/admission".into(),
            directory: "/t".into(),
            arguments: Vec::new(),
            expected,
        }
    }

    fn report(expected: u64, lines: &[&str]) -> Report {
        let suites = [suite(expected)];
        let mut progress = Progress::new(Accelerator::Emulation, &suites);
        for line in lines {
            progress.take(line);
        }
        progress.finish(Duration::from_secs(7), Path::new("/t"))
    }

    #[test]
    fn a_run_is_summed_up_with_its_kernel() {
        let lines = [
            "@vm ready 6.1.0-57-cloud-amd64",
            "@vm doctor 0",
            "@vm suite admission",
            RESULT,
            "@vm ended 0",
            "@vm skipped one: no such thing here",
            "@vm finished",
        ];
        let report = report(2, &lines);
        assert_eq!(
            report.to_string(),
            "Linux 6.1.0-57-cloud-amd64 (software emulation): 2 passed, 0 failed, 1 skipped in 7 s"
        );
        assert_eq!(report.skips, ["one: no such thing here"]);
    }

    #[test]
    fn what_did_not_run_has_failed() {
        let failed = |expected, lines: &[&str]| report(expected, lines).tally.failed;
        let begun = "@vm suite admission";
        // A machine that ends in the middle; a suite that crashes; a test that is not there any more.
        assert_eq!(failed(2, &[begun]), 1);
        assert_eq!(failed(2, &[begun, "@vm ended 139", "@vm finished"]), 1);
        assert_eq!(
            failed(3, &[begun, RESULT, "@vm ended 0", "@vm finished"]),
            1
        );
    }
}
