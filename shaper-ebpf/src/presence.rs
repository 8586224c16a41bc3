//! Is the controller there?

use shaper_common::{Globals, OnLoss, loss_is_near};

use crate::{emit::now_ns, maps::GLOBALS};

/// Whether gates are kept: the controller shows signs of life, or its loss is to change nothing.
#[inline(always)]
pub fn controller_present() -> bool {
    let Some(globals) = GLOBALS.get(0) else {
        return false;
    };
    stays_closed(globals) || heartbeat_age_ns(globals) < globals.fail_after_ns.load()
}

/// Whether gates will open for want of a controller within the next `within_ns`, unless it comes back.
#[inline(always)]
pub fn gates_open_soon(within_ns: u64) -> bool {
    let Some(globals) = GLOBALS.get(0) else {
        return false;
    };
    !stays_closed(globals)
        && loss_is_near(
            heartbeat_age_ns(globals),
            globals.fail_after_ns.load(),
            within_ns,
        )
}

#[inline(always)]
fn stays_closed(globals: &Globals) -> bool {
    globals.on_loss.load() == OnLoss::Closed as u32
}

#[inline(always)]
fn heartbeat_age_ns(globals: &Globals) -> u64 {
    now_ns().saturating_sub(globals.heartbeat_ns.load())
}
