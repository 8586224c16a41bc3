//! The lanes as a stream of server-sent events, for the live page.
//!
//! One task looks once a second and writes each event once, however many pages are open. A reader that is too slow for
//! every event gets the newest when it is ready: nothing is queued for it.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::header::{CACHE_CONTROL, CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use serde::Serialize;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{self, MissedTickBehavior},
};

use super::unavailable;
use crate::{
    handle::{Handle, HandleError},
    snapshot::{Levels, Snapshot, Waiters},
    words,
};

/// Streams at once: fewer than there are connections, so that open pages leave room for scrapers.
const STREAMS: usize = 16;

/// Time between two events.
const INTERVAL: Duration = Duration::from_secs(1);

/// Looks kept for pages that are opened later: five minutes.
const KEPT: usize = 300;

/// When a browser comes back after a stream has ended, in milliseconds.
const RETRY: &str = "retry: 1000\n\n";

#[derive(Serialize)]
struct Look<'a> {
    snapshot: &'a Snapshot,
    waiters: &'a Waiters,
    /// Each lane's state in a sentence, in the order of the snapshot.
    words: Vec<String>,
}

/// The last five minutes, oldest first.
#[derive(Clone, Debug, Default, Serialize)]
struct Past {
    moments: VecDeque<Levels>,
}

impl Past {
    fn push(&mut self, levels: Levels) {
        if self.moments.len() == KEPT {
            self.moments.pop_front();
        }
        self.moments.push_back(levels);
    }
}

/// The first event of a stream.
#[derive(Serialize)]
struct Hello<'a> {
    /// Whether a token lets the page change anything.
    changeable: bool,
    past: &'a Past,
}

/// What is sent to those who listen.
#[derive(Clone, Debug, Default)]
struct Current {
    past: Arc<std::sync::Mutex<Past>>,
    /// The newest event, ready to be sent; empty before the first.
    event: Bytes,
}

/// The side of the task that looks.
#[derive(Debug)]
pub struct Publisher {
    handle: Handle,
    current: watch::Sender<Current>,
    streams: Arc<Semaphore>,
}

/// The side of those who listen.
#[derive(Clone, Debug)]
pub struct Live {
    current: watch::Receiver<Current>,
    streams: Arc<Semaphore>,
}

/// The two sides. When the [`Publisher`] goes, every stream ends.
pub fn channel(handle: Handle) -> (Publisher, Live) {
    let (sender, current) = watch::channel(Current::default());
    let streams = Arc::new(Semaphore::new(STREAMS));
    let live = Live {
        current,
        streams: streams.clone(),
    };
    let publisher = Publisher {
        handle,
        current: sender,
        streams,
    };
    (publisher, live)
}

impl Publisher {
    /// Looks until it is dropped.
    pub async fn run(self) {
        let mut ticks = time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let event = self.look().await.unwrap_or_else(|error| {
                event(
                    "unreachable",
                    &serde_json::json!({"error": error.to_string()}),
                )
            });
            self.current.send_modify(|current| current.event = event);
        }
    }

    /// The event to send. While nobody listens only the past is kept.
    async fn look(&self) -> Result<Bytes, HandleError> {
        if self.streams.available_permits() == STREAMS {
            self.remember(self.handle.levels().await?);
            return Ok(Bytes::new());
        }
        let snapshot = self.handle.snapshot().await?;
        self.remember(Levels::of(&snapshot));
        let waiters = self.handle.waiters().await?;
        let at = snapshot.generated_at;
        let words = snapshot.lanes.iter().map(|lane| words::diagnosis(lane, at));
        Ok(event(
            "look",
            &Look {
                snapshot: &snapshot,
                waiters: &waiters,
                words: words.collect(),
            },
        ))
    }

    fn remember(&self, levels: Levels) {
        let past = self.current.borrow().past.clone();
        past.lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .push(levels);
    }
}

impl Live {
    /// A stream, which ends when the publisher goes or the connection's life is over.
    pub fn stream(&self, changeable: bool) -> Response {
        let Ok(permit) = self.streams.clone().try_acquire_owned() else {
            return unavailable(&"too many pages are open: close one");
        };
        let mut current = self.current.clone();
        // An event from before this page was opened may be old, or empty because nobody listened.
        let hello = {
            let now = current.borrow_and_update();
            let past = now.past.lock();
            let past = past.unwrap_or_else(std::sync::PoisonError::into_inner);
            let hello = Hello {
                changeable,
                past: &past,
            };
            Bytes::from([RETRY.as_bytes(), &event("hello", &hello)].concat())
        };
        let reader = Reader {
            current,
            hello: Some(hello),
            _permit: permit,
        };
        let events = stream::unfold(reader, async |mut reader| {
            let event = reader.next().await?;
            Some((Ok::<_, std::convert::Infallible>(event), reader))
        });
        let headers = [
            (CONTENT_TYPE, "text/event-stream"),
            (CACHE_CONTROL, "no-store"),
        ];
        (headers, Body::from_stream(events)).into_response()
    }
}

struct Reader {
    current: watch::Receiver<Current>,
    hello: Option<Bytes>,
    _permit: OwnedSemaphorePermit,
}

impl Reader {
    async fn next(&mut self) -> Option<Bytes> {
        if let Some(hello) = self.hello.take() {
            return Some(hello);
        }
        loop {
            self.current.changed().await.ok()?;
            let event = self.current.borrow_and_update().event.clone();
            if !event.is_empty() {
                return Some(event);
            }
        }
    }
}

/// One event. JSON has no line breaks of its own, so it is one line of data.
fn event<T: Serialize>(name: &str, data: &T) -> Bytes {
    let data = serde_json::to_string(data)
        .unwrap_or_else(|error| serde_json::json!({"error": error.to_string()}).to_string());
    format!("event: {name}\ndata: {data}\n\n").into()
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Write},
        net::TcpStream,
        time::Instant,
    };

    use super::*;
    use crate::{
        serve::{
            Server,
            tests::{Loop, connect, with_token},
        },
        snapshot::samples,
    };

    fn open(server: &Server) -> BufReader<TcpStream> {
        let mut stream = connect(server);
        stream
            .write_all(b"GET /api/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .unwrap();
        BufReader::new(stream)
    }

    /// The data of the next event with this name.
    fn next(stream: &mut BufReader<TcpStream>, name: &str) -> serde_json::Value {
        let mut lines = stream.lines().map(Result::unwrap);
        lines
            .find(|line| *line == format!("event: {name}"))
            .unwrap();
        let data = lines.next().unwrap();
        serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap()
    }

    /// A16: what is streamed is the snapshot of `/api/lanes`, with its waiters and in words.
    #[test]
    fn a_stream_begins_with_the_past_and_goes_on_with_snapshots() {
        with_token(Loop::Answers, None, |server, _| {
            let mut stream = open(server);
            assert_eq!(next(&mut stream, "hello")["changeable"], false);
            let look = next(&mut stream, "look");
            let snapshot = serde_json::to_value(samples::busy()).unwrap();
            assert_eq!(look["snapshot"], snapshot);
            assert_eq!(
                look["waiters"],
                serde_json::to_value(samples::waiters()).unwrap()
            );
            assert_eq!(look["words"][0], "9 wait on purpose: 6 of 6 slots in use.");
            let hello = next(&mut open(server), "hello");
            let point = &hello["past"]["moments"][0]["lanes"][0];
            assert_eq!(point["queued"], 9, "{hello}");
        });
    }

    /// A stream would go on for ever, and the controller's end must not wait for it.
    #[test]
    fn streams_end_with_the_server() {
        let mut stopping = None;
        with_token(Loop::Answers, None, |server, _| {
            next(&mut open(server), "hello");
            stopping = Some((open(server), Instant::now()));
        });
        let (_stream, begun) = stopping.unwrap();
        let took = begun.elapsed();
        assert!(took < crate::serve::http::GRACE, "{took:?}");
    }

    #[test]
    fn a_stuck_loop_is_told_to_the_page() {
        with_token(Loop::IsStuck, None, |server, _| {
            let why = next(&mut open(server), "unreachable");
            assert!(why["error"].as_str().unwrap().contains("did not answer"));
        });
    }

    /// Pages that nobody closes leave room for others, and give theirs back.
    #[test]
    fn there_is_an_end_to_the_number_of_streams() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            let (handle, _commands) = Handle::new(INTERVAL);
            let (_publisher, live) = channel(handle);
            let streams: Vec<_> = (0..STREAMS).map(|_| live.stream(false)).collect();
            assert!(streams.iter().all(|stream| stream.status().is_success()));
            assert_eq!(live.stream(false).status(), 503);
            drop(streams);
            assert!(live.stream(false).status().is_success());
        });
    }

    /// Whoever does not read gets the newest when it reads again: nothing piles up for it.
    #[test]
    fn a_slow_reader_skips_to_the_newest() {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            let (handle, _commands) = Handle::new(INTERVAL);
            let (publisher, live) = channel(handle);
            let mut reader = Reader {
                current: live.current.clone(),
                hello: None,
                _permit: live.streams.clone().try_acquire_owned().unwrap(),
            };
            for number in 0..100 {
                let newest = event("look", &number);
                publisher
                    .current
                    .send_modify(|current| current.event = newest);
            }
            assert_eq!(reader.next().await, Some(event("look", &99)));
            drop(publisher);
            assert_eq!(reader.next().await, None);
        });
    }

    #[test]
    fn the_past_is_five_minutes() {
        let mut past = Past::default();
        for _ in 0..2 * KEPT {
            past.push(Levels::of(&samples::busy()));
        }
        assert_eq!(past.moments.len(), KEPT);
    }
}
