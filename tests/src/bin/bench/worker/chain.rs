//! A lane with one slot, or a proxy that lets one through: each client that is done makes room for the next.

use std::{
    collections::HashMap,
    net::{SocketAddr, TcpStream},
    os::fd::{AsRawFd, RawFd},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use nix::sys::{
    epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
    socket::{getsockopt, sockopt},
};

use super::tcp;

/// Between one handover and the preparation of the next, so that they do not disturb each other.
const SETTLE: Duration = Duration::from_millis(1);

/// Longer than a handover ever takes, shorter than anybody's patience.
const PATIENCE: Duration = Duration::from_secs(30);

pub fn connects(to: SocketAddr, waiters: usize, handovers: usize) -> Result<Vec<u64>> {
    let mut crowd = Crowd::new(EpollFlags::EPOLLOUT)?;
    for _ in 0..=waiters {
        crowd.add(tcp::begin_connect(to)?)?;
    }
    let mut holder = connected(crowd.next()?)?;
    let mut times = Vec::with_capacity(handovers);
    for _ in 0..handovers {
        crowd.add(tcp::begin_connect(to)?)?;
        sleep(SETTLE);
        let freed = Instant::now();
        drop(holder);
        holder = crowd.next()?;
        times.push(tcp::nanos(freed));
        holder = connected(holder)?;
    }
    Ok(times)
}

pub fn requests(to: SocketAddr, waiters: usize, handovers: usize) -> Result<Vec<u64>> {
    let begin = || -> Result<TcpStream> {
        let mut connection = tcp::open(to)?;
        tcp::send_request(&mut connection)?;
        Ok(connection)
    };
    let mut crowd = Crowd::new(EpollFlags::EPOLLIN)?;
    for _ in 0..=waiters {
        crowd.add(begin()?)?;
    }
    for _ in 0..handovers {
        let mut answered = crowd.next()?;
        tcp::read_answer(&mut answered)?;
        drop(answered);
        sleep(SETTLE);
        crowd.add(begin()?)?;
    }
    Ok(Vec::new())
}

fn connected(connection: TcpStream) -> Result<TcpStream> {
    match getsockopt(&connection, sockopt::SocketError)? {
        0 => Ok(connection),
        error => Err(std::io::Error::from_raw_os_error(error)).context("a connect that waited"),
    }
}

/// Connections of which one at a time has something to tell.
struct Crowd {
    epoll: Epoll,
    interest: EpollFlags,
    waiting: HashMap<RawFd, TcpStream>,
}

impl Crowd {
    fn new(interest: EpollFlags) -> Result<Self> {
        Ok(Self {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            interest,
            waiting: HashMap::new(),
        })
    }

    fn add(&mut self, connection: TcpStream) -> Result<()> {
        let number = connection.as_raw_fd();
        let event = EpollEvent::new(self.interest, number as u64);
        self.epoll.add(&connection, event)?;
        self.waiting.insert(number, connection);
        Ok(())
    }

    /// The connection whose turn comes, taken out of the crowd.
    fn next(&mut self) -> Result<TcpStream> {
        let mut told = [EpollEvent::empty()];
        let timeout = EpollTimeout::try_from(PATIENCE).expect("half a minute is not too long");
        let count = self.epoll.wait(&mut told, timeout)?;
        let turn = (count > 0).then(|| self.waiting.remove(&(told[0].data() as RawFd)));
        let connection = turn
            .flatten()
            .with_context(|| format!("nobody's turn came within {PATIENCE:?}"))?;
        self.epoll.delete(&connection)?;
        Ok(connection)
    }
}
