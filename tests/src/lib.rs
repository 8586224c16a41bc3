//! The harness of the end-to-end scenarios in `tests/*.rs`.
//!
//! A scenario sets a [`stage::Stage`] (root, cgroup2, its own cgroups, its turn), starts a
//! [`gateway::Gateway`] that measures what reaches it, starts the real binary as a
//! [`controller::Controller`], lets unmodified [`client`]s run in the stage's cgroups, and asserts on what
//! the gateway, the clients and the controller's own interfaces say. Everything a scenario creates goes
//! away with the value that stands for it, also when the scenario fails.

pub mod browser;
pub mod caller;
pub mod cgroup;
pub mod client;
pub mod clock;
pub mod controller;
pub mod crowd;
pub mod fresh_host;
pub mod gateway;
pub mod host_listing;
pub mod incident;
pub mod kernel_state;
pub mod lane_file;
pub mod map_memory;
pub mod metrics;
pub mod model_api;
pub mod model_client;
pub mod name_server;
pub mod netns;
pub mod open_files;
pub mod process;
pub mod program_stats;
pub mod script;
pub mod snapshot;
pub mod stage;
pub mod stats;
pub mod supervisor;
pub mod systemd;
pub mod terminal;
pub mod tools;
