//! What the controller serves: HTTP for scrapers and people, the control socket for the commands.
//!
//! Both run in one thread of their own with a runtime of its own. They reach the controller's loop only through the
//! [`Handle`], so that no client, however slow or many, delays it.

mod changes;
mod http;
mod live;
mod origin;
mod page;
mod routes;
mod token;

use std::{
    fmt::Display,
    io,
    net::{SocketAddr, TcpListener},
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use axum::{
    http::{StatusCode, header::CACHE_CONTROL},
    response::{IntoResponse, Response},
};
use tokio::{runtime, sync::oneshot};
use tracing::{error, info, warn};

pub use http::Limits;
pub use token::{Token, TokenError};

use self::live::Live;
use crate::{
    control::{self, ControlSocket},
    handle::Handle,
    metrics::Metrics,
};

/// How long the controller's loop may take to answer before `/healthz` says that it does not: the patience to give
/// the [`Handle`].
pub const HEALTH_PATIENCE: Duration = Duration::from_secs(2);

/// Where and how to serve HTTP.
#[derive(Debug)]
pub struct Options {
    pub listener: Listener,
    pub limits: Limits,
    /// What a client must know to change anything; `None`: HTTP only shows.
    pub token: Option<Token>,
}

/// Why serving could not begin.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(
        "cannot serve HTTP on {listen}: {source}; choose another address with --listen or `listen` in shaper.toml"
    )]
    Listen {
        listen: SocketAddr,
        source: io::Error,
    },
    #[error("cannot start the thread that serves HTTP and the control socket: {0}")]
    Thread(io::Error),
}

/// Where HTTP will be served. Had early, so that a start which cannot have it fails before it has changed anything.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    addr: SocketAddr,
}

impl Listener {
    /// Port 0 takes any that is free, see [`Server::addr`].
    ///
    /// # Errors
    /// When the address is taken.
    pub fn bind(listen: SocketAddr) -> Result<Self, ServeError> {
        let error = |source| ServeError::Listen { listen, source };
        let socket = TcpListener::bind(listen).map_err(error)?;
        socket.set_nonblocking(true).map_err(error)?;
        let addr = socket.local_addr().map_err(error)?;
        Ok(Self { socket, addr })
    }
}

/// What the paths share.
#[derive(Clone)]
struct Shared {
    handle: Handle,
    metrics: Arc<Metrics>,
    live: Live,
    token: Option<Token>,
}

/// There is no answer now, and why.
fn unavailable(why: &dyn Display) -> Response {
    (
        StatusCode::SERVICE_UNAVAILABLE,
        [(CACHE_CONTROL, "no-store")],
        format!("{why}\n"),
    )
        .into_response()
}

/// The serving thread. Dropping this tells it to stop; [`Server::shutdown`] also waits until it has.
#[derive(Debug)]
pub struct Server {
    addr: SocketAddr,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Server {
    /// Where HTTP is served.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Accepts nothing more, lets requests in flight end (for two seconds at most), and removes the control socket.
    pub fn shutdown(self) {
        // The thread may have ended by itself.
        let _ = self.stop.send(());
        if self.thread.join().is_err() {
            error!("the serving thread had panicked");
        }
    }
}

/// Starts to serve.
///
/// # Errors
/// When the thread cannot be had. All that comes later ends single connections only.
pub fn spawn(
    options: Options,
    control: ControlSocket,
    handle: Handle,
    metrics: Arc<Metrics>,
) -> Result<Server, ServeError> {
    let Options {
        listener,
        limits,
        token,
    } = options;
    let Listener { socket, addr } = listener;
    if !addr.ip().is_loopback() {
        warn!(%addr, "HTTP is served beyond this host: anyone who reaches it sees lanes and accounts");
    }
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(ServeError::Thread)?;
    let (stop, stopped) = oneshot::channel();
    let thread = thread::Builder::new()
        .name("shaper-serve".into())
        .spawn(move || {
            let (publisher, live) = live::channel(handle.clone());
            let shared = Shared {
                handle: handle.clone(),
                metrics,
                live,
                token,
            };
            let router = routes::router(shared, addr.ip().is_loopback());
            runtime.block_on(async {
                let publishing = tokio::spawn(publisher.run());
                let stopped = async {
                    // An error is a dropped `Server`, which means the same.
                    let _ = stopped.await;
                    // Ends the streams, which would go on for ever.
                    publishing.abort();
                };
                let commands = control::serve(&control, handle);
                let http = http::serve(socket, router, limits, stopped);
                tokio::pin!(http);
                let served = tokio::select! {
                    served = &mut http => served,
                    failed = commands => {
                        error!(socket = %control.path().display(), ?failed, "the control socket is not served");
                        http.await
                    }
                };
                if let Err(error) = served {
                    error!(%addr, %error, "HTTP is not served");
                }
            });
        })
        .map_err(ServeError::Thread)?;
    info!(%addr, "serving HTTP");
    Ok(Server { addr, stop, thread })
}

#[cfg(test)]
pub(in crate::serve) mod tests {
    use std::{
        io::{Read, Write},
        net::TcpStream,
        time::Instant,
    };

    use super::*;
    use crate::{
        control::Client,
        handle::stub,
        snapshot::{Snapshot, Waiters, samples},
    };

    const LIMITS: Limits = Limits {
        connections: 2,
        header_read: Duration::from_millis(200),
        lifetime: Duration::from_millis(500),
    };

    /// Whether there is a controller behind the handle.
    pub(in crate::serve) enum Loop {
        Answers,
        IsStuck,
    }

    /// Runs `client` against a server on a free port, with its control socket in a directory of its own.
    fn with_server(controller: Loop, client: impl FnOnce(&Server, &std::path::Path)) {
        with_token(controller, None, client);
    }

    /// The same, with a token for changes.
    pub(in crate::serve) fn with_token(
        controller: Loop,
        token: Option<Token>,
        client: impl FnOnce(&Server, &std::path::Path),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("default.sock");
        let (handle, commands) = Handle::new(Duration::from_millis(300));
        let _stuck = match controller {
            Loop::Answers => {
                let runtime = runtime::Builder::new_current_thread().build().unwrap();
                thread::spawn(move || runtime.block_on(stub::answer(commands)));
                None
            }
            Loop::IsStuck => Some(commands),
        };
        let options = Options {
            listener: Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap(),
            limits: LIMITS,
            token,
        };
        let metrics = Arc::new(Metrics::new("0.1.0"));
        let control = ControlSocket::bind(&path).unwrap();
        let server = spawn(options, control, handle, metrics).unwrap();
        client(&server, &path);
        server.shutdown();
        assert!(!path.exists(), "the control socket outlives its server");
    }

    pub(in crate::serve) fn connect(server: &Server) -> TcpStream {
        let stream = TcpStream::connect(server.addr()).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        stream
    }

    /// The whole response to `GET path`.
    fn get(server: &Server, path: &str) -> String {
        ask(server, &format!("GET {path}"), &["host: localhost"], "")
    }

    /// The whole response to a request.
    pub(in crate::serve) fn ask(
        server: &Server,
        request: &str,
        headers: &[&str],
        body: &str,
    ) -> String {
        let mut stream = connect(server);
        let headers = headers.join("\r\n");
        write!(
            stream,
            "{request} HTTP/1.1\r\n{headers}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).unwrap();
        response
    }

    pub(in crate::serve) fn body(response: &str) -> &str {
        response.split_once("\r\n\r\n").unwrap().1
    }

    #[test]
    fn every_path_answers_and_the_index_names_it() {
        with_server(Loop::Answers, |server, _| {
            let index = get(server, "/");
            for path in ["/metrics", "/api/lanes", "/api/waiters", "/healthz"] {
                assert!(body(&index).contains(path), "{index}");
                let response = get(server, path);
                assert!(response.starts_with("HTTP/1.1 200"), "{path}: {response}");
            }
            assert_eq!(body(&get(server, "/healthz")), "ok\n");
            assert!(get(server, "/nothing").starts_with("HTTP/1.1 404"));
            assert!(
                body(&get(server, "/metrics")).contains("shaper_inflight{lane=\"reasoning\"} 6")
            );
        });
    }

    /// A16: `/api/lanes` is the document that `shaper status --json` shows.
    #[test]
    fn http_and_the_control_socket_show_the_same_snapshot() {
        with_server(Loop::Answers, |server, path| {
            let response = get(server, "/api/lanes");
            let snapshot: Snapshot = serde_json::from_str(body(&response)).unwrap();
            assert_eq!(snapshot, samples::busy());
            let mut client = Client::connect(path).unwrap();
            assert_eq!(client.status().unwrap(), snapshot);
            let response = get(server, "/api/waiters");
            let waiters: Waiters = serde_json::from_str(body(&response)).unwrap();
            assert_eq!(client.waiters().unwrap(), waiters);
        });
    }

    #[test]
    fn a_stuck_loop_is_reported_and_hangs_nobody() {
        with_server(Loop::IsStuck, |server, _| {
            for path in ["/healthz", "/metrics", "/api/lanes", "/api/waiters"] {
                let response = get(server, path);
                assert!(response.starts_with("HTTP/1.1 503"), "{path}: {response}");
                assert!(response.contains("did not answer"), "{path}: {response}");
            }
        });
    }

    /// Clients that never finish their request have taken every connection there is.
    #[test]
    fn slow_clients_are_cut_off_and_others_are_served() {
        with_server(Loop::Answers, |server, _| {
            let begun = Instant::now();
            let mut slow: Vec<TcpStream> =
                (0..LIMITS.connections).map(|_| connect(server)).collect();
            for stream in &mut slow {
                stream.write_all(b"GET / HTTP/1.1\r\nx-slow: ").unwrap();
            }
            assert_eq!(body(&get(server, "/healthz")), "ok\n");
            for mut stream in slow {
                // End or reset, but not ten seconds of nothing.
                let _ = stream.read_to_end(&mut Vec::new());
            }
            let took = begun.elapsed();
            assert!(took < Duration::from_secs(5), "{took:?}");
        });
    }

    /// Many times as many clients as are served at once, who connect and say nothing.
    #[test]
    fn a_crowd_that_only_connects_keeps_nobody_out() {
        with_server(Loop::Answers, |server, _| {
            let begun = Instant::now();
            let crowd: Vec<TcpStream> = (0..200).map(|_| connect(server)).collect();
            for _ in 0..10 {
                assert_eq!(body(&get(server, "/healthz")), "ok\n");
            }
            drop(crowd);
            // Each in its turn would have been cut off after 200 ms, two at a time.
            let took = begun.elapsed();
            assert!(took < Duration::from_secs(10), "{took:?}");
        });
    }

    #[test]
    fn thousands_of_connections_with_garbage_leave_the_server_as_it_was() {
        with_server(Loop::Answers, |server, _| {
            for number in 0..3000_u32 {
                let mut stream = connect(server);
                let garbage = number.wrapping_mul(0x9e37_79b9).to_le_bytes().repeat(8);
                let sent = &garbage[..number as usize % garbage.len()];
                // Whether it is read to the end or not.
                let _ = stream.write_all(sent);
            }
            assert_eq!(body(&get(server, "/healthz")), "ok\n");
        });
    }

    #[test]
    fn a_connection_that_is_too_old_ends_between_two_responses() {
        with_server(Loop::Answers, |server, _| {
            let begun = Instant::now();
            let mut stream = connect(server);
            let mut received = Vec::new();
            while stream
                .write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
                .is_ok()
            {
                let mut piece = [0; 4096];
                match stream.read(&mut piece) {
                    Ok(0) | Err(_) => break,
                    Ok(len) => received.extend_from_slice(&piece[..len]),
                }
            }
            assert!(begun.elapsed() >= LIMITS.lifetime);
            assert!(received.ends_with(b"\r\n\r\nok\n"));
        });
    }

    #[test]
    fn malformed_requests_end_their_own_connection_only() {
        with_server(Loop::Answers, |server, _| {
            let huge = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(64 * 1024));
            for request in [
                "\r\n\r\n\0\0\0",
                "BLAH\r\n\r\n",
                "GET / HTTP/9.9\r\n\r\n",
                &huge,
            ] {
                let mut stream = connect(server);
                // The server may hang up in the middle of it.
                let _ = stream.write_all(request.as_bytes());
                let mut response = Vec::new();
                let _ = stream.read_to_end(&mut response);
                let response = String::from_utf8_lossy(&response);
                assert!(!response.starts_with("HTTP/1.1 200"), "{response}");
            }
            assert_eq!(body(&get(server, "/healthz")), "ok\n");
        });
    }

    #[test]
    fn a_taken_address_is_named_with_the_remedy() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let listen = taken.local_addr().unwrap();
        let error = Listener::bind(listen).unwrap_err().to_string();
        assert!(
            error.contains(&listen.to_string()) && error.contains("--listen"),
            "{error}"
        );
    }
}
