//! Finding and ending sockets of other processes through socket diagnostics (sock_diag(7)).

use std::{
    collections::HashSet,
    io,
    mem::size_of,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use shaper_common::Endpoint;

use super::{cgroups::CgroupId, raw::Route, segment};

/// `SOCK_DIAG_BY_FAMILY`: Linux 3.3.
const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// `SOCK_DESTROY` of include/uapi/linux/sock_diag.h: Linux 4.5, CONFIG_INET_DIAG_DESTROY.
const SOCK_DESTROY: u16 = 21;
/// Any state (`TCPF_ALL`).
const ALL_STATES: u32 = u32::MAX;

/// A socket that is looking for a peer: `TCP_SYN_SENT` (2) of tcp_states.h.
const CONNECTING: u32 = 1 << 2;

/// The same, or one that has a peer: `TCP_ESTABLISHED` (1).
const CONNECTED: u32 = 1 << 1 | CONNECTING;

/// Offset of `idiag_timer` in `struct inet_diag_msg`, and its value for TIME_WAIT (`inet_twsk_diag_fill`).
const TIMER: usize = 2;
const TIMER_TIME_WAIT: u8 = 3;

/// `INET_DIAG_CGROUP_ID` of include/uapi/linux/inet_diag.h: Linux 5.9, told without being asked for.
const INET_DIAG_CGROUP_ID: u16 = 21;

/// A connected TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSocket {
    /// Unique on the host.
    pub cookie: u64,
    /// The cgroup it was created in.
    pub cgroup: CgroupId,
    /// The peer.
    pub remote: Endpoint,
}

/// A socket-diagnostics channel into one network namespace.
#[derive(Debug)]
pub struct Diag {
    netlink: OwnedFd,
}

/// `struct nlmsghdr` followed by `struct inet_diag_req_v2`, and what both fix about their layout.
#[repr(C)]
struct Request {
    length: u32,
    kind: u16,
    flags: u16,
    sequence: u32,
    port: u32,
    family: u8,
    protocol: u8,
    extensions: u8,
    pad: u8,
    states: u32,
    local_port: [u8; 2],
    remote_port: [u8; 2],
    local: [u8; 16],
    remote: [u8; 16],
    ifindex: u32,
    cookie: [u32; 2],
}

const _: () = assert!(size_of::<Request>() == 16 + 56);

impl Diag {
    /// Opens the channel in the calling thread's namespace.
    ///
    /// # Errors
    /// What `socket` says.
    pub fn open() -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_SOCK_DIAG) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        let netlink = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { netlink })
    }

    /// Ends the TCP socket with this cookie: its owner gets ECONNABORTED, an established peer a reset.
    ///
    /// # Errors
    /// `NotFound`: there is no such socket (any more). `Unsupported`: the kernel was built without socket destroy.
    /// `PermissionDenied` without CAP_NET_ADMIN in the namespace.
    pub fn destroy(&self, route: &Route, cookie: u64) -> io::Result<()> {
        self.exchange(&Request {
            kind: SOCK_DESTROY,
            flags: (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16,
            ..Request::about_socket(route, cookie)
        })
    }

    /// Ends all TCP sockets with these cookies, whatever their addresses and interfaces are by now: looks at every socket of
    /// the namespace, once. Those that there are not (any more) are passed over.
    ///
    /// # Errors
    /// As [`Diag::destroy`], but for `NotFound`; the first one, when all have been tried.
    pub fn destroy_anywhere(&self, cookies: &HashSet<u64>) -> io::Result<()> {
        let mut found = Vec::new();
        self.dump(ALL_STATES, |socket| {
            if cookie_in(socket).is_some_and(|cookie| cookies.contains(&cookie)) {
                found.extend(Request::about(socket));
            }
        })?;
        let mut all = Ok(());
        for socket in found {
            let ended = self.exchange(&Request {
                kind: SOCK_DESTROY,
                flags: (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16,
                ..socket
            });
            match ended {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                ended => all = all.and(ended),
            }
        }
        all
    }

    /// All connected TCP sockets of the namespace, both families. Before Linux 5.9 their cgroups are not told, and the
    /// list is empty.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn connected(&self) -> io::Result<Vec<TcpSocket>> {
        let mut sockets = Vec::new();
        self.dump(CONNECTED, |socket| sockets.extend(socket_in(socket)))?;
        Ok(sockets)
    }

    /// Those of `cookies` that TCP sockets have, whatever their addresses and interfaces: looks at every socket of the
    /// namespace, once. What does not count here is what does not for [`Diag::exists`].
    ///
    /// # Errors
    /// What the kernel says.
    pub fn exist_anywhere(&self, cookies: &HashSet<u64>) -> io::Result<HashSet<u64>> {
        let mut existing = HashSet::new();
        self.dump(ALL_STATES, |socket| {
            if let Some(cookie) = cookie_in(socket).filter(|cookie| cookies.contains(cookie))
                && is_alive(socket)
            {
                existing.insert(cookie);
            }
        })?;
        Ok(existing)
    }

    /// Those of `cookies` that TCP sockets have which connect, or will with their first write.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn connecting(&self, cookies: &HashSet<u64>) -> io::Result<HashSet<u64>> {
        let mut connecting = HashSet::new();
        self.dump(CONNECTING, |socket| {
            connecting.extend(cookie_in(socket).filter(|cookie| cookies.contains(cookie)));
        })?;
        Ok(connecting)
    }

    /// Whether there is a TCP socket with this cookie between these addresses. What waits out TIME_WAIT, or an orphan's
    /// FIN_WAIT2, is none any more: programs have seen the end of it (`tcp_time_wait` ends in `tcp_done`).
    ///
    /// # Errors
    /// What the kernel says, but that there is none.
    pub fn exists(&self, route: &Route, cookie: u64) -> io::Result<bool> {
        self.send(&Request {
            kind: SOCK_DIAG_BY_FAMILY,
            flags: libc::NLM_F_REQUEST as u16,
            ..Request::about_socket(route, cookie)
        })?;
        // What it says of the socket may be longer; it is not asked for.
        let mut answer = [0; 1024];
        let received = self.receive(&mut answer)?;
        match Messages(received).next() {
            Some(message) if i32::from(message.kind) == libc::NLMSG_ERROR => {
                match error_in(message.payload) {
                    // `inet_diag_find_one_icsk`, for another socket between the same addresses too.
                    error if error.kind() == io::ErrorKind::NotFound => Ok(false),
                    error => Err(error),
                }
            }
            Some(message) => Ok(is_alive(message.payload)),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Shows every TCP socket in one of `states`, of both families.
    fn dump(&self, states: u32, mut show: impl FnMut(&[u8])) -> io::Result<()> {
        for family in [libc::AF_INET, libc::AF_INET6] {
            self.dump_family(family, states, &mut show)?;
        }
        Ok(())
    }

    fn dump_family(
        &self,
        family: i32,
        states: u32,
        show: &mut impl FnMut(&[u8]),
    ) -> io::Result<()> {
        self.send(&Request {
            kind: SOCK_DIAG_BY_FAMILY,
            flags: (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16,
            ..Request::about_tcp(family, states)
        })?;
        let mut answer = vec![0; DUMP_BYTES];
        loop {
            let received = self.receive(&mut answer)?;
            for message in Messages(received) {
                match i32::from(message.kind) {
                    libc::NLMSG_DONE => return Ok(()),
                    libc::NLMSG_ERROR => return Err(error_in(message.payload)),
                    _ => show(message.payload),
                }
            }
        }
    }

    fn exchange(&self, request: &Request) -> io::Result<()> {
        self.send(request)?;
        let mut answer = [0; 256];
        let received = self.receive(&mut answer)?;
        match Messages(received).next() {
            Some(message) if i32::from(message.kind) == libc::NLMSG_ERROR => {
                match error_in(message.payload) {
                    done if done.raw_os_error() == Some(0) => Ok(()),
                    error => Err(error),
                }
            }
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn send(&self, request: &Request) -> io::Result<()> {
        // SAFETY: `request` is as long as said.
        let sent = unsafe {
            libc::send(
                self.netlink.as_raw_fd(),
                std::ptr::from_ref(request).cast(),
                size_of::<Request>(),
                0,
            )
        };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Requests to the kernel are carried out within the send or the receive, so what there is to receive is there.
    fn receive<'a>(&self, answer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        // SAFETY: `answer` is as long as said.
        let received = unsafe {
            libc::recv(
                self.netlink.as_raw_fd(),
                answer.as_mut_ptr().cast(),
                answer.len(),
                libc::MSG_DONTWAIT,
            )
        };
        if received < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(&answer[..received as usize])
    }
}

impl Request {
    /// About one TCP socket.
    fn about_socket(route: &Route, cookie: u64) -> Self {
        let tuple = &route.tuple;
        let mut request = Self {
            local_port: tuple.local_port.to_be_bytes(),
            remote_port: tuple.remote_port.to_be_bytes(),
            local: tuple.local,
            remote: tuple.remote,
            // A socket that is bound to an interface is found only with it (`inet_bound_dev_eq`).
            ifindex: route.ifindex,
            cookie: [cookie as u32, (cookie >> 32) as u32],
            ..Self::about_tcp(libc::AF_INET6, ALL_STATES)
        };
        if let (Some(local), Some(remote)) =
            (segment::v4_of(&tuple.local), segment::v4_of(&tuple.remote))
        {
            request.family = libc::AF_INET as u8;
            (request.local, request.remote) = ([0; 16], [0; 16]);
            request.local[..4].copy_from_slice(&local);
            request.remote[..4].copy_from_slice(&remote);
        }
        request
    }

    /// About the socket that a `struct inet_diag_msg` tells of: its family, and its `struct inet_diag_sockid`.
    fn about(message: &[u8]) -> Option<Self> {
        let family = i32::from(*message.first()?);
        Some(Self {
            local_port: message.get(4..6)?.try_into().ok()?,
            remote_port: message.get(6..8)?.try_into().ok()?,
            local: message.get(8..24)?.try_into().ok()?,
            remote: message.get(24..40)?.try_into().ok()?,
            ifindex: u32_at(message, 40)?,
            cookie: [u32_at(message, 44)?, u32_at(message, 48)?],
            ..Self::about_tcp(family, ALL_STATES)
        })
    }

    /// About TCP sockets of one family in these states.
    fn about_tcp(family: i32, states: u32) -> Self {
        Self {
            length: size_of::<Self>() as u32,
            kind: 0,
            flags: 0,
            sequence: 1,
            port: 0,
            family: family as u8,
            protocol: libc::IPPROTO_TCP as u8,
            extensions: 0,
            pad: 0,
            states,
            local_port: [0; 2],
            remote_port: [0; 2],
            local: [0; 16],
            remote: [0; 16],
            ifindex: 0,
            cookie: [0; 2],
        }
    }
}

/// Bytes asked for at a time; the kernel fills up to 32 KiB (`netlink_dump`).
const DUMP_BYTES: usize = 32 * 1024;

/// One netlink message.
struct Message<'a> {
    kind: u16,
    payload: &'a [u8],
}

/// The netlink messages in a buffer: `struct nlmsghdr`, payload, padding to four bytes.
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        const HEADER: usize = 16;
        let length = u32_at(self.0, 0)? as usize;
        let message = Message {
            kind: u16_at(self.0, 4)?,
            payload: self.0.get(HEADER..length)?,
        };
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(message)
    }
}

/// The code of a `struct nlmsgerr`; 0 is an acknowledgement.
fn error_in(payload: &[u8]) -> io::Error {
    match u32_at(payload, 0) {
        Some(code) => io::Error::from_raw_os_error((code as i32).wrapping_neg()),
        None => io::ErrorKind::UnexpectedEof.into(),
    }
}

/// Whether a `struct inet_diag_msg` tells of a socket that programs have not seen the end of.
fn is_alive(payload: &[u8]) -> bool {
    payload.get(TIMER) != Some(&TIMER_TIME_WAIT)
}

/// The cookie in a `struct inet_diag_msg`.
fn cookie_in(payload: &[u8]) -> Option<u64> {
    const COOKIE: usize = 44;
    let [low, high] = [u32_at(payload, COOKIE)?, u32_at(payload, COOKIE + 4)?];
    Some(u64::from(high) << 32 | u64::from(low))
}

/// Reads a `struct inet_diag_msg` and the attributes behind it. `None` without a cgroup.
fn socket_in(payload: &[u8]) -> Option<TcpSocket> {
    const REMOTE_PORT: usize = 6;
    const REMOTE: usize = 24;
    const ATTRIBUTES: usize = 72;
    let family = i32::from(*payload.first()?);
    let remote: [u8; 16] = payload.get(REMOTE..REMOTE + 16)?.try_into().ok()?;
    let addr = if family == libc::AF_INET {
        IpAddr::V4(Ipv4Addr::new(remote[0], remote[1], remote[2], remote[3]))
    } else {
        IpAddr::V6(Ipv6Addr::from(remote))
    };
    let attributes = Attributes(payload.get(ATTRIBUTES..)?);
    let cgroup = attributes
        .filter(|attribute| attribute.kind == INET_DIAG_CGROUP_ID)
        .find_map(|attribute| Some(u64::from_ne_bytes(attribute.payload.try_into().ok()?)))?;
    Some(TcpSocket {
        cookie: cookie_in(payload)?,
        cgroup: CgroupId(cgroup),
        remote: Endpoint::host(addr, u16::from_be(u16_at(payload, REMOTE_PORT)?)),
    })
}

/// The attributes in a buffer: `struct nlattr`, payload, padding to four bytes.
struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = Message<'a>;

    fn next(&mut self) -> Option<Message<'a>> {
        const HEADER: usize = 4;
        let length = usize::from(u16_at(self.0, 0)?);
        let attribute = Message {
            kind: u16_at(self.0, 2)?,
            payload: self.0.get(HEADER..length)?,
        };
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(attribute)
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?;
    Some(u16::from_ne_bytes(bytes.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An `inet_diag_msg` of an IPv4 socket with two attributes, as the kernel lays it out.
    fn message() -> Vec<u8> {
        let mut bytes = vec![0; 72];
        bytes[0] = libc::AF_INET as u8;
        bytes[6..8].copy_from_slice(&443_u16.to_be_bytes());
        bytes[24..28].copy_from_slice(&[10, 1, 2, 3]);
        bytes[44..52].copy_from_slice(&0x0102_0304_0506_0708_u64.to_ne_bytes());
        for (kind, payload) in [(8_u16, vec![0]), (21, 77_u64.to_ne_bytes().to_vec())] {
            bytes.extend_from_slice(&(4 + payload.len() as u16).to_ne_bytes());
            bytes.extend_from_slice(&kind.to_ne_bytes());
            bytes.extend_from_slice(&payload);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        bytes
    }

    #[test]
    fn a_socket_is_read_with_its_cgroup() {
        let expected = TcpSocket {
            cookie: 0x0102_0304_0506_0708,
            cgroup: CgroupId(77),
            remote: Endpoint::host(Ipv4Addr::new(10, 1, 2, 3).into(), 443),
        };
        assert_eq!(socket_in(&message()), Some(expected));
        assert_eq!(socket_in(&message()[..72]), None);
    }

    #[test]
    fn an_error_carries_its_number() {
        assert_eq!(error_in(&(-2_i32).to_ne_bytes()).raw_os_error(), Some(2));
        assert_eq!(error_in(&0_i32.to_ne_bytes()).raw_os_error(), Some(0));
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            for message in Messages(&bytes) {
                socket_in(message.payload);
            }
            socket_in(&bytes);
        }
    }
}
