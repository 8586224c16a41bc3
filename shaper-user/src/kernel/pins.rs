//! What outlives the process: maps and links with names in the bpf file system.
//!
//! ```text
//! MOUNT/shaper/INSTANCE/abi-N/GLOBALS, LANES, …              the maps
//! MOUNT/shaper/INSTANCE/abi-N/cgroup-ID/shaper_connect4, …   the links to the cgroup with this id
//! ```
//!
//! A set is whole once its globals say of which ABI it is: that is written last. One that is not, or whose maps have
//! another shape than this program's, is of no use and in the way; it is set aside, its gates are opened, and it is
//! removed when the new programs are in place.

use std::{
    collections::HashSet,
    fs,
    io::{self, ErrorKind},
    os::fd::AsFd,
    path::{Path, PathBuf},
};

use aya::{
    Ebpf,
    maps::{Map, MapData, MapInfo},
};
use shaper_common::{ABI_VERSION, Globals, OnLoss};
use tracing::warn;

use super::{
    KernelError, bpf,
    cgroups::CgroupId,
    shared::SharedArray,
    tables::{GLOBALS, Tables, map_error, shared, the_only},
};
use crate::paths::Instance;

/// What precedes a cgroup's id in the name of the directory of its links.
const LINKS: &str = "cgroup-";

/// The pins of one instance.
#[derive(Clone, Debug)]
pub struct Pins {
    dir: PathBuf,
}

/// What there is of an instance.
#[derive(Debug, Default)]
pub struct Found {
    /// Maps that a controller of this ABI has set up.
    pub whole: Option<PinnedSet>,
    /// Sets that cannot be used.
    pub unfit: Vec<PinnedSet>,
}

impl Found {
    /// The programs that all of these lead to.
    ///
    /// # Errors
    /// [`KernelError::Pin`].
    pub fn programs(&self) -> Result<HashSet<u32>, KernelError> {
        let mut programs = HashSet::new();
        for set in self.whole.iter().chain(&self.unfit) {
            for (_, dir) in set.links()? {
                for path in entries(&dir)? {
                    let program = bpf::pinned(&path).and_then(|link| bpf::program_of(link.as_fd()));
                    programs.insert(program.map_err(|source| pin_error(&path, "read", source))?);
                }
            }
        }
        Ok(programs)
    }
}

impl Pins {
    /// Those of `instance` in the bpf file system at `bpffs`.
    pub fn of(bpffs: &Path, instance: &Instance) -> Self {
        Self {
            dir: instance.pin_dir(bpffs),
        }
    }

    /// Looks at what there is. `ours`: the maps of this program, as they would be made anew. What cannot be used is set
    /// aside.
    ///
    /// # Errors
    /// [`KernelError::Pin`]: it cannot be told, and nothing has changed.
    pub fn find(&self, ours: &Ebpf) -> Result<Found, KernelError> {
        let mut found = Found::default();
        for dir in entries(&self.dir)? {
            let set = PinnedSet { dir };
            if set.dir != self.current().dir {
                found.unfit.push(set);
                continue;
            }
            match set.unfitness(ours)? {
                None => found.whole = Some(set),
                Some(why) => {
                    warn!(
                        why,
                        "what an earlier controller left at {} cannot be used: its gates are opened, and it is replaced",
                        set.dir.display()
                    );
                    found.unfit.push(self.set_aside(&set)?);
                }
            }
        }
        Ok(found)
    }

    /// Where the maps of this ABI are, or would be.
    pub fn current(&self) -> PinnedSet {
        PinnedSet {
            dir: self.dir.join(format!("abi-{ABI_VERSION}")),
        }
    }

    fn set_aside(&self, set: &PinnedSet) -> Result<PinnedSet, KernelError> {
        let free = (0_u32..)
            .map(|number| self.dir.join(format!("aside-{number}")))
            .find(|dir| !dir.exists());
        let dir = free.expect("some number is free");
        fs::rename(&set.dir, &dir).map_err(|source| pin_error(&set.dir, "set aside", source))?;
        Ok(PinnedSet { dir })
    }
}

/// Maps and links that belong together.
#[derive(Clone, Debug)]
pub struct PinnedSet {
    dir: PathBuf,
}

impl PinnedSet {
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// The name of one of its maps.
    pub(super) fn map_path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The directory of the links to a cgroup.
    pub(super) fn links_to(&self, cgroup: CgroupId) -> PathBuf {
        self.dir.join(format!("{LINKS}{}", cgroup.0))
    }

    /// The cgroups that it has links to, each with the directory of these.
    ///
    /// # Errors
    /// [`KernelError::Pin`].
    pub(super) fn links(&self) -> Result<Vec<(CgroupId, PathBuf)>, KernelError> {
        let dirs = entries(&self.dir)?.into_iter().filter_map(|path| {
            let id = path.file_name()?.to_str()?.strip_prefix(LINKS)?;
            Some((CgroupId(id.parse().ok()?), path))
        });
        Ok(dirs.collect())
    }

    /// Pins all maps of an object here.
    ///
    /// # Errors
    /// [`KernelError::Pin`], [`KernelError::Map`].
    pub(super) fn take(&self, ebpf: &Ebpf) -> Result<(), KernelError> {
        fs::create_dir_all(&self.dir).map_err(|source| pin_error(&self.dir, "make", source))?;
        for (name, map) in ebpf.maps() {
            map.pin(self.map_path(name))
                .map_err(|error| map_error(name, &error))?;
        }
        Ok(())
    }

    /// The globals, whatever the ABI: their beginning never changes.
    ///
    /// # Errors
    /// [`KernelError::Pin`] or [`KernelError::Map`].
    pub(super) fn globals(&self) -> Result<SharedArray<Globals>, KernelError> {
        shared(&self.map(GLOBALS)?, GLOBALS, 1)
    }

    /// The maps, which must be of this ABI.
    ///
    /// # Errors
    /// [`KernelError::Pin`] or [`KernelError::Map`].
    pub fn tables(&self) -> Result<Tables, KernelError> {
        Tables::new(|name| self.map(name))
    }

    fn map(&self, name: &str) -> Result<Map, KernelError> {
        let path = self.map_path(name);
        let map = bpf::pinned(&path).map_err(|source| pin_error(&path, "open", source))?;
        MapData::from_fd(map)
            .and_then(Map::from_map_data)
            .map_err(|error| map_error(name, &error))
    }

    /// Why the maps cannot serve as those of `ours`; `None`: they can.
    fn unfitness(&self, ours: &Ebpf) -> Result<Option<String>, KernelError> {
        for (name, map) in ours.maps() {
            let path = self.map_path(name);
            let there = match bpf::pinned(&path) {
                Ok(there) => there,
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    return Ok(Some(format!("the map {name} is missing")));
                }
                Err(source) => return Err(pin_error(&path, "open", source)),
            };
            let there = MapData::from_fd(there).and_then(|map| map.info());
            let there = Shape::of(&there.map_err(|error| map_error(name, &error))?);
            let wanted = shape(map).map_err(|error| map_error(name, &error))?;
            if there != wanted {
                return Ok(Some(format!(
                    "the map {name} is {there:?}, and must be {wanted:?}"
                )));
            }
        }
        let globals = self.globals()?;
        let version = the_only(&globals).abi_version.load();
        Ok((version != ABI_VERSION).then(|| "it was never finished".to_owned()))
    }

    /// Tells its programs that there is no controller, so that they let everything pass.
    pub fn open_gates(&self) {
        match self.globals() {
            Ok(globals) => open(the_only(&globals)),
            // Without globals there are no programs either: the map is pinned before any is attached.
            Err(error) => warn!(%error, "the gates of {} could not be opened", self.dir.display()),
        }
    }

    /// Takes all names away. Programs are detached with the last user of their links.
    ///
    /// # Errors
    /// [`KernelError::Pin`] naming what stays.
    pub fn remove(&self) -> Result<(), KernelError> {
        for (_, dir) in self.links()? {
            remove_files(&dir)?;
        }
        remove_files(&self.dir)?;
        for above in self.dir.ancestors().skip(1).take(2) {
            // Of the instance, and of all instances. Where there is more in one, it stays.
            let _ = fs::remove_dir(above);
        }
        Ok(())
    }
}

/// Opens all gates that these globals govern.
pub fn open(globals: &Globals) {
    globals.on_loss.store(OnLoss::Open as u32);
    globals.heartbeat_ns.store(0);
}

/// What must be the same for programs to use a map made by others.
#[derive(Debug, PartialEq, Eq)]
struct Shape {
    kind: String,
    key_bytes: u32,
    value_bytes: u32,
    entries: u32,
    flags: u32,
}

impl Shape {
    fn of(info: &MapInfo) -> Self {
        Self {
            kind: info
                .map_type()
                .map_or_else(|_| "unknown".to_owned(), |kind| format!("{kind:?}")),
            key_bytes: info.key_size(),
            value_bytes: info.value_size(),
            entries: info.max_entries(),
            flags: info.map_flags(),
        }
    }
}

/// The shape of a map of an object.
fn shape(map: &Map) -> Result<Shape, aya::maps::MapError> {
    let data = match map {
        Map::Array(data)
        | Map::PerCpuArray(data)
        | Map::HashMap(data)
        | Map::LpmTrie(data)
        | Map::Stack(data)
        | Map::RingBuf(data)
        | Map::SkStorage(data) => data,
        other => panic!("the object has a map of a kind that is not pinned: {other:?}"),
    };
    data.info().map(|info| Shape::of(&info))
}

/// What is in a directory; nothing if it is not there.
fn entries(dir: &Path) -> Result<Vec<PathBuf>, KernelError> {
    let read = |dir: &Path| -> io::Result<Vec<PathBuf>> {
        fs::read_dir(dir)?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect()
    };
    match read(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries.map_err(|source| pin_error(dir, "read", source)),
    }
}

/// Removes the files of a directory and the directory itself.
pub(super) fn remove_files(dir: &Path) -> Result<(), KernelError> {
    let gone = |result: io::Result<()>, path: &Path| match result {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(pin_error(path, "remove", error)),
        _ => Ok(()),
    };
    for path in entries(dir)? {
        gone(fs::remove_file(&path), &path)?;
    }
    gone(fs::remove_dir(dir), dir)
}

pub(super) fn pin_error(path: &Path, action: &'static str, source: io::Error) -> KernelError {
    KernelError::Pin {
        path: path.to_owned(),
        action,
        source,
    }
}
