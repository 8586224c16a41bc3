//! Accepting HTTP connections, within limits.

use std::{io, net::TcpListener, pin::pin, sync::Arc, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::TcpStream,
    sync::{Semaphore, watch},
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
    /// Connections served at once. Further ones wait in the listen backlog.
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
    let (stopping, ending) = watch::channel(());
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.header_read)
        .max_headers(HEADER_COUNT)
        .max_header_size(HEADER_BYTES);
    loop {
        let accepted = async {
            let permit = connections.clone().acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
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
        tokio::spawn(async move {
            if let Err(error) = connection(&http, stream, router, limits.lifetime, ending).await {
                debug!(%error, "HTTP connection ended");
            }
            drop(permit);
        });
    }
    drop((listener, stopping));
    if timeout(GRACE, connections.acquire_many(all)).await.is_err() {
        debug!("HTTP connections cut off by the shutdown");
    }
    Ok(())
}

/// Serves one connection until the client ends it, `lifetime` is over or the sender of `ending` is dropped.
async fn connection(
    http: &http1::Builder,
    stream: TcpStream,
    router: Router,
    lifetime: Duration,
    mut ending: watch::Receiver<()>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let service = TowerToHyperService::new(router);
    let mut served = pin!(http.serve_connection(TokioIo::new(stream), service));
    tokio::select! {
        ended = &mut served => return Ok(ended?),
        () = sleep(lifetime) => {}
        _ = ending.changed() => {}
    }
    served.as_mut().graceful_shutdown();
    Ok(timeout(GRACE, served).await??)
}
