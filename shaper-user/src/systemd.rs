//! Living with systemd, where it runs the host.

pub mod notify;
pub mod scope;
pub mod slice;

use std::{fs, path::Path};

use shaper_common::Class;

use slice::Slice;

/// Whether systemd runs this host (sd_booted(3)).
pub fn is_booted() -> bool {
    Path::new("/run/systemd/system").is_dir()
}

/// The cgroup of a class's slice below the cgroup2 mount; `None`: systemd does not run this host.
pub fn class_cgroup(class: Class) -> Option<String> {
    if !is_booted() {
        return None;
    }
    let cgroups = fs::read_to_string("/proc/1/cgroup").ok()?;
    Some(below_tree(&cgroups, &Slice::of_class(class)))
}

/// `cgroups`: of the process 1, which is systemd. Its tree begins at the top of the cgroup tree, but in a container that
/// sees more than its own.
fn below_tree(cgroups: &str, slice: &Slice) -> String {
    let own = cgroups.lines().find_map(|line| line.strip_prefix("0::"));
    let top = own.unwrap_or_default().trim_end_matches("/init.scope");
    format!("{top}/{}", slice.cgroup())
        .trim_start_matches('/')
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_puts_slices_at_the_top_of_its_own_tree() {
        let bulk = Slice::of_class(Class::Bulk);
        for (cgroups, expected) in [
            ("0::/init.scope\n", "shaper.slice/shaper-bulk.slice"),
            ("1:name=systemd:/\n0::/\n", "shaper.slice/shaper-bulk.slice"),
            ("0::/box/init.scope\n", "box/shaper.slice/shaper-bulk.slice"),
        ] {
            assert_eq!(below_tree(cgroups, &bulk), expected);
        }
    }
}
