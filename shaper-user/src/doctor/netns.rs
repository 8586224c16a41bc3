//! A network namespace that lasts as long as the examination, and listeners in it that nobody else can reach.

use std::{
    fs::File,
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    os::fd::{AsFd, AsRawFd},
    thread,
};

use nix::{
    sched::{CloneFlags, unshare},
    sys::socket::{AddressFamily, SockFlag, SockType, socket},
};
use shaper_common::Family;

/// Where the examination's clients connect to.
#[derive(Debug)]
pub struct Ground {
    /// `None`: the host's own namespace.
    netns: Option<File>,
    v4: TcpListener,
    /// Absent where IPv6 is disabled.
    v6: Option<TcpListener>,
}

impl Ground {
    /// In a namespace of its own, with nothing but a loopback device. It is gone when the last user has gone.
    ///
    /// # Errors
    /// Not permitted (CAP_SYS_ADMIN), or a kernel without network namespaces.
    pub fn in_new_namespace() -> io::Result<Self> {
        let work = || {
            unshare(CloneFlags::CLONE_NEWNET)?;
            let netns = File::open("/proc/thread-self/ns/net")?;
            raise_loopback()?;
            Ok(Self {
                netns: Some(netns),
                ..Self::listen()?
            })
        };
        // A thread of its own: a namespace concerns only the thread that entered it. Sockets stay in theirs.
        thread::scope(|scope| scope.spawn(work).join())
            .unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    }

    /// In the host's own namespace.
    ///
    /// # Errors
    /// When loopback is down.
    pub fn in_own_namespace() -> io::Result<Self> {
        Self::listen()
    }

    fn listen() -> io::Result<Self> {
        let v4 = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        v4.set_nonblocking(true)?;
        let v6 = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).ok();
        if let Some(v6) = &v6 {
            v6.set_nonblocking(true)?;
        }
        Ok(Self {
            netns: None,
            v4,
            v6,
        })
    }

    pub fn netns(&self) -> Option<&File> {
        self.netns.as_ref()
    }

    /// The listener of a family. `None`: this host has no such addresses.
    pub fn listener(&self, family: Family) -> Option<&TcpListener> {
        match family {
            Family::V4 => Some(&self.v4),
            Family::V6 => self.v6.as_ref(),
        }
    }

    /// Where the listeners listen.
    pub fn endpoints(&self) -> impl Iterator<Item = SocketAddr> {
        [Some(&self.v4), self.v6.as_ref()]
            .into_iter()
            .flatten()
            .filter_map(|listener| listener.local_addr().ok())
    }
}

/// Sets the loopback device of the calling thread's namespace up, which gives it its addresses.
fn raise_loopback() -> io::Result<()> {
    let socket = socket(
        AddressFamily::Inet,
        SockType::Datagram,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    // SAFETY: all-zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed() as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request is what this ioctl takes (netdevice(7)), and lives for the call.
    let result = unsafe {
        libc::ioctl(
            socket.as_fd().as_raw_fd(),
            libc::SIOCSIFFLAGS as _,
            &raw const request,
        )
    };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
