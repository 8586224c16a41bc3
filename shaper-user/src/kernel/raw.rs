//! Sending whole IP packets in a held socket's name.

use std::{
    io,
    mem::{size_of, zeroed},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use shaper_common::Tuple;

use super::{netns::NetnsCookie, segment};

/// How a packet leaves.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub tuple: Tuple,
    /// The socket's mark; routing rules and filters see it on the packet.
    pub mark: u32,
    /// The interface the socket is bound to; 0: none.
    pub ifindex: u32,
}

/// The raw sockets of one network namespace.
#[derive(Debug)]
pub struct RawSockets {
    v4: OwnedFd,
    /// Absent where IPv6 is disabled.
    v6: Option<OwnedFd>,
}

impl RawSockets {
    /// Opens the sockets in the calling thread's namespace.
    ///
    /// # Errors
    /// What `socket` says: EPERM without CAP_NET_RAW.
    pub fn open() -> io::Result<Self> {
        Ok(Self {
            v4: raw_socket(libc::AF_INET)?,
            v6: raw_socket(libc::AF_INET6).ok(),
        })
    }

    /// Sends a whole IP packet.
    ///
    /// # Errors
    /// What `sendmsg` says.
    pub fn send(&self, route: &Route, packet: &[u8]) -> io::Result<()> {
        if segment::is_v4(&route.tuple) {
            send_v4(&self.v4, route, packet)
        } else {
            let socket = self.v6.as_ref().ok_or(io::ErrorKind::Unsupported)?;
            send_v6(socket, route, packet)
        }
    }

    /// The namespace the sockets live in.
    ///
    /// # Errors
    /// As [`netns_of`].
    pub fn netns(&self) -> io::Result<NetnsCookie> {
        netns_of(&self.v4)
    }
}

/// The network namespace that a socket lives in (`SO_NETNS_COOKIE`, Linux 5.14).
///
/// # Errors
/// What `getsockopt` says.
pub fn netns_of(socket: &impl AsRawFd) -> io::Result<NetnsCookie> {
    const SO_NETNS_COOKIE: i32 = 71;
    let mut value = 0_u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: `value` has room for `length` bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_NETNS_COOKIE,
            (&raw mut value).cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(NetnsCookie(value))
    }
}

/// `IPPROTO_RAW` means that packets come with their IP header, for both families (raw(7); `inet_create` and `inet6_create` set the option).
fn raw_socket(family: i32) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(family, kind, libc::IPPROTO_RAW) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn send_v4(socket: &OwnedFd, route: &Route, packet: &[u8]) -> io::Result<()> {
    let remote = segment::v4_of(&route.tuple.remote).ok_or(io::ErrorKind::InvalidInput)?;
    let local = segment::v4_of(&route.tuple.local).ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: all-zero is a valid value of both C structures.
    let (mut to, mut info): (libc::sockaddr_in, libc::in_pktinfo) = unsafe { (zeroed(), zeroed()) };
    to.sin_family = libc::AF_INET as libc::sa_family_t;
    to.sin_addr.s_addr = u32::from_ne_bytes(remote);
    info.ipi_ifindex = route.ifindex as i32;
    info.ipi_spec_dst.s_addr = u32::from_ne_bytes(local);
    send(
        socket,
        &to,
        (libc::IPPROTO_IP, libc::IP_PKTINFO, &info),
        route.mark,
        packet,
    )
}

fn send_v6(socket: &OwnedFd, route: &Route, packet: &[u8]) -> io::Result<()> {
    // SAFETY: all-zero is a valid value of both C structures.
    let (mut to, mut info): (libc::sockaddr_in6, libc::in6_pktinfo) =
        unsafe { (zeroed(), zeroed()) };
    to.sin6_family = libc::AF_INET6 as libc::sa_family_t;
    to.sin6_addr.s6_addr = route.tuple.remote;
    // Link-local peers are reached through the interface the socket is bound to.
    to.sin6_scope_id = route.ifindex;
    info.ipi6_ifindex = route.ifindex;
    info.ipi6_addr.s6_addr = route.tuple.local;
    send(
        socket,
        &to,
        (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info),
        route.mark,
        packet,
    )
}

/// `sendmsg` with the packet's source and interface (`info`) and its mark as control messages.
fn send<A, I: Copy>(
    socket: &OwnedFd,
    to: &A,
    (level, kind, info): (i32, i32, &I),
    mark: u32,
    packet: &[u8],
) -> io::Result<()> {
    // Room for two control messages; u64 for their alignment.
    let mut control = [0_u64; 16];
    let mut part = libc::iovec {
        iov_base: packet.as_ptr().cast_mut().cast(),
        iov_len: packet.len(),
    };
    // SAFETY: all-zero is a valid value.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_name = std::ptr::from_ref(to).cast_mut().cast();
    message.msg_namelen = size_of::<A>() as libc::socklen_t;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    // SAFETY: `control` is larger than the two messages written here (20 and 4 bytes with their headers), and the
    // pointers stay inside it.
    let sent = unsafe {
        let mut used = libc::CMSG_SPACE(size_of::<I>() as u32) as usize;
        if mark != 0 {
            used += libc::CMSG_SPACE(size_of::<u32>() as u32) as usize;
        }
        message.msg_controllen = used as _;
        let first = libc::CMSG_FIRSTHDR(&raw const message);
        put_control(first, level, kind, *info);
        if mark != 0 {
            let second = libc::CMSG_NXTHDR(&raw const message, first);
            put_control(second, libc::SOL_SOCKET, libc::SO_MARK, mark);
        }
        libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_DONTWAIT)
    };
    if sent < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// # Safety
/// `header` must point at room for a control message with a `T`.
unsafe fn put_control<T>(header: *mut libc::cmsghdr, level: i32, kind: i32, value: T) {
    // SAFETY: as promised by the caller.
    unsafe {
        (*header).cmsg_level = level;
        (*header).cmsg_type = kind;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<T>() as u32) as _;
        libc::CMSG_DATA(header).cast::<T>().write_unaligned(value);
    }
}
