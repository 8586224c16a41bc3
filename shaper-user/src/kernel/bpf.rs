//! The few calls of bpf(2) that are needed beyond aya: links that are replaced in place, and pins.

use std::{
    ffi::{CString, c_int},
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::Path,
};

/// `enum bpf_cmd` of include/uapi/linux/bpf.h.
#[derive(Clone, Copy)]
#[repr(i64)]
enum Command {
    ObjPin = 6,
    ObjGet = 7,
    InfoByFd = 15,
    ProgQuery = 16,
    LinkCreate = 28,
    LinkUpdate = 29,
}

/// Where in a cgroup a program runs: `enum bpf_attach_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Hook {
    Ingress = 0,
    Egress = 1,
    SockOps = 3,
    Connect4 = 10,
    Connect6 = 11,
    Sendmsg4 = 14,
    Sendmsg6 = 15,
    SockRelease = 34,
}

/// Attaches a program to a cgroup, beside those that are there (Linux 5.7). Dropping the link detaches it, unless it is
/// pinned.
///
/// # Errors
/// What bpf(2) says.
pub(super) fn link_create(
    program: BorrowedFd<'_>,
    cgroup: BorrowedFd<'_>,
    hook: Hook,
) -> io::Result<OwnedFd> {
    #[repr(C)]
    struct Attributes {
        program: c_int,
        cgroup: c_int,
        hook: u32,
        flags: u32,
    }
    descriptor(
        Command::LinkCreate,
        Attributes {
            program: program.as_raw_fd(),
            cgroup: cgroup.as_raw_fd(),
            hook: hook as u32,
            flags: 0,
        },
    )
}

/// Puts another program in a link's place, in one step: every packet and every connect meets the one or the other.
///
/// # Errors
/// ENOLINK: the link's cgroup is gone (`cgroup_bpf_replace`).
pub(super) fn link_update(link: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    #[repr(C)]
    struct Attributes {
        link: c_int,
        program: c_int,
        flags: u32,
        old_program: c_int,
    }
    call(
        Command::LinkUpdate,
        &mut Attributes {
            link: link.as_raw_fd(),
            program: program.as_raw_fd(),
            flags: 0,
            old_program: 0,
        },
    )
    .map(drop)
}

/// The part of `union bpf_attr` that pinning reads.
#[repr(C)]
struct Pin {
    path: u64,
    object: c_int,
    flags: u32,
}

/// Gives a map, program or link a name in a bpf file system, which keeps it alive.
///
/// # Errors
/// What bpf(2) says: EEXIST, EPERM outside of a bpf file system.
pub(super) fn pin(object: impl AsFd, path: &Path) -> io::Result<()> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    call(
        Command::ObjPin,
        &mut Pin {
            path: name.as_ptr() as u64,
            object: object.as_fd().as_raw_fd(),
            flags: 0,
        },
    )
    .map(drop)
}

/// The object with this name.
///
/// # Errors
/// What bpf(2) says: ENOENT, EPERM.
pub(super) fn pinned(path: &Path) -> io::Result<OwnedFd> {
    let name = CString::new(path.as_os_str().as_bytes())?;
    descriptor(
        Command::ObjGet,
        Pin {
            path: name.as_ptr() as u64,
            object: 0,
            flags: 0,
        },
    )
}

/// The id of the program that a link leads to.
///
/// # Errors
/// What bpf(2) says.
pub(super) fn program_of(link: BorrowedFd<'_>) -> io::Result<u32> {
    /// The beginning of `struct bpf_link_info`.
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        kind: u32,
        id: u32,
        program: u32,
        reserved: u32,
    }
    #[repr(C)]
    struct Attributes {
        object: c_int,
        len: u32,
        info: u64,
    }
    let mut info = Info::default();
    call(
        Command::InfoByFd,
        &mut Attributes {
            object: link.as_raw_fd(),
            len: size_of::<Info>() as u32,
            info: (&raw mut info) as u64,
        },
    )?;
    Ok(info.program)
}

/// The ids of the programs that run at a hook of a cgroup, those attached to cgroups above included.
///
/// # Errors
/// What bpf(2) says.
pub(super) fn programs_at(cgroup: BorrowedFd<'_>, hook: Hook) -> io::Result<Vec<u32>> {
    const EFFECTIVE: u32 = 1;
    /// `BPF_CGROUP_MAX_PROGS` a cgroup, and some depth.
    const ROOM: usize = 1024;
    #[repr(C)]
    struct Attributes {
        cgroup: c_int,
        hook: u32,
        query_flags: u32,
        attach_flags: u32,
        ids: u64,
        count: u32,
        reserved: u32,
        /// `prog_attach_flags`, `link_ids` and `link_attach_flags`, which nobody asks for, and `revision`, which Linux 6.17 to
        /// 7.1 write whatever the size (`__cgroup_bpf_query`).
        rest: [u64; 4],
    }
    const _: () = assert!(size_of::<Attributes>() == 64);
    let mut ids = vec![0_u32; ROOM];
    let mut attributes = Attributes {
        cgroup: cgroup.as_raw_fd(),
        hook: hook as u32,
        query_flags: EFFECTIVE,
        attach_flags: 0,
        ids: ids.as_mut_ptr() as u64,
        count: ROOM as u32,
        reserved: 0,
        rest: [0; 4],
    };
    call(Command::ProgQuery, &mut attributes)?;
    ids.truncate(attributes.count as usize);
    Ok(ids)
}

fn descriptor<T>(command: Command, mut attributes: T) -> io::Result<OwnedFd> {
    let fd = call(command, &mut attributes)?;
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `T` is the beginning of `union bpf_attr` as `command` reads and writes it; what it points to lives for the call.
fn call<T>(command: Command, attributes: &mut T) -> io::Result<c_int> {
    // SAFETY: the structure is as long as said, and has all that the command writes. What is missing the kernel takes for
    // zero (`bpf_check_uarg_tail_zero`).
    let result = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command as libc::c_long,
            std::ptr::from_mut(attributes),
            size_of::<T>(),
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result as c_int)
    }
}
