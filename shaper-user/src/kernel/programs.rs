//! Loading the object and attaching its programs to the class cgroups.

use std::{
    collections::{HashMap, HashSet},
    fs::{self, File},
    io::ErrorKind,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use aya::{
    Ebpf, EbpfLoader,
    programs::{Program, ProgramError, loaded_programs},
};
use nix::errno::Errno;
use tracing::{debug, warn};

use super::{
    CgroupRoot, KernelError,
    bpf::{self, Hook},
    capabilities, cgroups,
    cgroups::CgroupId,
    events::Events,
    heart::Heart,
    pins::{Found, PinnedSet, pin_error, remove_files},
    tables::{GLOBALS, Tables, chain, map_error, shared},
};

/// The programs in the order in which they are attached: a socket must not be seen by a later stage before the
/// earlier ones would have caught it, so the connect programs, which make records, come last.
const PROGRAMS: [(&str, Hook); 8] = [
    ("shaper_release", Hook::SockRelease),
    ("shaper_sockops", Hook::SockOps),
    ("shaper_ingress", Hook::Ingress),
    ("shaper_egress", Hook::Egress),
    ("shaper_sendmsg6", Hook::Sendmsg6),
    ("shaper_sendmsg4", Hook::Sendmsg4),
    ("shaper_connect6", Hook::Connect6),
    (LAST, Hook::Connect4),
];

/// The program that tells a governed cgroup. The kernel keeps 15 characters of a name: all of this one.
const LAST: &str = "shaper_connect4";

/// Where the maps come from, and whether they outlive the process.
#[derive(Clone, Copy, Debug)]
pub enum Maps<'a> {
    /// New ones, which go with the process.
    Own,
    /// New ones, pinned here.
    Pinned(&'a PinnedSet),
    /// Those that an earlier controller has pinned here.
    Adopted(&'a PinnedSet),
}

/// A loaded object. Dropping it detaches what is not pinned.
#[derive(Debug)]
pub struct Programs {
    ebpf: Ebpf,
    /// By the cgroup they lead to.
    attached: HashMap<PathBuf, Attached>,
    /// Where links are pinned.
    pins: Option<PinnedSet>,
    /// The start has succeeded: what this process has pinned stays.
    settled: bool,
    /// Whether the pins are this process's own making.
    made: bool,
    /// Programs of this instance, earlier controllers' included.
    ours: HashSet<u32>,
}

#[derive(Debug)]
struct Attached {
    /// Dropping a link detaches its program, unless it is pinned.
    _links: Vec<OwnedFd>,
    /// Where they are pinned.
    pins: Option<PathBuf>,
    /// Attached by this process.
    new: bool,
}

/// The programs in the kernel, attached nowhere yet unless their maps were adopted, and their maps.
pub struct Loaded {
    pub programs: Programs,
    pub tables: Tables,
    pub events: Events,
    pub heart: Heart,
}

/// Makes the maps of an object, to see what they are like.
///
/// # Errors
/// [`KernelError::NotPermitted`], [`KernelError::Object`].
pub fn scratch(object: &[u8]) -> Result<Ebpf, KernelError> {
    open(object, None)
}

/// Loads the programs into the kernel. From then on there are signs of life.
///
/// # Errors
/// [`KernelError::NotPermitted`], [`KernelError::Load`] with the verifier's last words, or what else went wrong.
pub fn load(object: &[u8], maps: Maps<'_>) -> Result<Loaded, KernelError> {
    let early = match maps {
        Maps::Adopted(set) => Some(Heart::start(set.globals()?)),
        _ => None,
    };
    let mut ebpf = match maps {
        Maps::Adopted(set) => open(object, Some(set))?,
        _ => open(object, None)?,
    };
    for (name, _) in PROGRAMS {
        load_program(&mut ebpf, name)?;
    }
    let mut programs = Programs {
        ours: HashSet::from([id_of(&ebpf)?]),
        ebpf,
        attached: HashMap::new(),
        pins: None,
        settled: false,
        made: false,
    };
    match maps {
        Maps::Own => {}
        Maps::Pinned(set) => {
            // From here on, a failure removes them.
            programs.made = true;
            programs.pins = Some(set.clone());
            set.take(&programs.ebpf)?;
        }
        Maps::Adopted(set) => programs.pins = Some(set.clone()),
    }
    let ebpf = &mut programs.ebpf;
    let heart = match early {
        Some(heart) => heart,
        None => {
            let globals = ebpf.map(GLOBALS).ok_or_else(|| absent(GLOBALS))?;
            Heart::start(shared(globals, GLOBALS, 1)?)
        }
    };
    let mut take = |name: &'static str| ebpf.take_map(name).ok_or_else(|| absent(name));
    let tables = Tables::new(&mut take)?;
    let ring = take("EVENTS")?
        .try_into()
        .map_err(|error| map_error("EVENTS", &error))?;
    Ok(Loaded {
        programs,
        tables,
        events: Events::new(ring),
        heart,
    })
}

/// What the kernel says to one program.
#[derive(Debug)]
pub struct Trial {
    pub program: &'static str,
    pub result: Result<(), KernelError>,
}

/// Loads each program by itself and drops it again: which of them does this kernel accept?
///
/// # Errors
/// As [`load`], but for the programs.
pub fn try_each(object: &[u8]) -> Result<Vec<Trial>, KernelError> {
    let mut ebpf = open(object, None)?;
    let trials = PROGRAMS.map(|(program, _)| Trial {
        program,
        result: load_program(&mut ebpf, program),
    });
    Ok(trials.into())
}

/// Makes the maps, or takes all of them from `pins`.
fn open(object: &[u8], pins: Option<&PinnedSet>) -> Result<Ebpf, KernelError> {
    capabilities::require()?;
    let mut loader = EbpfLoader::new();
    let names = match pins {
        // Without a list, none would be forgotten: what is absent from the pins would be made and pinned there.
        Some(_) => map_names(&scratch(object)?),
        None => Vec::new(),
    };
    for name in &names {
        if let Some(set) = pins {
            loader.map_pin_path(name.as_str(), set.map_path(name));
        }
    }
    loader
        .load(object)
        .map_err(|error| KernelError::Object(chain(&error)))
}

fn map_names(ebpf: &Ebpf) -> Vec<String> {
    ebpf.maps().map(|(name, _)| name.to_owned()).collect()
}

fn load_program(ebpf: &mut Ebpf, name: &'static str) -> Result<(), KernelError> {
    let loaded = match program(ebpf, name)? {
        Program::CgroupSkb(program) => program.load(),
        Program::CgroupSock(program) => program.load(),
        Program::CgroupSockAddr(program) => program.load(),
        Program::SockOps(program) => program.load(),
        _ => {
            return Err(KernelError::Load {
                program: name,
                cause: "unexpected program type".to_owned(),
            });
        }
    };
    loaded.map_err(|error| load_error(name, &error))
}

impl Programs {
    /// Takes over what an earlier controller attached: in its links the new programs replace the old ones, one hook after
    /// the other, and no connect or packet goes unseen. Links to cgroups that are gone are removed. Returns the cgroups.
    ///
    /// # Errors
    /// [`KernelError::Attach`], [`KernelError::Pin`].
    pub fn take_over(
        &mut self,
        root: &CgroupRoot,
    ) -> Result<Vec<(PathBuf, CgroupId)>, KernelError> {
        let Some(pins) = self.pins.clone() else {
            return Ok(Vec::new());
        };
        let found = pins.links()?;
        let there = root.locate(&found.iter().map(|(id, _)| *id).collect());
        let mut taken = Vec::new();
        for (id, dir) in found {
            let links = match there.get(&id) {
                Some(path) => self.replace_in(path, &dir)?.map(|links| (path, links)),
                None => None,
            };
            let Some((path, links)) = links else {
                remove_files(&dir)?;
                continue;
            };
            let attached = Attached {
                _links: links,
                pins: Some(dir),
                new: false,
            };
            self.attached.insert(path.clone(), attached);
            taken.push((path.clone(), id));
        }
        Ok(taken)
    }

    /// The links pinned in `dir`, with the new programs in them. `None`: their cgroup is gone.
    fn replace_in(&self, path: &Path, dir: &Path) -> Result<Option<Vec<OwnedFd>>, KernelError> {
        let mut links = Vec::new();
        for (name, hook) in PROGRAMS {
            let pin = dir.join(name);
            let replaced = match bpf::pinned(&pin) {
                Ok(link) => {
                    let program = self.program(name)?;
                    bpf::link_update(link.as_fd(), program).map(|()| link)
                }
                // The earlier controller ended in between.
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    links.push(self.attach_one(name, hook, path, Some(dir))?);
                    continue;
                }
                Err(source) => return Err(pin_error(&pin, "open", source)),
            };
            match replaced {
                Ok(link) => links.push(link),
                Err(error) if error.raw_os_error() == Some(Errno::ENOLINK as i32) => {
                    return Ok(None);
                }
                Err(source) => {
                    return Err(KernelError::Attach {
                        program: name,
                        cgroup: path.to_owned(),
                        cause: source.to_string(),
                    });
                }
            }
        }
        Ok(Some(links))
    }

    /// Attaches all programs to a cgroup. Its sockets and those of all cgroups below are governed from then on.
    ///
    /// # Errors
    /// [`KernelError::Attach`]; nothing stays attached then.
    pub fn attach(&mut self, path: &Path) -> Result<(), KernelError> {
        let pins = match &self.pins {
            Some(pins) => Some(pins.links_to(cgroups::id_of(path)?)),
            None => None,
        };
        let attach = || -> Result<Vec<OwnedFd>, KernelError> {
            if let Some(dir) = &pins {
                fs::create_dir_all(dir).map_err(|source| pin_error(dir, "make", source))?;
            }
            PROGRAMS
                .iter()
                .map(|(name, hook)| self.attach_one(name, *hook, path, pins.as_deref()))
                .collect()
        };
        let links = attach().inspect_err(|_| {
            if let Some(dir) = &pins {
                // The first error counts.
                let _ = remove_files(dir);
            }
        })?;
        let attached = Attached {
            _links: links,
            pins,
            new: true,
        };
        self.attached.insert(path.to_owned(), attached);
        Ok(())
    }

    /// Detaches from a cgroup.
    pub fn detach(&mut self, path: &Path) {
        let attached = self.attached.remove(path);
        if let Some(dir) = attached.and_then(|attached| attached.pins)
            && let Err(error) = remove_files(&dir)
        {
            warn!(%error, "a cgroup that is gone has left something");
        }
    }

    fn attach_one(
        &self,
        name: &'static str,
        hook: Hook,
        path: &Path,
        pins: Option<&Path>,
    ) -> Result<OwnedFd, KernelError> {
        let cgroup = File::open(path).map_err(|source| KernelError::Cgroup {
            path: path.to_owned(),
            action: "open",
            source,
        })?;
        let program = self.program(name)?;
        bpf::link_create(program, cgroup.as_fd(), hook)
            .and_then(|link| {
                if let Some(dir) = pins {
                    bpf::pin(&link, &dir.join(name))?;
                }
                Ok(link)
            })
            .map_err(|source| KernelError::Attach {
                program: name,
                cgroup: path.to_owned(),
                cause: source.to_string(),
            })
    }

    fn program(&self, name: &'static str) -> Result<std::os::fd::BorrowedFd<'_>, KernelError> {
        let program = self.ebpf.program(name).map(Program::fd);
        match program {
            Some(Ok(fd)) => Ok(fd.as_fd()),
            _ => Err(KernelError::Load {
                program: name,
                cause: "it is not loaded".to_owned(),
            }),
        }
    }

    /// Notes which programs belong to this instance, for [`Programs::is_governed_by_others`].
    pub fn know(&mut self, found: &Found) -> Result<(), KernelError> {
        self.ours.extend(found.programs()?);
        Ok(())
    }

    /// Whether another instance's programs see sockets of this cgroup or of one below it.
    ///
    /// # Errors
    /// [`KernelError::Load`] if the kernel's programs cannot be listed, [`KernelError::Cgroup`] if those of a cgroup
    /// cannot. A cgroup that disappears meanwhile is no error.
    pub fn is_governed_by_others(&self, path: &Path) -> Result<bool, KernelError> {
        let mut others = HashSet::new();
        for program in loaded_programs() {
            match program {
                Ok(program) if program.name_as_str() == Some(LAST) => {
                    others.insert(program.id());
                }
                Ok(_) => {}
                Err(ProgramError::SyscallError(error))
                    if error.io_error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(load_error(LAST, &error)),
            }
        }
        others.retain(|id| !self.ours.contains(id));
        if others.is_empty() {
            return Ok(false);
        }
        for group in cgroups::walk(&[path.to_owned()]) {
            let programs = File::open(&group)
                .and_then(|group| bpf::programs_at(group.as_fd(), Hook::Connect4));
            match programs {
                Ok(programs) if programs.iter().any(|id| others.contains(id)) => return Ok(true),
                Ok(_) => {}
                Err(_) if !group.exists() => {}
                Err(source) => {
                    return Err(KernelError::Cgroup {
                        path: group,
                        action: "look at the programs of",
                        source,
                    });
                }
            }
        }
        Ok(false)
    }

    /// The start has succeeded: what was pinned outlives this process.
    pub fn settle(&mut self) {
        self.settled = true;
    }

    /// Takes all names away: programs and maps go with this process from now on.
    pub fn unpin(&mut self) {
        for attached in self.attached.values_mut() {
            attached.pins = None;
        }
        if let Some(pins) = self.pins.take() {
            match pins.remove() {
                Ok(()) => debug!("nothing is pinned any more: the programs go with this process"),
                Err(error) => warn!(%error, "something stays pinned"),
            }
        }
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        // The start has failed: what it made goes, and what it found stays.
        let removed = match &self.pins {
            Some(pins) if self.made => pins.remove(),
            _ => self
                .attached
                .values()
                .filter(|attached| attached.new)
                .filter_map(|attached| attached.pins.as_deref())
                .try_for_each(remove_files),
        };
        if let Err(error) = removed {
            warn!(%error, "a failed start has left something");
        }
    }
}

fn id_of(ebpf: &Ebpf) -> Result<u32, KernelError> {
    let info = ebpf.program(LAST).map(Program::info);
    match info {
        Some(Ok(info)) => Ok(info.id()),
        Some(Err(error)) => Err(load_error(LAST, &error)),
        None => Err(KernelError::Load {
            program: LAST,
            cause: "the object does not have it".to_owned(),
        }),
    }
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut Program, KernelError> {
    ebpf.program_mut(name).ok_or_else(|| KernelError::Load {
        program: name,
        cause: "the object does not have it".to_owned(),
    })
}

fn load_error(program: &'static str, error: &ProgramError) -> KernelError {
    KernelError::Load {
        program,
        cause: chain(error),
    }
}

fn absent(map: &str) -> KernelError {
    KernelError::Map {
        map: map.to_owned(),
        cause: "the object does not have it".to_owned(),
    }
}
