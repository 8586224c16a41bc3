//! Names for things that the policy tells apart and otherwise knows nothing about.

/// A lane: its element in the kernel's lane array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId(pub u16);

/// A connection, opaque. The controller makes it of a record's index and generation, so no two connections share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnHandle(pub u64);

/// A process: its thread-group id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u32);

/// A tenant, opaque and never 0; work without one is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountId(pub u64);
