//! What would these rules have done with that traffic? The policy itself over a trace, with a made-up clock.
//!
//! Pure: a [`Workload`] and the configured lanes in, a [`Report`] out. The kernel's part is played by [`kernel`], which
//! spends and refunds credits as the programs do; its news reaches the policy at once, where the real controller is a
//! few microseconds behind. A request is one slot for its service time; clients do not retry. A trace has no answers of the
//! gateway in it, so nothing adapts and nothing pauses.

mod engine;
mod kernel;
mod report;
mod workload;

pub use engine::simulate;
pub use report::{ClassReport, LaneReport, Report, Waits};
pub use workload::{TraceError, Workload};
