//! A stub gateway inside the test's own process. It answers as it is told and measures what reaches it: the most
//! requests it had in service at one time, who came when, and who left before the answer.

mod answer;
mod bucket;
mod connection;
mod latch;
mod meter;
mod unheard;
mod wire;
mod workshop;

use std::fmt;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

pub use answer::{Answer, BreakOff, Request};
pub use bucket::Bucket;
pub use latch::Latch;
use meter::Meter;
pub use meter::{Outcome, RequestRecord, Tally};
use unheard::Unheard;
use wire::Tls;
pub use wire::TlsVersion;
pub use workshop::Workshop;

use crate::clock::Moment;
use crate::netns::Netns;

/// A running gateway; it stops, and breaks its connections off, when dropped.
#[derive(Debug)]
pub struct Gateway {
    service: Arc<Service>,
    addresses: Vec<SocketAddr>,
    acceptors: Vec<JoinHandle<()>>,
}

impl Gateway {
    /// A gateway that answers everything at once, until told otherwise.
    pub fn builder() -> GatewayBuilder {
        GatewayBuilder {
            listeners: Vec::new(),
            choose: Box::new(|_| Answer::at_once()),
            dislike: None,
            tls: None,
        }
    }

    /// A gateway on one port of the IPv4 loopback with one answer for everybody.
    pub fn answering(answer: Answer) -> Result<Self> {
        Self::builder().listen_v4()?.answer(answer).start()
    }

    /// The address of the first listener.
    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// The addresses of all listeners, in the order in which they were asked for.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// The URL of the first listener.
    pub fn url(&self) -> String {
        self.url_of(self.address())
    }

    /// The URL of one of [`Gateway::addresses`].
    pub fn url_of(&self, address: SocketAddr) -> String {
        let scheme = if self.service.tls.is_some() {
            "https"
        } else {
            "http"
        };
        format!("{scheme}://{address}/v1/messages")
    }

    /// The gateway's certificate in PEM form, if it speaks TLS.
    pub fn certificate(&self) -> Option<&str> {
        Some(&self.service.tls.as_ref()?.certificate)
    }

    /// The connections that are open now.
    pub fn connections(&self) -> usize {
        self.service.open.load(Ordering::Relaxed)
    }

    /// When connections from this port were accepted of which no byte has come, or none ever came.
    pub fn unheard_from(&self, port: u16) -> Vec<Moment> {
        self.service.unheard.from(port)
    }

    /// What the gateway has seen until now.
    pub fn tally(&self) -> Tally {
        self.service.meter.tally()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.service.stop.open();
        for acceptor in self.acceptors.drain(..) {
            if acceptor.join().is_err() {
                eprintln!("a gateway thread panicked");
            }
        }
    }
}

/// What a gateway does when more requests are in service than it likes.
#[derive(Clone, Debug)]
struct Dislike {
    above: usize,
    answer: Answer,
}

type Choice = Box<dyn Fn(&Request) -> Answer + Send + Sync>;

/// What all connections of one gateway share.
struct Service {
    meter: Meter,
    choose: Choice,
    dislike: Option<Dislike>,
    tls: Option<Tls>,
    stop: Latch,
    /// Connections whose threads are at work.
    open: AtomicUsize,
    unheard: Unheard,
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service")
            .field("meter", &self.meter)
            .field("dislike", &self.dislike)
            .field("tls", &self.tls)
            .finish_non_exhaustive()
    }
}

impl Service {
    fn answer_to(&self, request: &Request, crowd: usize) -> Answer {
        match &self.dislike {
            Some(dislike) if crowd > dislike.above => dislike.answer.clone(),
            _ => (self.choose)(request),
        }
    }
}

/// A gateway in the making.
pub struct GatewayBuilder {
    listeners: Vec<TcpListener>,
    choose: Choice,
    dislike: Option<Dislike>,
    tls: Option<TlsVersion>,
}

impl fmt::Debug for GatewayBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatewayBuilder")
            .field("listeners", &self.listeners)
            .finish_non_exhaustive()
    }
}

impl GatewayBuilder {
    /// One more listener, on a free port of the IPv4 loopback.
    pub fn listen_v4(self) -> Result<Self> {
        self.listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
    }

    /// One more listener, on a free port of the IPv6 loopback.
    pub fn listen_v6(self) -> Result<Self> {
        self.listen(SocketAddr::from((Ipv6Addr::LOCALHOST, 0)))
    }

    /// One more listener.
    pub fn listen(mut self, address: SocketAddr) -> Result<Self> {
        self.listeners.push(bind(address)?);
        Ok(self)
    }

    /// One more listener, inside a network namespace.
    pub fn listen_in(mut self, netns: &Netns, address: SocketAddr) -> Result<Self> {
        self.listeners.push(netns.run(|| bind(address))??);
        Ok(self)
    }

    /// One answer for everybody.
    #[must_use]
    pub fn answer(self, answer: Answer) -> Self {
        self.answer_by(move |_| answer.clone())
    }

    /// An answer for each request.
    #[must_use]
    pub fn answer_by(self, choose: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        Self {
            choose: Box::new(choose),
            ..self
        }
    }

    /// Requests that make it more than `above` at a time get this answer instead.
    #[must_use]
    pub fn dislike(self, above: usize, answer: Answer) -> Self {
        Self {
            dislike: Some(Dislike { above, answer }),
            ..self
        }
    }

    /// TLS of one version on all listeners.
    #[must_use]
    pub fn tls(self, version: TlsVersion) -> Self {
        Self {
            tls: Some(version),
            ..self
        }
    }

    pub fn start(self) -> Result<Gateway> {
        let addresses = self
            .listeners
            .iter()
            .map(TcpListener::local_addr)
            .collect::<std::io::Result<Vec<_>>>()
            .context("cannot tell a listener's address")?;
        let tls = self
            .tls
            .map(|version| {
                let names = addresses.iter().map(|address| address.ip().to_string());
                Tls::for_names(names.chain(["localhost".to_owned()]).collect(), version)
            })
            .transpose()?;
        let service = Arc::new(Service {
            meter: Meter::default(),
            choose: self.choose,
            dislike: self.dislike,
            tls,
            stop: Latch::shut(),
            open: AtomicUsize::new(0),
            unheard: Unheard::default(),
        });
        let acceptors = self
            .listeners
            .into_iter()
            .map(|listener| {
                let service = Arc::clone(&service);
                thread::spawn(move || accept(&listener, &service))
            })
            .collect();
        Ok(Gateway {
            service,
            addresses,
            acceptors,
        })
    }
}

fn bind(address: SocketAddr) -> Result<TcpListener> {
    let listener =
        TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    // Between poll(2) and accept(2) a client may have gone, and accept(2) would block.
    listener
        .set_nonblocking(true)
        .with_context(|| format!("cannot make the listener on {address} non-blocking"))?;
    Ok(listener)
}

/// Accepts until the gateway stops, a thread for each connection; then breaks the open ones off.
fn accept(listener: &TcpListener, service: &Arc<Service>) {
    // Weak, so that a socket is closed when its connection is done with it and not when the gateway stops.
    let mut sockets = Vec::<Weak<TcpStream>>::new();
    thread::scope(|connections| {
        loop {
            let mut watched = [
                PollFd::new(listener.as_fd(), PollFlags::POLLIN),
                PollFd::new(service.stop.as_fd(), PollFlags::POLLIN),
            ];
            if let Err(error) = poll(&mut watched, PollTimeout::NONE) {
                panic!("cannot poll a listener: {error}");
            }
            if watched[1].any().unwrap_or(false) {
                break;
            }
            match listener.accept() {
                Ok((socket, peer)) => {
                    service.meter.accepted();
                    let socket = Arc::new(socket);
                    sockets.push(Arc::downgrade(&socket));
                    service.open.fetch_add(1, Ordering::Relaxed);
                    connections.spawn(move || {
                        converse(&socket, peer, service);
                        service.open.fetch_sub(1, Ordering::Relaxed);
                    });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => {
                    eprintln!("gateway: cannot accept: {error}");
                    // Without descriptors the listener stays readable.
                    thread::sleep(Duration::from_millis(10));
                }
            }
        }
        for socket in sockets.iter().filter_map(Weak::upgrade) {
            // Fails if the client was faster, which is as good.
            let _ = socket.shutdown(Shutdown::Both);
        }
    });
}

fn converse(socket: &TcpStream, peer: SocketAddr, service: &Service) {
    // What goes wrong from here on is a client that left or babbled: the meter has it as aborted.
    let _ = socket
        .set_nonblocking(false)
        .and_then(|()| socket.set_nodelay(true));
    let _ = match &service.tls {
        None => connection::serve(socket, peer, service),
        Some(tls) => match tls.accept(socket) {
            Ok(wire) => connection::serve(wire, peer, service),
            Err(error) => {
                eprintln!("gateway: {error:#}");
                Ok(())
            }
        },
    };
}
