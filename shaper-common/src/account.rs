//! Accounts: tenants inside a class, each with a cap in a lane.

use crate::SharedU32;

/// One element of the account array, mapped by the controller.
#[repr(C)]
#[derive(Debug)]
pub struct Account {
    /// Slots in use.
    pub slots: SharedU32,
    /// The most slots it may use; `u32::MAX`: no cap.
    pub cap: SharedU32,
}

const _: () = assert!(size_of::<Account>() == 8);

/// The key under which the kernel finds an account's element.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AccountKey {
    /// Id of the account's cgroup.
    pub cgroup: u64,
    /// Index of the lane.
    pub lane: u32,
    pub reserved: u32,
}

const _: () = assert!(size_of::<AccountKey>() == 16);
