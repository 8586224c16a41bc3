//! Is the controller there?

use shaper_common::OnLoss;

use crate::{emit::now_ns, maps::GLOBALS};

/// Whether gates are kept: the controller shows signs of life, or its loss is to change nothing.
#[inline(always)]
pub fn controller_present() -> bool {
    let Some(globals) = GLOBALS.get(0) else {
        return false;
    };
    if globals.on_loss.load() == OnLoss::Closed as u32 {
        return true;
    }
    now_ns().saturating_sub(globals.heartbeat_ns.load()) < globals.fail_after_ns.load()
}
