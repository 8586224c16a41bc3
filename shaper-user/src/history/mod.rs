//! What happened, by lane, class and hour, for `shaper stats`.
//!
//! [`Tally`] counts and is pure. Every few seconds the controller takes what is new out of it and hands it to the
//! [`Keeper`], whose thread adds it to the store. So the store has sums, a crash costs the last few seconds, and the
//! hour in which the controller restarts goes on.

mod hour;
mod keeper;
mod peak;
mod report;
mod store;
mod tally;

pub use hour::{ClassHour, Ends, GatewayErrors, Hour, LaneHour};
pub use keeper::{Asker, Keeper, read};
pub use peak::WINDOW;
pub use report::{Counts, Figures, HourReport, LaneReport, Question, Report};
pub use store::StoreError;
pub use tally::{Batch, Tally, WallClock, Windows};

#[cfg(test)]
pub(crate) use report::samples;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use store::survives;
