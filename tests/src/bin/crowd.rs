//! A crowd of clients: `shaper-test-crowd CROWD`, where CROWD is a `shaper_tests::crowd::Crowd` as JSON. Forks its workers,
//! kills some at random, and prints a `Report`. Workers count in shared memory, so that what a killed one did is known.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{env, io, process};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::libc;
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, connect, setsockopt, socket, sockopt,
};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use shaper_tests::clock::Moment;
use shaper_tests::crowd::{Crowd, Habit, Report, Reset};
use shaper_tests::open_files;

/// Every second worker gives a connect up after this.
const PATIENCE: Duration = Duration::from_millis(200);
/// Before the next call after one that failed.
const MOMENT: Duration = Duration::from_millis(10);
/// Longer than any `wake_bytes`.
const BODY: [u8; 512] = [b'.'; 512];
/// Resets of which particulars are kept: more than may be.
const RESETS: usize = 1024;
/// Times of calls that are kept: the median of more would be the same.
const TIMES: usize = 1 << 16;

/// In memory that all workers share.
#[repr(C)]
struct Counts {
    attempts: AtomicU64,
    answered: AtomicU64,
    refused: AtomicU64,
    expired: AtomicU64,
    gave_up: AtomicU64,
    broken: AtomicU64,
    resets: AtomicU64,
    /// Port and time, which are written one after the other.
    reset_ports: [AtomicU32; RESETS],
    reset_ns: [AtomicU64; RESETS],
    times_us: [AtomicU32; TIMES],
}

impl Counts {
    fn shared() -> Result<&'static Self> {
        let size = NonZeroUsize::new(size_of::<Self>()).context("an empty structure")?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a fresh mapping of zeros, a valid value, kept until the process ends.
        unsafe {
            let memory = mmap_anonymous(None, size, access, MapFlags::MAP_SHARED)?;
            Ok(memory.cast::<Self>().as_ref())
        }
    }

    fn error(&self, error: &io::Error) {
        let counter = match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ECONNREFUSED) => &self.refused,
            Some(Errno::ECONNABORTED) => &self.expired,
            _ if matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock) => {
                &self.gave_up
            }
            _ => {
                eprintln!("{error}");
                &self.broken
            }
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn reset(&self, port: u16) {
        let number = self.resets.fetch_add(1, Ordering::Relaxed) as usize % RESETS;
        self.reset_ports[number].store(port.into(), Ordering::Relaxed);
        self.reset_ns[number].store(Moment::now().as_nanos(), Ordering::Relaxed);
    }

    fn answered(&self, took: Duration) {
        let number = self.answered.fetch_add(1, Ordering::Relaxed) as usize;
        self.times_us[number % TIMES].store(took.as_micros() as u32, Ordering::Relaxed);
    }

    fn report(&self, killed: u64) -> Report {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let answered = load(&self.answered);
        let kept = &self.times_us[..TIMES.min(answered as usize)];
        let mut times: Vec<_> = kept.iter().map(|us| us.load(Ordering::Relaxed)).collect();
        times.sort_unstable();
        Report {
            attempts: load(&self.attempts),
            answered,
            refused: load(&self.refused),
            expired: load(&self.expired),
            gave_up: load(&self.gave_up),
            broken: load(&self.broken),
            resets: (0..RESETS.min(load(&self.resets) as usize))
                .map(|number| Reset {
                    port: self.reset_ports[number].load(Ordering::Relaxed) as u16,
                    at_ns: load(&self.reset_ns[number]),
                })
                .collect(),
            killed,
            median_us: times.get(times.len() / 2).copied().unwrap_or(0).into(),
        }
    }
}

fn main() -> Result<()> {
    let crowd = env::args()
        .nth(1)
        .context("usage: shaper-test-crowd CROWD")?;
    let crowd: Crowd = serde_json::from_str(&crowd).context("this is no crowd")?;
    open_files::raise()?;
    let counts = Counts::shared()?;

    let start = |worker: u64| -> Result<(Pid, u64)> {
        // SAFETY: this process has one thread.
        match unsafe { fork() }? {
            ForkResult::Child => {
                work(&crowd, worker, counts);
                process::exit(0);
            }
            ForkResult::Parent { child } => Ok((child, worker)),
        }
    };
    let mut running = (0..crowd.workers)
        .map(start)
        .collect::<Result<VecDeque<_>>>()?;
    let mut killed = 0;
    while let Some((child, worker)) = running.pop_front() {
        if waitpid(child, Some(WaitPidFlag::WNOHANG))? != WaitStatus::StillAlive {
            continue;
        }
        // Kills are spread over the calls.
        let due = killed < crowd.kills
            && counts.attempts.load(Ordering::Relaxed) * (crowd.kills + 1)
                > crowd.connects * (killed + 1);
        if due {
            kill(child, Signal::SIGKILL)?;
            waitpid(child, None)?;
            killed += 1;
            running.push_back(start(worker)?);
        } else {
            running.push_back((child, worker));
            sleep(Duration::from_millis(1));
        }
    }
    println!("{}", serde_json::to_string(&counts.report(killed))?);
    Ok(())
}

fn work(crowd: &Crowd, worker: u64, counts: &Counts) {
    let mut kept: VecDeque<OwnedFd> = VecDeque::new();
    loop {
        let number = counts.attempts.fetch_add(1, Ordering::Relaxed);
        if number >= crowd.connects {
            counts.attempts.fetch_sub(1, Ordering::Relaxed);
            sleep(crowd.stay);
            return;
        }
        let address = crowd.addresses[number as usize % crowd.addresses.len()];
        let done = match crowd.habit {
            Habit::Call => {
                let patience = (worker % 2 == 1).then_some(PATIENCE);
                call(address, &crowd.label, patience, counts).map(|took| counts.answered(took))
            }
            Habit::Rush => begin(address).map(|socket| keep(&mut kept, socket, crowd.hold)),
            Habit::Flap => flap(address),
            Habit::Silent => TcpStream::connect(address)
                .map(|connection| keep(&mut kept, connection.into(), crowd.hold)),
            Habit::Trickle => trickle(address, &crowd.label).map(|took| counts.answered(took)),
        };
        if let Err(error) = done {
            counts.error(&error);
            if crowd.habit == Habit::Call {
                sleep(MOMENT);
            }
        }
    }
}

fn keep(kept: &mut VecDeque<OwnedFd>, socket: OwnedFd, hold: usize) {
    kept.push_back(socket);
    while kept.len() > hold {
        kept.pop_front();
    }
}

/// Begins to connect.
fn begin(address: SocketAddr) -> io::Result<OwnedFd> {
    let kind = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Inet, SockType::Stream, kind, None)?;
    match connect(socket.as_raw_fd(), &SockaddrStorage::from(address)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(socket),
        Err(errno) => Err(errno.into()),
    }
}

fn flap(address: SocketAddr) -> io::Result<()> {
    let connection = TcpStream::connect(address)?;
    let at_once = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    Ok(setsockopt(&connection, sockopt::Linger, &at_once)?)
}

fn request(label: &str) -> Vec<u8> {
    let mut request = format!(
        "POST /v1/messages HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\nX-Label: {label}\r\n\
         Content-Length: {}\r\n\r\n",
        BODY.len()
    )
    .into_bytes();
    request.extend_from_slice(&BODY);
    request
}

fn call(
    address: SocketAddr,
    label: &str,
    patience: Option<Duration>,
    counts: &Counts,
) -> io::Result<Duration> {
    let begun = Instant::now();
    let mut connection = match patience {
        Some(patience) => TcpStream::connect_timeout(&address, patience)?,
        None => TcpStream::connect(address)?,
    };
    let port = connection.local_addr()?.port();
    let answered = connection
        .write_all(&request(label))
        .and_then(|()| answer(connection));
    if let Err(error) = &answered
        && error.kind() == ErrorKind::ConnectionReset
    {
        counts.reset(port);
    }
    answered?;
    Ok(begun.elapsed())
}

fn trickle(address: SocketAddr, label: &str) -> io::Result<Duration> {
    let begun = Instant::now();
    let mut connection = TcpStream::connect(address)?;
    connection.set_nodelay(true)?;
    for byte in request(label) {
        connection.write_all(&[byte])?;
        sleep(Duration::from_millis(1));
    }
    answer(connection)?;
    Ok(begun.elapsed())
}

fn answer(mut connection: TcpStream) -> io::Result<()> {
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer)?;
    if answer.starts_with(b"HTTP/1.1 200 ") {
        Ok(())
    } else {
        Err(io::Error::other("not answered with 200"))
    }
}
