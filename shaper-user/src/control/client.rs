//! The commands' end of the control socket: blocking, with timeouts.

use std::{
    io::{self, BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{
    Reply, Request,
    protocol::{DecodeError, decode, encode},
};
use crate::{
    config::Setting,
    history::{Question, Report},
    pause::InForce,
    snapshot::{Snapshot, Waiters},
};

/// How long the controller may take. Longer than its own patience with its loop, whose verdict is the better message.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a command got no answer, or not the one it wanted.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(
        "no controller is listening at {}: start it with `shaper run`, or name its socket with --control",
        .0.display()
    )]
    NotListening(PathBuf),
    #[error(
        "no permission to use the control socket {}: use sudo, or join the group that owns it",
        .0.display()
    )]
    Denied(PathBuf),
    #[error(
        "the controller at {} did not answer within {} s: see its log",
        .0.display(), PATIENCE.as_secs()
    )]
    NoAnswer(PathBuf),
    #[error("the controller at {} closed the connection: it is stopping, or see its log", .0.display())]
    Closed(PathBuf),
    #[error("cannot talk to the controller at {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("cannot read the controller's answer: {0}")]
    Decode(#[from] DecodeError),
    #[error("the controller answered something else than was asked")]
    Unexpected,
    /// The controller says no; the message is its own.
    #[error("{0}")]
    Refused(String),
}

/// A connection to a controller.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the controller whose control socket is at `path`.
    ///
    /// # Errors
    /// [`ClientError::NotListening`], [`ClientError::Denied`] or [`ClientError::Io`].
    pub fn connect(path: &Path) -> Result<Self, ClientError> {
        let connected = UnixStream::connect(path).and_then(|stream| {
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            Ok(stream)
        });
        match connected {
            Ok(stream) => Ok(Self {
                path: path.to_owned(),
                stream: BufReader::new(stream),
            }),
            Err(source) => Err(explain(path, source)),
        }
    }

    /// The state of all lanes.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub fn status(&mut self) -> Result<Snapshot, ClientError> {
        match self.ask(&Request::Status)? {
            Reply::Status { snapshot } => Ok(snapshot),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Everybody who waits.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub fn waiters(&mut self) -> Result<Waiters, ClientError> {
        match self.ask(&Request::Waiters)? {
            Reply::Waiters { waiters } => Ok(waiters),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// What happened, by lane, class and hour.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub fn stats(&mut self, question: &Question) -> Result<Report, ClientError> {
        let request = Request::Stats {
            lane: question.lane.clone(),
            since: question.since,
        };
        match self.ask(&request)? {
            Reply::Stats { stats } => Ok(stats),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Pauses a lane for `length`, to the millisecond; returns the pause that is in force then, which is a longer one if
    /// there was one.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub fn pause(&mut self, lane: &str, length: Duration) -> Result<InForce, ClientError> {
        let request = Request::Pause {
            lane: lane.into(),
            length,
        };
        match self.ask(&request)? {
            Reply::Paused { pause } => Ok(pause),
            _ => Err(ClientError::Unexpected),
        }
    }

    /// Ends a lane's pause.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub fn resume(&mut self, lane: &str) -> Result<(), ClientError> {
        self.change(&Request::Resume { lane: lane.into() })
    }

    /// Ends the controller; nothing stays attached.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub fn detach(&mut self) -> Result<(), ClientError> {
        self.change(&Request::Detach)
    }

    /// Changes settings of a lane, all or none; returns what is worth a warning, each in words.
    ///
    /// # Errors
    /// Any [`ClientError`].
    pub fn set(&mut self, lane: &str, settings: &[Setting]) -> Result<Vec<String>, ClientError> {
        let request = Request::Set {
            lane: lane.into(),
            settings: settings.to_vec(),
        };
        match self.ask(&request)? {
            Reply::Set { warnings } => Ok(warnings),
            _ => Err(ClientError::Unexpected),
        }
    }

    fn change(&mut self, request: &Request) -> Result<(), ClientError> {
        match self.ask(request)? {
            Reply::Done => Ok(()),
            _ => Err(ClientError::Unexpected),
        }
    }

    fn ask(&mut self, request: &Request) -> Result<Reply, ClientError> {
        let line = encode(request).map_err(|error| explain(&self.path, error.into()))?;
        let mut answer = Vec::new();
        self.stream
            .get_mut()
            .write_all(&line)
            .and_then(|()| self.stream.read_until(b'\n', &mut answer))
            .map_err(|source| explain(&self.path, source))?;
        if !answer.ends_with(b"\n") {
            return Err(ClientError::Closed(self.path.clone()));
        }
        match decode(&answer)? {
            Reply::Error { message, .. } => Err(ClientError::Refused(message)),
            reply => Ok(reply),
        }
    }
}

fn explain(path: &Path, source: io::Error) -> ClientError {
    let path = path.to_owned();
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            ClientError::NotListening(path)
        }
        io::ErrorKind::PermissionDenied => ClientError::Denied(path),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ClientError::NoAnswer(path),
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ClientError::Closed(path),
        _ => ClientError::Io { path, source },
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Read, os::unix::net::UnixListener, thread};

    use super::*;
    use crate::{
        control::{ControlSocket, ErrorKind, serve},
        handle::{Handle, stub},
        policy::PausedBy,
        snapshot::samples,
    };

    /// Runs `client` against a real socket with a controller behind it that has one lane, `reasoning`.
    fn with_controller(client: impl FnOnce(&Path) + Send + 'static) {
        let dir = tempfile::tempdir().unwrap();
        let socket = ControlSocket::bind(&dir.path().join("default.sock")).unwrap();
        let path = socket.path().to_owned();
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
            .block_on(async {
                let (handle, commands) = Handle::new(Duration::from_secs(2));
                tokio::select! {
                    served = serve(&socket, handle) => panic!("the server ended: {served:?}"),
                    () = stub::answer(commands) => panic!("the controller ended"),
                    done = tokio::task::spawn_blocking(move || client(&path)) => done.unwrap(),
                }
            });
    }

    #[test]
    fn every_request_gets_its_reply_on_one_connection() {
        with_controller(|path| {
            let mut client = Client::connect(path).unwrap();
            assert_eq!(client.status().unwrap(), samples::busy());
            assert_eq!(client.waiters().unwrap(), samples::waiters());
            let question = Question {
                lane: Some("reasoning".into()),
                since: Duration::from_secs(7200),
            };
            assert_eq!(client.stats(&question).unwrap().lanes[0].hours.len(), 2);
            let pause = client.pause("reasoning", Duration::from_secs(30)).unwrap();
            assert_eq!(pause.by, PausedBy::Operator);
            client.resume("reasoning").unwrap();
            let settings = ["max_inflight=4", "max_queue=640"].map(|text| text.parse().unwrap());
            let warnings = client.set("reasoning", &settings).unwrap();
            assert_eq!(warnings, ["`max_queue`: much"]);
        });
    }

    #[test]
    fn a_mistake_is_answered_with_its_remedy_and_the_connection_lives_on() {
        with_controller(|path| {
            let mut client = Client::connect(path).unwrap();
            let error = client.resume("nowhere").unwrap_err().to_string();
            assert!(
                error.contains("nowhere") && error.contains("reasoning"),
                "{error}"
            );
            let bad = "max_inflight=many".parse().unwrap();
            let error = client.set("reasoning", &[bad]).unwrap_err().to_string();
            assert!(error.contains("max_inflight"), "{error}");
            client.status().unwrap();
        });
    }

    fn raw(path: &Path, request: &[u8]) -> String {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.write_all(request).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn malformed_input_is_answered_and_harms_nobody_else() {
        with_controller(|path| {
            let endless = vec![b'x'; 16 * 1024];
            for request in [
                &b"status\n"[..],
                b"\n",
                b"\xff\xfe\n",
                b"{\"version\":1,\"request\":\"status\"}\n",
                b"{\"version\":2,\"request\":\"status\"}",
                &endless,
            ] {
                let answer = raw(path, request);
                assert!(
                    answer.contains("bad_request"),
                    "{:?}: {answer}",
                    String::from_utf8_lossy(&request[..request.len().min(40)])
                );
            }
            Client::connect(path).unwrap().status().unwrap();
        });
    }

    /// E9: whatever line comes, the answer is one line that says what is wrong with it.
    #[test]
    fn two_thousand_malformed_lines_get_a_clear_error_each() {
        const MEANT: [&str; 5] = [
            r#"{"version":2,"request":"status"}"#,
            r#"{"version":2,"request":"waiters"}"#,
            r#"{"version":2,"request":"pause","lane":"reasoning","for_ms":30000}"#,
            r#"{"version":2,"request":"resume","lane":"reasoning"}"#,
            r#"{"version":2,"request":"set","lane":"reasoning","settings":[{"key":"max_inflight","value":"4"}]}"#,
        ];
        with_controller(|path| {
            let mut stream = BufReader::new(UnixStream::connect(path).unwrap());
            let mut random = 0x2545_f491_4f6c_dd1d_u64;
            let mut below = |bound: usize| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random as usize % bound
            };
            let mut malformed = 0;
            while malformed < 2000 {
                let mut line = MEANT[below(MEANT.len())].as_bytes().to_vec();
                for _ in 0..=below(3) {
                    let at = below(line.len());
                    match below(3) {
                        0 => line.truncate(at.max(1)),
                        1 => line[at] = below(256) as u8,
                        _ => line.insert(at, b"{}[]\",:-0\0"[below(10)]),
                    }
                }
                line.retain(|byte| *byte != b'\n');
                if line.is_empty() || decode::<Request>(&line).is_ok() {
                    continue;
                }
                malformed += 1;
                line.push(b'\n');
                stream.get_mut().write_all(&line).unwrap();
                let mut answer = Vec::new();
                stream.read_until(b'\n', &mut answer).unwrap();
                match decode::<Reply>(&answer).unwrap() {
                    Reply::Error { kind, message } => {
                        assert_eq!(kind, ErrorKind::BadRequest, "{message}");
                        assert!(message.contains("protocol"), "{message}");
                    }
                    reply => panic!("{reply:?} to {:?}", String::from_utf8_lossy(&line)),
                }
            }
        });
    }

    #[test]
    fn no_controller_is_said_with_the_path_and_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("default.sock");
        let absent = Client::connect(&path).unwrap_err().to_string();
        drop(UnixListener::bind(&path).unwrap());
        let dead = Client::connect(&path).unwrap_err().to_string();
        for error in [absent, dead] {
            assert_eq!(
                error,
                format!(
                    "no controller is listening at {}: start it with `shaper run`, or name its socket with --control",
                    path.display()
                )
            );
        }
    }

    #[test]
    fn a_controller_that_stops_midway_is_told_from_one_that_is_absent() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("default.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let stopping = thread::spawn(move || drop(listener.accept().unwrap()));
        let mut client = Client::connect(&path).unwrap();
        stopping.join().unwrap();
        let error = client.status().unwrap_err();
        assert!(matches!(error, ClientError::Closed(_)), "{error}");
    }
}
