//! A raw TCP client that makes one blocking call and prints, as one line of JSON, when it was connected and
//! when answered, by the monotonic clock: `shaper-test-probe ADDRESS:PORT [LABEL]`.

use std::env;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result};
use shaper_tests::clock::Moment;

/// Longer than any `wake_bytes`, so that nobody takes the request for a handshake.
const BODY: [u8; 1024] = [b'.'; 1024];

fn main() -> Result<()> {
    let mut arguments = env::args().skip(1);
    let address: SocketAddr = arguments
        .next()
        .context("usage: shaper-test-probe ADDRESS:PORT [LABEL]")?
        .parse()
        .context("the address is not of the form ADDRESS:PORT")?;
    let label = arguments.next().unwrap_or_default();

    let started = Moment::now();
    let called = TcpStream::connect(address).and_then(|connection| {
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

/// The bytes of the whole answer, which the gateway ends by closing.
fn call(mut connection: TcpStream, label: &str) -> io::Result<usize> {
    write!(
        connection,
        "POST /v1/messages HTTP/1.1\r\nHost: gateway\r\nConnection: close\r\nX-Label: {label}\r\n\
         Content-Length: {}\r\n\r\n",
        BODY.len()
    )?;
    connection.write_all(&BODY)?;
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer)
}
