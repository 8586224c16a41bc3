//! The controller's end of the control socket.

use std::{io, sync::Arc, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tracing::{debug, info, warn};

use super::{
    ControlSocket, ErrorKind, Reply, Request,
    peer::Peer,
    protocol::{REQUEST_MAX, decode, encode},
};
use crate::{config::listed, format, handle::Handle, history::Question};

/// Clients served at once; further ones wait to be accepted.
const CLIENTS: usize = 32;

/// How long a client may take for a request, and for reading a reply.
const PATIENCE: Duration = Duration::from_secs(30);

/// Serves the socket until the task is dropped.
///
/// # Errors
/// When the socket cannot be registered with the runtime. Errors of single clients only end their connection.
pub async fn serve(socket: &ControlSocket, handle: Handle) -> io::Result<()> {
    let listener = UnixListener::from_std(socket.listener()?)?;
    let clients = Arc::new(Semaphore::new(CLIENTS));
    loop {
        let Ok(permit) = clients.clone().acquire_owned().await else {
            return Ok(());
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                let handle = handle.clone();
                tokio::spawn(async move {
                    if let Err(error) = client(stream, &handle).await {
                        debug!(%error, "control connection ended");
                    }
                    drop(permit);
                });
            }
            Err(error) => {
                // Out of file descriptors, for one: it passes, and must not become a busy loop.
                warn!(%error, "cannot accept on the control socket");
                sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn client(stream: UnixStream, handle: &Handle) -> io::Result<()> {
    let peer = Peer::of(&stream)?;
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut bounded = (&mut reader).take(REQUEST_MAX);
        if timeout(PATIENCE, bounded.read_until(b'\n', &mut line)).await?? == 0 {
            return Ok(());
        }
        // Without its newline the line is cut off or too long: there is no telling where the next request begins.
        let whole = line.ends_with(b"\n");
        let reply = if whole {
            answer(&line, peer, handle).await
        } else {
            bad_request(format!(
                "a request is one line of at most {REQUEST_MAX} bytes that ends with a newline"
            ))
        };
        timeout(PATIENCE, writer.write_all(&encode(&reply)?)).await??;
        if !whole {
            return Ok(());
        }
    }
}

fn bad_request(message: String) -> Reply {
    Reply::Error {
        kind: ErrorKind::BadRequest,
        message,
    }
}

async fn answer(line: &[u8], peer: Peer, handle: &Handle) -> Reply {
    let request = match decode::<Request>(line) {
        Ok(request) => request,
        Err(error) => return bad_request(error.to_string()),
    };
    if request.changes() && !peer.may_change() {
        warn!(%peer, "refused to change anything");
        return Reply::Error {
            kind: ErrorKind::Forbidden,
            message: peer.refusal(),
        };
    }
    let result = match request {
        Request::Status => handle.snapshot().await.map(|snapshot| Reply::Status {
            snapshot: Arc::unwrap_or_clone(snapshot),
        }),
        Request::Stats { lane, since } => handle
            .stats(Question { lane, since })
            .await
            .map(|stats| Reply::Stats { stats }),
        Request::Waiters => handle.waiters().await.map(|waiters| Reply::Waiters {
            waiters: Arc::unwrap_or_clone(waiters),
        }),
        Request::Pause { lane, length } => {
            info!(%peer, lane, length = format::duration(length), "pause");
            let pause = handle.pause(lane, length).await;
            pause.map(|pause| Reply::Paused { pause })
        }
        Request::Resume { lane } => {
            info!(%peer, lane, "resume");
            handle.resume(lane).await.map(|()| Reply::Done)
        }
        Request::Set { lane, settings } => {
            info!(%peer, lane, settings = listed(&settings), "set");
            let warnings = handle.set(lane, settings).await;
            warnings.map(|warnings| Reply::Set { warnings })
        }
        Request::Detach => {
            info!(%peer, "detach");
            handle.detach().await.map(|()| Reply::Done)
        }
    };
    result.unwrap_or_else(Reply::from)
}
