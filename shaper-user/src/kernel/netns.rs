//! The network namespaces that governed sockets live in.

use std::{
    collections::{HashMap, HashSet, hash_map::Entry},
    fs::{self, File},
    io,
    net::{Ipv4Addr, UdpSocket},
    os::{fd::AsFd, unix::fs::MetadataExt},
    thread,
};

use nix::sched::{CloneFlags, setns};

use super::{
    diag::Diag,
    raw::{RawSockets, netns_of},
};

/// A network namespace, by the cookie that `bpf_get_netns_cookie` gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NetnsCookie(pub u64);

/// What the controller needs in a namespace to act there.
#[derive(Debug)]
pub struct Namespace {
    pub raw: RawSockets,
    pub diag: Diag,
    /// How many unanswered tries TCP makes before it gives a connection up, as set when the namespace was entered.
    pub tcp_retries2: u32,
}

impl Namespace {
    fn open() -> io::Result<Self> {
        Ok(Self {
            raw: RawSockets::open()?,
            diag: Diag::open()?,
            tcp_retries2: tcp_retries2(),
        })
    }
}

/// Sockets in every namespace where something waits, opened on first use and kept until [`Namespaces::retain`] drops
/// them: an open socket keeps its namespace alive.
#[derive(Debug, Default)]
pub struct Namespaces {
    by_cookie: HashMap<NetnsCookie, Namespace>,
}

impl Namespaces {
    /// The namespace `netns`, in which process `pid` lives.
    ///
    /// # Errors
    /// The process or its namespace is gone (`NotFound`), it has moved to another namespace (`InvalidData`), or raw
    /// sockets are not permitted (CAP_NET_RAW, and CAP_SYS_ADMIN to enter a namespace).
    pub fn open(&mut self, netns: NetnsCookie, pid: u32) -> io::Result<&Namespace> {
        match self.by_cookie.entry(netns) {
            Entry::Occupied(open) => Ok(open.into_mut()),
            Entry::Vacant(vacant) => Ok(vacant.insert(enter(netns, pid)?)),
        }
    }

    /// The namespace `netns` if it is open.
    pub fn get(&self, netns: NetnsCookie) -> Option<&Namespace> {
        self.by_cookie.get(&netns)
    }

    /// Closes namespaces that `keep` does not name, so that they can end.
    pub fn retain(&mut self, keep: impl Fn(NetnsCookie) -> bool) {
        self.by_cookie.retain(|netns, _| keep(*netns));
    }
}

/// The calling thread's namespace.
///
/// # Errors
/// No descriptor is left, or the kernel is older than Linux 5.14.
pub fn own_netns() -> io::Result<NetnsCookie> {
    netns_of(&UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?)
}

fn enter(netns: NetnsCookie, pid: u32) -> io::Result<Namespace> {
    let own = Namespace::open()?;
    if own.raw.netns()? == netns {
        return Ok(own);
    }
    let file = File::open(format!("/proc/{pid}/ns/net"))?;
    let entered = inside(&file, Namespace::open)?;
    if entered.raw.netns()? != netns {
        let message = format!("process {pid} is in another network namespace than its socket");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(entered)
}

/// The setting of the calling thread's namespace: the kernel looks at the reader's, whatever the path.
fn tcp_retries2() -> u32 {
    // `TCP_RETR2`.
    const DEFAULT: u32 = 15;
    let text = fs::read_to_string("/proc/sys/net/ipv4/tcp_retries2").unwrap_or_default();
    text.trim().parse().unwrap_or(DEFAULT)
}

/// Opens what `open` opens, in a network namespace. A thread of its own does it: entering a namespace concerns only the
/// thread that does.
fn inside<T: Send>(namespace: &File, open: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    let enter = || {
        setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET)?;
        open()
    };
    thread::scope(|scope| {
        scope
            .spawn(enter)
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    })
}

/// Channels into the calling thread's namespace and into all others that these processes live in. A process that is
/// gone or cannot be entered is left out.
///
/// # Errors
/// If not even the own namespace can be asked.
pub fn diagnose_all(processes: impl IntoIterator<Item = u32>) -> io::Result<Vec<Diag>> {
    let mut channels = vec![Diag::open()?];
    let mut seen: HashSet<u64> = HashSet::from([fs::metadata("/proc/thread-self/ns/net")?.ino()]);
    for pid in processes {
        let Ok(namespace) = File::open(format!("/proc/{pid}/ns/net")) else {
            continue;
        };
        if namespace
            .metadata()
            .is_ok_and(|metadata| seen.insert(metadata.ino()))
        {
            channels.extend(inside(&namespace, Diag::open));
        }
    }
    Ok(channels)
}
