//! How a controller ends: it stays attached for the next one, or nothing of it stays.

use tracing::{info, warn};

use super::{Controller, nudge::Nudges};
use crate::kernel::{self, Namespaces, Tables, open_gates};

/// What becomes of the programs when the controller is told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leave {
    /// They stay, and what is held stays held, until the next controller comes or `on_controller_loss` has its way.
    Attached,
    /// They go, and what is held goes on.
    Nothing,
}

impl Controller {
    /// The start has succeeded: what it replaces goes.
    pub(super) fn settle(&mut self) {
        self.programs.settle();
        self.classes.set_stays(self.leave == Leave::Attached);
        if self.leave == Leave::Nothing {
            // From now on everything goes with this process, however that ends.
            self.programs.unpin();
        }
        for set in self.replaced.drain(..) {
            match set.remove() {
                Ok(()) => info!("{} is replaced", set.path().display()),
                Err(error) => warn!(%error, "something of an earlier controller stays"),
            }
        }
    }

    /// Ends as it was told to.
    pub(super) fn finish(mut self) {
        if let Some(heart) = self.heart.take() {
            // It was told before its first turn.
            heart.hand_over();
            self.settle();
        }
        match self.leave {
            Leave::Attached => {
                // The whole of `fail_after` for the next one.
                self.heartbeat();
                info!(
                    "stopped: the programs stay attached, and what is held stays held until the next controller comes or \
                     `on_controller_loss` has its way; `shaper detach` removes everything"
                );
            }
            Leave::Nothing => {
                let let_go = let_everyone_go(&self.tables, &mut self.nudges, &mut self.namespaces);
                info!(let_go, "stopped: nothing is governed any more");
                self.detach();
            }
        }
    }

    /// Detaches all programs and removes what was made for them.
    fn detach(self) {
        let Self {
            mut programs,
            mut classes,
            ..
        } = self;
        programs.unpin();
        drop(programs);
        classes.set_stays(false);
        classes.leave();
    }

    /// A start that failed: what it made goes, and an earlier controller's programs, which are still attached if
    /// they were `adopted`, stay.
    pub fn abandon(self, adopted: bool) {
        let Self {
            programs,
            mut classes,
            heart,
            replaced,
            ..
        } = self;
        drop(programs);
        drop(heart);
        if !adopted {
            classes.set_stays(!replaced.is_empty());
            classes.leave();
        }
    }
}

/// Lets everything that waits go, in the kernel's order of trust: first the programs stop holding, then each held SYN is
/// sent. Returns how many waited.
pub fn let_everyone_go(tables: &Tables, nudges: &mut Nudges, namespaces: &mut Namespaces) -> usize {
    open_gates(tables.globals());
    let now = kernel::now();
    let waiting: Vec<_> = tables.views().filter(|view| view.gate().waits()).collect();
    for view in &waiting {
        if tables.let_go(view.id).is_some() {
            nudges.opened(now, view.id, tables, namespaces);
        }
    }
    waiting.len()
}
