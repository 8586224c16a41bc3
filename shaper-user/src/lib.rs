pub mod format;
pub mod metrics;
pub mod paths;
pub mod policy;
pub mod snapshot;
