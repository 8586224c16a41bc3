//! Priority classes, and how a cgroup stands for one.

/// Number of classes.
pub const CLASS_COUNT: usize = 3;

/// The priority of a process. A smaller number goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Class {
    Interactive = 0,
    Default = 1,
    Bulk = 2,
}

impl Class {
    /// All classes, the most urgent first.
    pub const ALL: [Self; CLASS_COUNT] = [Self::Interactive, Self::Default, Self::Bulk];

    /// The class with this number; anything out of range is untagged work, which is default (A5).
    #[inline(always)]
    pub const fn from_index(index: u32) -> Self {
        match index {
            0 => Self::Interactive,
            2 => Self::Bulk,
            _ => Self::Default,
        }
    }

    #[inline(always)]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The name in configuration, commands, metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Interactive => "interactive",
            Self::Default => "default",
            Self::Bulk => "bulk",
        }
    }
}

impl core::fmt::Display for Class {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(self.name())
    }
}

/// The value of the class map: what the cgroup with this id (the key) stands for.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CgroupClass {
    /// A [`Class`] by number.
    pub class: u32,
    /// Depth of the cgroup below the cgroup2 root (whose depth is 0), as `bpf_get_current_ancestor_cgroup_id` counts.
    /// The account is the ancestor one deeper.
    pub level: u32,
}

const _: () = assert!(size_of::<CgroupClass>() == 8);
