//! Keeps the examination from being interrupted between making something and taking it away.

use nix::sys::signal::{SigSet, Signal};

/// While this lives, signals that end the process wait; when it goes, they have their effect.
#[derive(Debug)]
pub struct Uninterrupted {
    before: SigSet,
}

impl Uninterrupted {
    /// For the calling thread and those it starts.
    pub fn begin() -> Self {
        let mut before = SigSet::empty();
        // Neither call fails with these arguments; if one did, interrupting would leave an empty cgroup behind, which
        // the next examination removes.
        if let Ok(current) = SigSet::thread_get_mask() {
            before = current;
        }
        let ending: SigSet = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP]
            .into_iter()
            .collect();
        let _ = ending.thread_block();
        Self { before }
    }
}

impl Drop for Uninterrupted {
    fn drop(&mut self) {
        let _ = self.before.thread_set_mask();
    }
}
