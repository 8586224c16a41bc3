//! What a benchmark asks of its clients: one line of JSON down, one line of JSON back.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Connect and close, `count` times. Answered with the time of each connect, and last with the time of everything.
    Connect { to: SocketAddr, count: usize },
    /// Connect, send a request, read the answer, close, `count` times. Answered with the time of each.
    Call { to: SocketAddr, count: usize },
    /// One request after the other on one connection. Answered with the time of each pair of request and answer.
    Pairs { to: SocketAddr, count: usize },
    /// Read an answer of so many bytes. Answered with the time from the request to the last byte.
    Download { to: SocketAddr, bytes: usize },
    /// Send a request of so many bytes. Answered with the time from the first byte to the answer.
    Upload { to: SocketAddr, bytes: usize },
    /// Connect, send a request, and keep the connection as long as the client lives. Answered with nothing, at once.
    Hold { to: SocketAddr },
    /// So many connections begin, spread over the addresses, and are kept as long as the client lives. Answered with
    /// nothing.
    Wait { to: Vec<SocketAddr>, count: usize },
    /// Keep `waiters` connects waiting behind one that is made; end the latter and begin a new one, `handovers` times.
    /// Answered with the time from each end to the next connect's success.
    HandOverConnects {
        to: SocketAddr,
        waiters: usize,
        handovers: usize,
    },
    /// Keep `waiters` requests waiting behind one that is being served; begin a new one for each that is answered,
    /// `handovers` times. Answered with nothing: the gateway takes the times.
    HandOverRequests {
        to: SocketAddr,
        waiters: usize,
        handovers: usize,
    },
}

/// Nanoseconds, or why there are none.
pub type Answer = Result<Vec<u64>, String>;
