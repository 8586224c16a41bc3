//! The network namespaces that governed sockets live in.

use std::{
    collections::{HashMap, hash_map::Entry},
    fs::File,
    io,
    os::fd::AsFd,
    thread,
};

use nix::sched::{CloneFlags, setns};

use super::{diag::Diag, raw::RawSockets};

/// A network namespace, by the cookie that `bpf_get_netns_cookie` gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NetnsCookie(pub u64);

/// What the controller needs in a namespace to act there.
#[derive(Debug)]
pub struct Namespace {
    pub raw: RawSockets,
    pub diag: Diag,
}

impl Namespace {
    fn open() -> io::Result<Self> {
        Ok(Self {
            raw: RawSockets::open()?,
            diag: Diag::open()?,
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

fn enter(netns: NetnsCookie, pid: u32) -> io::Result<Namespace> {
    let own = Namespace::open()?;
    if own.raw.netns()? == netns {
        return Ok(own);
    }
    let file = File::open(format!("/proc/{pid}/ns/net"))?;
    // A thread of its own: entering a namespace concerns only the thread that does.
    let entered = thread::scope(|scope| {
        let enter = || {
            setns(file.as_fd(), CloneFlags::CLONE_NEWNET)?;
            Namespace::open()
        };
        scope
            .spawn(enter)
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    })?;
    if entered.raw.netns()? != netns {
        let message = format!("process {pid} is in another network namespace than its socket");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(entered)
}
