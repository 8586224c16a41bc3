//! Ending sockets of other processes through socket diagnostics (sock_diag(7)).

use std::{
    io,
    mem::size_of,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use shaper_common::Tuple;

use super::segment;

/// `SOCK_DESTROY` of include/uapi/linux/sock_diag.h: Linux 4.5, CONFIG_INET_DIAG_DESTROY.
const SOCK_DESTROY: u16 = 21;
/// Any state (`TCPF_ALL`).
const ALL_STATES: u32 = u32::MAX;

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

/// `struct nlmsghdr` followed by `struct nlmsgerr` up to its code.
const ACK_CODE_AT: usize = 16;

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
    pub fn destroy(&self, tuple: &Tuple, cookie: u64) -> io::Result<()> {
        let mut request = Request {
            length: size_of::<Request>() as u32,
            kind: SOCK_DESTROY,
            flags: (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16,
            sequence: 1,
            port: 0,
            family: libc::AF_INET6 as u8,
            protocol: libc::IPPROTO_TCP as u8,
            extensions: 0,
            pad: 0,
            states: ALL_STATES,
            local_port: tuple.local_port.to_be_bytes(),
            remote_port: tuple.remote_port.to_be_bytes(),
            local: tuple.local,
            remote: tuple.remote,
            ifindex: 0,
            cookie: [cookie as u32, (cookie >> 32) as u32],
        };
        if let (Some(local), Some(remote)) =
            (segment::v4_of(&tuple.local), segment::v4_of(&tuple.remote))
        {
            request.family = libc::AF_INET as u8;
            (request.local, request.remote) = ([0; 16], [0; 16]);
            request.local[..4].copy_from_slice(&local);
            request.remote[..4].copy_from_slice(&remote);
        }
        self.exchange(&request)
    }

    fn exchange(&self, request: &Request) -> io::Result<()> {
        let mut answer = [0_u8; 256];
        // SAFETY: both buffers are as long as said. Requests to the kernel are carried out within the send, so the
        // acknowledgement is there when it returns.
        let received = unsafe {
            let sent = libc::send(
                self.netlink.as_raw_fd(),
                std::ptr::from_ref(request).cast(),
                size_of::<Request>(),
                0,
            );
            if sent < 0 {
                return Err(io::Error::last_os_error());
            }
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
        let code = answer
            .get(ACK_CODE_AT..ACK_CODE_AT + 4)
            .filter(|_| received as usize >= ACK_CODE_AT + 4);
        match code.map(|code| i32::from_ne_bytes(code.try_into().expect("four bytes"))) {
            Some(0) => Ok(()),
            Some(code) => Err(io::Error::from_raw_os_error(-code)),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}
