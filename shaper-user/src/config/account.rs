//! The names that accounts may have: each is a cgroup directly below a class's.

/// What a name may be, for people.
pub const RULE: &str =
    "the name of a child cgroup: 1 to 255 bytes without a slash or line break, and not `.` or `..`";

/// The longest name, in bytes (`NAME_MAX`, include/uapi/linux/limits.h).
const LONGEST: usize = 255;

/// Whether a cgroup may have this name (`cgroup_mkdir`, kernel/cgroup/cgroup.c).
pub fn is_name(account: &str) -> bool {
    (1..=LONGEST).contains(&account.len())
        && !account.contains(['/', '\n', '\0'])
        && !matches!(account, "." | "..")
}
