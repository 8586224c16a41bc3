//! A gateway that costs as little as possible: one thread, no log, answers at once or after a fixed service time.

use std::{
    io,
    net::{SocketAddr, TcpListener},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use nix::sys::socket::{Backlog, listen};
use shaper_tests::netns::Netns;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
};

/// Bytes of a small request's body: the shape of a short model call.
pub const REQUEST_BODY: usize = 512;
/// Bytes of a small answer's body.
pub const ANSWER_BODY: usize = 64;

/// A running gateway; it stops when dropped.
pub struct Gateway {
    state: Arc<State>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct State {
    service_time_ns: AtomicU64,
    slot: Mutex<Slot>,
}

/// The gateway as a lane with one slot sees it.
#[derive(Default)]
struct Slot {
    /// When the last answer was written.
    answered: Option<Instant>,
    /// From each answer to the next request.
    idle: Vec<Duration>,
}

/// A bound socket in a namespace.
pub fn listener(netns: &Netns, address: SocketAddr) -> Result<TcpListener> {
    let bound = netns.run(|| -> io::Result<TcpListener> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        // Thousands may come at once; the standard library asks for room for 128.
        listen(&listener, Backlog::MAXALLOWABLE)?;
        Ok(listener)
    })?;
    bound.with_context(|| format!("cannot listen on {address}"))
}

impl Gateway {
    pub fn start(listeners: Vec<TcpListener>) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the gateway")?;
        let state = Arc::new(State::default());
        let (stop, stopped) = oneshot::channel::<()>();
        let served = Arc::clone(&state);
        let thread = thread::spawn(move || {
            runtime.block_on(async move {
                for listener in listeners {
                    tokio::spawn(accept(listener, Arc::clone(&served)));
                }
                // An error means that the sender is gone, which is a stop too.
                let _ = stopped.await;
            });
        });
        Ok(Self {
            state,
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// How long it works on each request from now on.
    pub fn work_for(&self, service_time: Duration) {
        let nanos = service_time.as_nanos() as u64;
        self.state.service_time_ns.store(nanos, Relaxed);
    }

    /// How long it sat idle between an answer and the next request, each time since the last call.
    pub fn take_idle_times(&self) -> Vec<Duration> {
        let mut slot = self
            .state
            .slot
            .lock()
            .expect("nothing panics with the lock");
        slot.answered = None;
        std::mem::take(&mut slot.idle)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // It has told already if it panicked.
            let _ = thread.join();
        }
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    let listener =
        tokio::net::TcpListener::from_std(listener).expect("a listener that does not block");
    loop {
        match listener.accept().await {
            Ok((connection, _)) => {
                let state = Arc::clone(&state);
                // Clients break connections off whenever they are done with them.
                tokio::spawn(async move { serve(connection, &state).await.ok() });
            }
            // Out of descriptors, or the client is gone already.
            Err(_) => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
}

async fn serve(mut connection: TcpStream, state: &State) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let mut unread = Vec::new();
    // Small for as long as a connection has only waited: there may be ten thousand.
    let mut piece = vec![0; 4 * 1024];
    loop {
        let read = connection.read(&mut piece).await?;
        if read == 0 {
            return Ok(());
        }
        if unread.is_empty() {
            state.note_arrival();
        }
        unread.extend_from_slice(&piece[..read]);
        let Some(request) = parse(&unread)? else {
            continue;
        };
        let mut left = (request.head + request.body).saturating_sub(unread.len());
        unread.clear();
        if left > piece.len() {
            piece.resize(256 * 1024, 0);
        }
        while left > 0 {
            match connection.read(&mut piece).await? {
                0 => return Ok(()),
                read => left = left.saturating_sub(read),
            }
        }
        let service_time = Duration::from_nanos(state.service_time_ns.load(Relaxed));
        if !service_time.is_zero() {
            tokio::time::sleep(service_time).await;
        }
        answer(&mut connection, request.wanted).await?;
        state.note_answer();
    }
}

struct Request {
    head: usize,
    body: usize,
    /// Bytes of the answer.
    wanted: usize,
}

fn parse(bytes: &[u8]) -> io::Result<Option<Request>> {
    let mut headers = [httparse::EMPTY_HEADER; 8];
    let mut parsed = httparse::Request::new(&mut headers);
    let status = parsed.parse(bytes).map_err(io::Error::other)?;
    let httparse::Status::Complete(head) = status else {
        return Ok(None);
    };
    let length = parsed
        .headers
        .iter()
        .find(|header| header.name == "Content-Length")
        .and_then(|header| std::str::from_utf8(header.value).ok()?.parse().ok());
    let wanted = parsed
        .path
        .and_then(|path| path.strip_prefix("/bytes/")?.parse().ok());
    Ok(Some(Request {
        head,
        body: length.unwrap_or(0),
        wanted: wanted.unwrap_or(ANSWER_BODY),
    }))
}

async fn answer(connection: &mut TcpStream, bytes: usize) -> io::Result<()> {
    let mut piece =
        format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {bytes}\r\n\r\n")
            .into_bytes();
    let head = piece.len();
    piece.resize(head + bytes.min(256 * 1024), b'.');
    connection.write_all(&piece).await?;
    let mut left = bytes - (piece.len() - head);
    while left > 0 {
        let now = left.min(piece.len());
        connection.write_all(&piece[..now]).await?;
        left -= now;
    }
    Ok(())
}

impl State {
    fn note_arrival(&self) {
        let mut slot = self.slot.lock().expect("nothing panics with the lock");
        if let Some(answered) = slot.answered.take() {
            slot.idle.push(answered.elapsed());
        }
    }

    fn note_answer(&self) {
        let mut slot = self.slot.lock().expect("nothing panics with the lock");
        slot.answered = Some(Instant::now());
    }
}
