//! Loading the object and attaching its programs to the class cgroups.

use std::{
    collections::HashMap,
    fs::File,
    path::{Path, PathBuf},
};

use aya::{
    Ebpf, EbpfLoader,
    programs::{
        CgroupAttachMode, CgroupSkb, CgroupSkbAttachType, CgroupSock, CgroupSockAddr, Program,
        ProgramError, SockOps, links::FdLink,
    },
};

use super::{
    KernelError, capabilities,
    events::Events,
    tables::{Tables, chain, map_error, take_map},
};

/// The programs in the order in which they are attached: a socket must not be seen by a later stage before the
/// earlier ones would have caught it, so the connect programs, which make records, come last.
const PROGRAMS: [&str; 8] = [
    "shaper_release",
    "shaper_sockops",
    "shaper_ingress",
    "shaper_egress",
    "shaper_sendmsg6",
    "shaper_sendmsg4",
    "shaper_connect6",
    "shaper_connect4",
];

/// A loaded object. Dropping it detaches everything.
#[derive(Debug)]
pub struct Programs {
    ebpf: Ebpf,
    /// By the cgroup they lead to. Dropping a link detaches.
    links: HashMap<PathBuf, Vec<FdLink>>,
}

/// The programs in the kernel, attached nowhere yet, and their maps.
pub struct Loaded {
    pub programs: Programs,
    pub tables: Tables,
    pub events: Events,
}

/// Loads the programs into the kernel.
///
/// # Errors
/// [`KernelError::NotPermitted`], [`KernelError::Load`] with the verifier's last words, or what else went wrong.
pub fn load(object: &[u8]) -> Result<Loaded, KernelError> {
    let mut ebpf = open(object)?;
    for name in PROGRAMS {
        load_program(&mut ebpf, name)?;
    }
    let tables = Tables::new(&mut ebpf)?;
    let ring = take_map(&mut ebpf, "EVENTS")?
        .try_into()
        .map_err(|error| map_error("EVENTS", &error))?;
    Ok(Loaded {
        programs: Programs {
            ebpf,
            links: HashMap::new(),
        },
        tables,
        events: Events::new(ring),
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
    let mut ebpf = open(object)?;
    let trials = PROGRAMS.map(|program| Trial {
        program,
        result: load_program(&mut ebpf, program),
    });
    Ok(trials.into())
}

/// Makes the maps.
fn open(object: &[u8]) -> Result<Ebpf, KernelError> {
    capabilities::require()?;
    EbpfLoader::new()
        .load(object)
        .map_err(|error| KernelError::Object(chain(&error)))
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
    /// Attaches all programs to a cgroup. Its sockets and those of all cgroups below are governed from then on.
    ///
    /// # Errors
    /// [`KernelError::Attach`]; what was attached before goes with `self`.
    pub fn attach(&mut self, path: &Path) -> Result<(), KernelError> {
        let cgroup = File::open(path).map_err(|source| KernelError::Cgroup {
            path: path.to_owned(),
            action: "open",
            source,
        })?;
        let mut links = Vec::new();
        for name in PROGRAMS {
            let link = self
                .attach_one(name, &cgroup)
                .map_err(|error| KernelError::Attach {
                    program: name,
                    cgroup: path.to_owned(),
                    cause: chain(&error),
                })?;
            links.push(link);
        }
        self.links.insert(path.to_owned(), links);
        Ok(())
    }

    /// Detaches from a cgroup.
    pub fn detach(&mut self, path: &Path) {
        self.links.remove(path);
    }

    /// With links, which allow several programs side by side whatever the mode: `Single` is flag 0, the only value
    /// `cgroup_bpf_link_attach` takes.
    fn attach_one(&mut self, name: &'static str, cgroup: &File) -> Result<FdLink, ProgramError> {
        let mode = CgroupAttachMode::Single;
        let link = match self.ebpf.program_mut(name) {
            Some(Program::CgroupSkb(program)) => {
                let direction = if name == "shaper_egress" {
                    CgroupSkbAttachType::Egress
                } else {
                    CgroupSkbAttachType::Ingress
                };
                let id = CgroupSkb::attach(program, cgroup, direction, mode)?;
                program.take_link(id)?.try_into()
            }
            Some(Program::CgroupSock(program)) => {
                let id = CgroupSock::attach(program, cgroup, mode)?;
                program.take_link(id)?.try_into()
            }
            Some(Program::CgroupSockAddr(program)) => {
                let id = CgroupSockAddr::attach(program, cgroup, mode)?;
                program.take_link(id)?.try_into()
            }
            Some(Program::SockOps(program)) => {
                let id = SockOps::attach(program, cgroup, mode)?;
                program.take_link(id)?.try_into()
            }
            _ => return Err(ProgramError::NotLoaded),
        };
        // Older kernels attach without a link; the programs need a newer one anyway.
        link.map_err(|_| ProgramError::NotAttached)
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
