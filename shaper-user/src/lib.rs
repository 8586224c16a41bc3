//! The controller of shaper, a host-level traffic shaper for LLM gateways.
//!
//! `policy` decides and knows no kernel; `kernel` acts and knows no policy; `controller` joins the two.

pub mod authority;
pub mod cli;
pub mod config;
pub mod confine;
pub mod control;
pub mod controller;
pub mod doctor;
pub mod format;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod handle;
pub mod history;
pub mod kernel;
mod lock_file;
pub mod metrics;
mod object;
pub mod paths;
pub mod pause;
pub mod policy;
pub mod serve;
pub mod simulate;
pub mod snapshot;
pub mod state;
pub mod systemd;
pub mod trace;
pub mod words;
