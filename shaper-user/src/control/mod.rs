//! The control socket: how `shaper status` and the other commands talk to a running controller.

mod client;
mod peer;
pub(crate) mod protocol;
mod server;
mod socket;

pub use client::{Client, ClientError};
pub use protocol::{ErrorKind, PROTOCOL, Reply, Request};
pub use server::serve;
pub use socket::{BindError, ControlSocket, is_listening, remove_stale};
