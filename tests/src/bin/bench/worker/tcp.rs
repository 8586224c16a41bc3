//! What a client does on TCP connections, and how long it takes.

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    os::fd::{AsRawFd, OwnedFd},
    time::Instant,
};

use anyhow::{Context, Result, bail, ensure};
use nix::{
    errno::Errno,
    libc::linger,
    sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, setsockopt, socket, sockopt},
};

use crate::gateway::{ANSWER_BODY, REQUEST_BODY};

pub fn connect(to: SocketAddr, count: usize) -> Result<Vec<u64>> {
    let mut times = Vec::with_capacity(count + 1);
    let everything = Instant::now();
    for _ in 0..count {
        let socket = abrupt_socket(SockFlag::empty())?;
        let begin = Instant::now();
        start(&socket, to).context("connect")?;
        times.push(nanos(begin));
        drop(socket);
    }
    times.push(nanos(everything));
    Ok(times)
}

pub fn call(to: SocketAddr, count: usize) -> Result<Vec<u64>> {
    (0..count)
        .map(|_| {
            let begin = Instant::now();
            let mut connection = open(to)?;
            pair(&mut connection)?;
            drop(connection);
            Ok(nanos(begin))
        })
        .collect()
}

pub fn pairs(to: SocketAddr, count: usize) -> Result<Vec<u64>> {
    let mut connection = open(to)?;
    (0..count)
        .map(|_| {
            let begin = Instant::now();
            pair(&mut connection)?;
            Ok(nanos(begin))
        })
        .collect()
}

pub fn download(to: SocketAddr, bytes: usize) -> Result<Vec<u64>> {
    let mut connection = open(to)?;
    let begin = Instant::now();
    write!(
        connection,
        "GET /bytes/{bytes} HTTP/1.1\r\nHost: gateway\r\n{PADDING}\r\n"
    )?;
    ensure!(
        read_answer(&mut connection)? == bytes,
        "the answer is short"
    );
    Ok(vec![nanos(begin)])
}

pub fn upload(to: SocketAddr, bytes: usize) -> Result<Vec<u64>> {
    let piece = vec![b'.'; 256 * 1024];
    let mut connection = open(to)?;
    let begin = Instant::now();
    write!(connection, "{}", request_head(bytes))?;
    let mut left = bytes;
    while left > 0 {
        let now = left.min(piece.len());
        connection.write_all(&piece[..now])?;
        left -= now;
    }
    read_answer(&mut connection)?;
    Ok(vec![nanos(begin)])
}

/// Makes a request longer than any `wake_bytes`, so that nobody takes it for part of a handshake.
const PADDING: &str = "X-Padding: ................................................................\
                       ................................................................\r\n";

/// A connection that ends without a trace in TIME_WAIT, so that thousands need no thousands of ports.
pub fn open(to: SocketAddr) -> Result<TcpStream> {
    let socket = abrupt_socket(SockFlag::empty())?;
    start(&socket, to).context("connect")?;
    let connection = TcpStream::from(socket);
    connection.set_nodelay(true)?;
    Ok(connection)
}

/// Begins to connect and does not wait for the end.
pub fn begin_connect(to: SocketAddr) -> Result<TcpStream> {
    let socket = abrupt_socket(SockFlag::SOCK_NONBLOCK)?;
    match start(&socket, to) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(socket.into()),
        Err(error) => Err(error).context("connect"),
    }
}

fn abrupt_socket(flags: SockFlag) -> Result<OwnedFd> {
    let flags = flags | SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None).context("socket")?;
    let at_once = linger {
        l_onoff: 1,
        l_linger: 0,
    };
    setsockopt(&socket, sockopt::Linger, &at_once).context("SO_LINGER")?;
    Ok(socket)
}

fn start(socket: &OwnedFd, to: SocketAddr) -> Result<(), Errno> {
    let SocketAddr::V4(to) = to else {
        return Err(Errno::EAFNOSUPPORT);
    };
    nix::sys::socket::connect(socket.as_raw_fd(), &SockaddrIn::from(to))
}

pub fn send_request(connection: &mut TcpStream) -> Result<()> {
    let mut request = request_head(REQUEST_BODY).into_bytes();
    request.resize(request.len() + REQUEST_BODY, b'.');
    connection.write_all(&request).context("request")
}

fn request_head(body: usize) -> String {
    format!("POST /take HTTP/1.1\r\nHost: gateway\r\nContent-Length: {body}\r\n\r\n")
}

fn pair(connection: &mut TcpStream) -> Result<()> {
    send_request(connection)?;
    let bytes = read_answer(connection)?;
    ensure!(bytes == ANSWER_BODY, "an answer of {bytes} bytes");
    Ok(())
}

/// Reads a whole answer; the bytes of its body.
pub fn read_answer(connection: &mut TcpStream) -> Result<usize> {
    let mut piece = vec![0; 256 * 1024];
    let mut head = Vec::new();
    let (head_length, body_length) = loop {
        match connection.read(&mut piece) {
            Ok(0) => bail!("the gateway closed before its answer"),
            Ok(read) => head.extend_from_slice(&piece[..read]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("answer"),
        }
        let mut headers = [httparse::EMPTY_HEADER; 8];
        let mut answer = httparse::Response::new(&mut headers);
        if let httparse::Status::Complete(length) = answer.parse(&head)? {
            let of_length = |header: &&httparse::Header<'_>| header.name == "Content-Length";
            let length_header = answer.headers.iter().find(of_length);
            let value = length_header
                .context("an answer without Content-Length")?
                .value;
            break (length, std::str::from_utf8(value)?.parse::<usize>()?);
        }
    };
    let mut left = (head_length + body_length).saturating_sub(head.len());
    while left > 0 {
        match connection.read(&mut piece)? {
            0 => bail!("the gateway closed within its answer"),
            read => left -= read.min(left),
        }
    }
    Ok(body_length)
}

pub fn nanos(since: Instant) -> u64 {
    since.elapsed().as_nanos() as u64
}
