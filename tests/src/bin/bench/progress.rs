//! How far a benchmark has come, for people who watch: a bar on a terminal, nothing elsewhere.

use indicatif::{ProgressBar, ProgressStyle};

/// A bar of `steps` steps on standard error; gone when dropped. `indicatif` draws on terminals only.
pub struct Progress(ProgressBar);

impl Progress {
    pub fn new(what: &str, steps: usize) -> Self {
        let bar = ProgressBar::new(steps as u64);
        let style = ProgressStyle::with_template("{prefix} {bar:40} {pos}/{len} {msg}");
        bar.set_style(style.expect("the template is well-formed"));
        bar.set_prefix(what.to_owned());
        Self(bar)
    }

    /// Another step begins.
    pub fn step(&self, now: &str) {
        self.0.set_message(now.to_owned());
        self.0.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
