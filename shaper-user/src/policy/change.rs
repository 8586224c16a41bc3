//! What changes how much a lane may use, for those who tell of it.

use super::{LaneId, Pause, PausedBy};

/// A change of one lane.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Changed {
    pub lane: LaneId,
    pub change: Change,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Change {
    /// A pause began, or one that goes on ends later than it would have.
    Paused(Pause),
    /// A pause is over. `early`: an operator ended it.
    Resumed {
        by: PausedBy,
        early: bool,
    },
    Adapted(Adapted),
}

/// One step of adaptation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adapted {
    pub cause: Cause,
    /// Slots that the lane could use before...
    pub from: u32,
    /// ... and can use now. Where the limit is small, a step may change the rates alone.
    pub to: u32,
    /// What adaptation leaves of limit and rates now, above 0 and at most 1.
    pub share: f64,
}

/// Why a lane is adapted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The gateway asked for less, with this status.
    Answer { status: u16 },
    /// Many connects failed within a short time.
    FailedConnects,
    /// Nothing of that for the rules' `cooldown`.
    Calm,
}
