//! The subcommands of `shaper`, one file each.

pub mod check;
