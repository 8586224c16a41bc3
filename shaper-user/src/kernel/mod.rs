//! The controller's hands: everything that touches the kernel. No decision is made here.

mod bpf;
pub mod bpffs;
mod capabilities;
mod cgroups;
mod clock;
mod diag;
mod error;
mod events;
#[cfg(debug_assertions)]
mod faults;
mod gates;
mod heart;
mod mounts;
mod netns;
mod pins;
mod programs;
mod raw;
mod segment;
mod shared;
mod tables;
mod view;

pub use capabilities::{
    Capability, missing as missing_capabilities, require as require_capabilities,
};
pub use cgroups::{CgroupId, CgroupRoot, id_of, ids_below, processes_below, topmost};
pub use clock::now;
pub use diag::TcpSocket;
pub use error::{KernelError, last_words};
pub use events::{Events, Message};
pub use gates::{NotAdmitted, change_slots};
pub use heart::{HEARTBEAT, Heart};
pub use netns::{Namespace, Namespaces, NetnsCookie, diagnose_all, own_netns};
pub use pins::{Found, PinnedSet, Pins, open as open_gates};
pub use programs::{Loaded, Maps, Programs, Trial, load, scratch, try_each};
pub use raw::Route;
pub use tables::Tables;
pub use view::{ConnView, Cursor};
