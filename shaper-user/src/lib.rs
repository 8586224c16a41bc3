pub mod control;
pub mod format;
pub mod handle;
pub mod metrics;
pub mod paths;
pub mod policy;
pub mod serve;
pub mod snapshot;
