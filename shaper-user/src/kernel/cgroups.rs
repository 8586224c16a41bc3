//! cgroup v2: where it is mounted, the class cgroups, their ids.

use std::{
    collections::HashSet,
    ffi::OsStr,
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::KernelError;

/// The cgroup2 file system of this host.
#[derive(Clone, Debug)]
pub struct CgroupRoot {
    mount: PathBuf,
}

/// A cgroup as the kernel programs know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CgroupId(pub u64);

impl CgroupRoot {
    /// Finds the mount in the mount table: hybrid hosts have it at `/sys/fs/cgroup/unified`.
    ///
    /// # Errors
    /// [`KernelError::NoCgroup2`].
    pub fn find() -> Result<Self, KernelError> {
        let mounts = fs::read_to_string("/proc/self/mounts").map_err(|_| KernelError::NoCgroup2)?;
        let mount = cgroup2_mount(&mounts).ok_or(KernelError::NoCgroup2)?;
        Ok(Self { mount })
    }

    pub fn path(&self) -> &Path {
        &self.mount
    }

    /// The cgroup at `relative` to the mount.
    pub fn join(&self, relative: &str) -> PathBuf {
        self.mount.join(relative.trim_matches('/'))
    }

    /// Makes the cgroup and its parents; returns those that were not there before, the outermost first.
    ///
    /// # Errors
    /// [`KernelError::Cgroup`] naming the directory.
    pub fn create(&self, relative: &str) -> Result<Vec<PathBuf>, KernelError> {
        let target = self.join(relative);
        let mut missing: Vec<_> = target
            .ancestors()
            .take_while(|path| *path != self.mount && !path.exists())
            .map(Path::to_owned)
            .collect();
        missing.reverse();
        for path in &missing {
            match fs::create_dir(path) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => {
                    return Err(KernelError::Cgroup {
                        path: path.clone(),
                        action: "create",
                        source,
                    });
                }
            }
        }
        Ok(missing)
    }

    /// How deep `path` is below the mount, as `bpf_get_current_ancestor_cgroup_id` counts levels (the root is 0).
    pub fn level(&self, path: &Path) -> u32 {
        path.strip_prefix(&self.mount)
            .map_or(0, |rest| rest.components().count() as u32)
    }

    /// The cgroup with this id if it is a child of one of `parents`.
    pub fn child(&self, parents: &[PathBuf], id: CgroupId) -> Option<PathBuf> {
        let entries = parents.iter().flat_map(fs::read_dir).flatten().flatten();
        let mut children = entries.filter_map(|entry| {
            let metadata = entry.metadata().ok()?;
            (metadata.is_dir() && metadata.ino() == id.0).then(|| entry.path())
        });
        children.next()
    }
}

/// The id of a cgroup: the inode number of its directory (`cgroup_id`, include/linux/cgroup.h).
///
/// # Errors
/// [`KernelError::Cgroup`] naming the directory.
pub fn id_of(path: &Path) -> Result<CgroupId, KernelError> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(CgroupId(metadata.ino())),
        Err(source) => Err(KernelError::Cgroup {
            path: path.to_owned(),
            action: "read",
            source,
        }),
    }
}

/// The ids of all cgroups at and below these paths. What disappears meanwhile is left out.
pub fn ids_below(paths: &[PathBuf]) -> HashSet<CgroupId> {
    let ids = walk(paths).filter_map(|path| id_of(&path).ok());
    ids.collect()
}

/// The processes in all cgroups at and below these paths.
pub fn processes_below(paths: &[PathBuf]) -> Vec<u32> {
    let lists = walk(paths).filter_map(|path| fs::read_to_string(path.join("cgroup.procs")).ok());
    let pids = lists.flat_map(|list| {
        let pids = list.lines().filter_map(|line| line.parse().ok());
        pids.collect::<Vec<u32>>()
    });
    pids.collect()
}

/// The directories at and below `paths`.
fn walk(paths: &[PathBuf]) -> impl Iterator<Item = PathBuf> {
    let mut ahead = paths.to_vec();
    std::iter::from_fn(move || {
        let path = ahead.pop()?;
        let entries = fs::read_dir(&path).into_iter().flatten().flatten();
        let is_dir = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
        ahead.extend(entries.filter(is_dir).map(|entry| entry.path()));
        Some(path)
    })
}

/// Those of `paths` that lie below none of the others: programs attached there see all of them, once.
pub fn topmost(paths: &[PathBuf]) -> Vec<PathBuf> {
    let mut sorted = paths.to_vec();
    sorted.sort();
    sorted.dedup();
    let inside = |path: &PathBuf| {
        paths
            .iter()
            .any(|other| other != path && path.starts_with(other))
    };
    sorted
        .iter()
        .filter(|path| !inside(path))
        .cloned()
        .collect()
}

fn cgroup2_mount(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let (path, kind) = (fields.next()?, fields.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(OsStr::new(&unescape(path))))
    })
}

/// The mount table writes space, tab, newline and backslash as three octal digits (`mangle_path`, fs/seq_file.c).
fn unescape(path: &str) -> String {
    ["\\040", "\\011", "\\012", "\\134"]
        .iter()
        .zip([" ", "\t", "\n", "\\"])
        .fold(path.to_owned(), |path, (from, to)| path.replace(from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_is_found_on_hybrid_and_unified_hosts() {
        let hybrid = "cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(cgroup2_mount(hybrid), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(
            cgroup2_mount("x /a\\040b cgroup2 rw 0 0"),
            Some("/a b".into())
        );
        assert_eq!(cgroup2_mount("cgroup /sys/fs/cgroup cgroup rw 0 0\n"), None);
    }

    #[test]
    fn only_topmost_cgroups_are_attached_to() {
        let paths: Vec<PathBuf> = ["/c/shaper/bulk", "/c/shaper", "/c/shaper2", "/c/shaper"]
            .map(Into::into)
            .to_vec();
        assert_eq!(
            topmost(&paths),
            [PathBuf::from("/c/shaper"), PathBuf::from("/c/shaper2")]
        );
    }
}
