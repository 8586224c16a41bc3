//! Accepting HTTP connections, within limits.

use std::{
    collections::VecDeque,
    io,
    net::TcpListener,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use axum::Router;
use hyper::{
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::TcpStream,
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::{AbortHandle, yield_now},
    time::{sleep, timeout},
};
use tracing::{debug, warn};

/// How long a request in flight may take to end when its connection has to.
pub(super) const GRACE: Duration = Duration::from_secs(2);

/// Bytes of a request's head; nobody sends as much to ask for a path.
const HEADER_BYTES: usize = 8 * 1024;
const HEADER_COUNT: usize = 64;

/// What clients may take of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections served at once. One more ends the oldest of those whose request has not come yet; where every one is at
    /// work, it waits.
    pub connections: usize,
    /// Longest time for the head of a request, and so for silence between requests.
    pub header_read: Duration,
    /// Life of a connection, after which it ends with the response it is at. The bound for clients that do not read.
    pub lifetime: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 64,
            header_read: Duration::from_secs(5),
            lifetime: Duration::from_secs(60),
        }
    }
}

/// Serves until `stopped`, then lets requests in flight end.
pub(super) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    stopped: impl Future<Output = ()>,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut stopped = pin!(stopped);
    let connections = Arc::new(Semaphore::new(limits.connections));
    let all = u32::try_from(limits.connections).unwrap_or(u32::MAX);
    let mut guests = Guests::default();
    let (stopping, ending) = watch::channel(());
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.header_read)
        .max_headers(HEADER_COUNT)
        .max_header_size(HEADER_BYTES);
    loop {
        let accepted = async {
            let stream = listener.accept().await;
            (stream, guests.make_room(&connections).await)
        };
        let (accepted, permit) = tokio::select! {
            accepted = accepted => accepted,
            () = &mut stopped => break,
        };
        let stream: TcpStream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file descriptors, for one: it passes, and must not become a busy loop.
                warn!(%error, "cannot accept an HTTP connection");
                sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (http, router, ending) = (http.clone(), router.clone(), ending.clone());
        let busy = Arc::new(AtomicBool::new(false));
        let at_work = busy.clone();
        let task = tokio::spawn(async move {
            let served = connection(&http, stream, router, &at_work, limits.lifetime, ending);
            if let Err(error) = served.await {
                debug!(%error, "HTTP connection ended");
            }
            drop(permit);
        });
        guests.0.push_back(Guest {
            busy,
            task: task.abort_handle(),
        });
        // A request that came with its connection is read before the next newcomer asks for room.
        yield_now().await;
    }
    drop((listener, stopping));
    if timeout(GRACE, connections.acquire_many(all)).await.is_err() {
        debug!("HTTP connections cut off by the shutdown");
    }
    Ok(())
}

/// The connections there are, the oldest first.
#[derive(Default)]
struct Guests(VecDeque<Guest>);

struct Guest {
    /// A request of it is being answered.
    busy: Arc<AtomicBool>,
    task: AbortHandle,
}

impl Guests {
    /// Waits for room for one more, and makes it if an idle connection can give way: clients that only connect must not
    /// keep a scraper out.
    async fn make_room(&mut self, connections: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
        self.0.retain(|guest| !guest.task.is_finished());
        if connections.available_permits() == 0 {
            let idle = |guest: &Guest| !guest.busy.load(Ordering::Relaxed);
            if let Some(guest) = self
                .0
                .iter()
                .position(idle)
                .and_then(|at| self.0.remove(at))
            {
                guest.task.abort();
            }
        }
        connections.clone().acquire_owned().await.ok()
    }
}

/// Serves one connection until the client ends it, `lifetime` is over or the sender of `ending` is dropped.
async fn connection(
    http: &http1::Builder,
    stream: TcpStream,
    router: Router,
    busy: &AtomicBool,
    lifetime: Duration,
    mut ending: watch::Receiver<()>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let router = TowerToHyperService::new(router);
    let service = service_fn(|request| {
        let answer = router.call(request);
        async {
            busy.store(true, Ordering::Relaxed);
            let answer = answer.await;
            busy.store(false, Ordering::Relaxed);
            answer
        }
    });
    let mut served = pin!(http.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        ended = &mut served => return Ok(ended?),
        () = sleep(lifetime) => {}
        _ = ending.changed() => {}
    }
    served.as_mut().graceful_shutdown();
    Ok(timeout(GRACE, served).await??)
}
