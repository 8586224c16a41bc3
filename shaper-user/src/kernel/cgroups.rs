//! cgroup v2: where it is mounted, the class cgroups, their ids.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::{KernelError, mounts};

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
        let table = mounts::table().map_err(|_| KernelError::NoCgroup2)?;
        let mount = mounts::of_kind(&table, "cgroup2")
            .next()
            .ok_or(KernelError::NoCgroup2)?;
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

    /// The cgroups with these ids that there are.
    pub fn locate(&self, ids: &HashSet<CgroupId>) -> HashMap<CgroupId, PathBuf> {
        if ids.is_empty() {
            return HashMap::new();
        }
        walk(std::slice::from_ref(&self.mount))
            .filter_map(|path| Some((id_of(&path).ok()?, path)))
            .filter(|(id, _)| ids.contains(id))
            .collect()
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
pub fn walk(paths: &[PathBuf]) -> impl Iterator<Item = PathBuf> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
