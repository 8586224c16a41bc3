//! Which class and account the calling process belongs to.

use aya_ebpf::helpers::generated::{bpf_get_current_ancestor_cgroup_id, bpf_get_current_cgroup_id};
use shaper_common::Class;

use crate::maps::CLASSES;

/// Depth to which cgroups are searched. Kubernetes on systemd with a nested engine reaches about 12.
const MAX_DEPTH: i32 = 16;

/// The priority of a process and its tenant inside the class.
pub struct Standing {
    pub class: Class,
    /// Id of the child cgroup below the class cgroup; 0: the process is in the class cgroup itself, or in none.
    pub account_cgroup: u64,
}

/// The standing of the process that calls `connect`: the deepest of its cgroups that is a class cgroup decides. A
/// process that is in none (it left after its socket was created) is default (A5).
#[inline(always)]
pub fn current() -> Standing {
    // SAFETY: no preconditions.
    let own = unsafe { bpf_get_current_cgroup_id() };
    let mut found = Standing {
        class: Class::Default,
        account_cgroup: 0,
    };
    let mut parent_is_class = false;
    // From the root down: ids are 0 beyond the process's own depth (`__cgroup_ancestor_id`, kernel/bpf/helpers.c).
    for level in 0..MAX_DEPTH {
        // SAFETY: no preconditions.
        let id = unsafe { bpf_get_current_ancestor_cgroup_id(level) };
        if id == 0 {
            break;
        }
        // SAFETY: the value is copied; the controller may replace it, never free the map.
        if let Some(class) = unsafe { CLASSES.get(&id) } {
            found = Standing {
                class: Class::from_index(class.class),
                account_cgroup: 0,
            };
            parent_is_class = true;
        } else if parent_is_class {
            found.account_cgroup = id;
            parent_is_class = false;
        }
        if id == own {
            break;
        }
    }
    found
}
