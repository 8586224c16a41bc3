//! Living with systemd, where it runs the host.

pub mod notify;
