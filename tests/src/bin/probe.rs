//! A raw TCP client that makes one blocking call and prints, as one line of JSON, when it was connected and
//! when answered, by the monotonic clock: `shaper-test-probe ADDRESS:PORT [LABEL [uring]]`. With `uring` it connects
//! through io_uring.

use std::env;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};

use anyhow::{Context, Result, bail};
use io_uring::{IoUring, opcode, types::Fd};
use nix::sys::socket::{SockaddrIn, SockaddrLike};
use shaper_tests::clock::Moment;

/// Longer than any `wake_bytes`, so that nobody takes the request for a handshake.
const BODY: [u8; 1024] = [b'.'; 1024];

fn main() -> Result<()> {
    let mut arguments = env::args().skip(1);
    let address: SocketAddr = arguments
        .next()
        .context("usage: shaper-test-probe ADDRESS:PORT [LABEL [uring]]")?
        .parse()
        .context("the address is not of the form ADDRESS:PORT")?;
    let label = arguments.next().unwrap_or_default();
    let connect = match arguments.next().as_deref() {
        None => TcpStream::connect::<SocketAddr>,
        Some("uring") => connect_through_io_uring,
        Some(other) => bail!("{other:?} is no way to connect"),
    };

    let started = Moment::now();
    let called = connect(address).and_then(|connection| {
        let connected = Moment::now();
        call(connection, &label).map(|bytes| (connected, bytes))
    });
    let report = match called {
        Ok((connected, bytes)) => serde_json::json!({
            "started": started.as_nanos(),
            "connected": connected.as_nanos(),
            "answered": Moment::now().as_nanos(),
            "bytes": bytes,
        }),
        Err(error) => serde_json::json!({
            "started": started.as_nanos(),
            "failed": Moment::now().as_nanos(),
            "errno": error.raw_os_error(),
        }),
    };
    println!("{report}");
    Ok(())
}

/// `IORING_OP_CONNECT`, Linux 5.5.
fn connect_through_io_uring(address: SocketAddr) -> io::Result<TcpStream> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
    let SocketAddr::V4(v4) = address else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    let socket: OwnedFd = socket(
        AddressFamily::Inet,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    let address = SockaddrIn::from(v4);
    let connect = opcode::Connect::new(Fd(socket.as_raw_fd()), address.as_ptr(), address.len());
    let mut ring = IoUring::new(1)?;
    // SAFETY: socket and address live until the completion has come.
    unsafe { ring.submission().push(&connect.build()) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    let result = ring
        .completion()
        .next()
        .map(|completion| completion.result());
    match result {
        Some(0) => Ok(socket.into()),
        Some(code) => Err(io::Error::from_raw_os_error(-code)),
        None => Err(io::ErrorKind::Interrupted.into()),
    }
}

/// The bytes of the whole answer, which the gateway ends by closing. The request is one write: a head by itself is short
/// enough to pass for a handshake.
fn call(mut connection: TcpStream, label: &str) -> io::Result<usize> {
    let mut request = format!(
        "POST /v1/messages HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\nX-Label: {label}\r\n\
         Content-Length: {}\r\n\r\n",
        BODY.len()
    )
    .into_bytes();
    request.extend(BODY);
    connection.write_all(&request)?;
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer)
}
