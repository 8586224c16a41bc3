//! What the gateway answers, and when.

use std::sync::Arc;
use std::time::Duration;

use super::latch::Latch;
use super::workshop::Workshop;

/// One request as the gateway understood it, for a closure that chooses the answer.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Request {
    pub method: String,
    pub path: String,
    /// The client's `X-Label` header.
    pub label: Option<String>,
}

/// The answer to one request.
#[derive(Clone, Debug)]
pub struct Answer {
    pub(super) not_before: Option<Latch>,
    pub(super) service_time: ServiceTime,
    pub(super) status: Status,
    pub(super) headers: String,
    pub(super) body: Body,
    pub(super) afterwards: Afterwards,
    /// Instead of an answer.
    pub(super) break_off: Option<BreakOff>,
}

/// How long the gateway works on a request before the first byte of its answer.
#[derive(Clone, Debug)]
pub(super) enum ServiceTime {
    Lasting(Duration),
    /// This much work, and whatever it waits for.
    Shared(Workshop, Duration),
    /// No answer at all.
    Endless,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Status {
    Ok,
    NoContent,
    NotModified,
    TooManyRequests,
    InternalServerError,
}

#[derive(Clone, Debug)]
pub(super) enum Body {
    /// With a `Content-Length`.
    Whole {
        media_type: &'static str,
        content: Arc<[u8]>,
    },
    /// None: the status forbids it.
    Absent,
    /// Server-sent events as a chunked stream, one chunk an event, `gap` before each but the first.
    Events {
        events: Arc<[String]>,
        gap: Duration,
        end: LastChunk,
    },
}

/// How a chunked stream ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum LastChunk {
    /// The last chunk is a write, a segment and a TLS record of its own.
    ByItself,
    /// The last chunk comes in one write with the last event.
    WithTheLastEvent,
}

impl Body {
    fn filler(bytes: usize) -> Self {
        Self::Whole {
            media_type: "text/plain",
            content: vec![b'.'; bytes].into(),
        }
    }
}

/// How a gateway ends a connection while it owes an answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BreakOff {
    /// With RST.
    Reset,
    /// With FIN.
    Close,
}

/// What becomes of the connection after the answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Afterwards {
    KeepAlive,
    Close,
}

impl Answer {
    /// 200 with a small body and a kept-alive connection, without delay.
    pub fn at_once() -> Self {
        Self::after(Duration::ZERO)
    }

    /// 204, which has no body.
    pub fn no_content() -> Self {
        Self {
            status: Status::NoContent,
            body: Body::Absent,
            ..Self::at_once()
        }
    }

    /// 304, which has no body, with the length that the body would have had.
    pub fn not_modified() -> Self {
        Self {
            status: Status::NotModified,
            headers: "Content-Length: 64\r\n".to_owned(),
            body: Body::Absent,
            ..Self::at_once()
        }
    }

    /// As [`Answer::at_once`], after a service time.
    pub fn after(service_time: Duration) -> Self {
        Self::with(ServiceTime::Lasting(service_time))
    }

    /// As [`Answer::at_once`], once the latch is open.
    pub fn once_open(latch: &Latch) -> Self {
        Self::at_once().not_before(latch)
    }

    /// As [`Answer::at_once`], once the workshop has done this much work on it.
    pub fn made_in(workshop: &Workshop, work: Duration) -> Self {
        Self::with(ServiceTime::Shared(workshop.clone(), work))
    }

    /// Nothing, ever: the client gives up or the gateway stops.
    pub fn never() -> Self {
        Self::with(ServiceTime::Endless)
    }

    /// 429 with a `Retry-After` of whole seconds.
    pub fn too_many_requests(retry_after: Duration) -> Self {
        Self {
            status: Status::TooManyRequests,
            headers: format!("Retry-After: {}\r\n", retry_after.as_secs()),
            ..Self::at_once()
        }
    }

    /// 429 without a word about when.
    pub fn throttled() -> Self {
        Self {
            status: Status::TooManyRequests,
            ..Self::at_once()
        }
    }

    /// 500.
    pub fn internal_server_error() -> Self {
        Self {
            status: Status::InternalServerError,
            ..Self::at_once()
        }
    }

    /// No answer but the connection's end.
    pub fn broken_off(how: BreakOff) -> Self {
        Self {
            break_off: Some(how),
            ..Self::at_once()
        }
    }

    /// The service time begins when the latch is open, or at once if it is open already.
    #[must_use]
    pub fn not_before(self, latch: &Latch) -> Self {
        Self {
            not_before: Some(latch.clone()),
            ..self
        }
    }

    /// A body of `bytes` with a `Content-Length`.
    #[must_use]
    pub fn sized(self, bytes: usize) -> Self {
        Self {
            body: Body::filler(bytes),
            ..self
        }
    }

    /// A JSON document with a `Content-Length`.
    #[must_use]
    pub fn json(self, document: &serde_json::Value) -> Self {
        Self {
            body: Body::Whole {
                media_type: "application/json",
                content: document.to_string().into_bytes().into(),
            },
            ..self
        }
    }

    /// A chunked stream of `count` server-sent events, `gap` apart.
    #[must_use]
    pub fn events(self, count: usize, gap: Duration) -> Self {
        let event = |number| format!("data: {{\"event\": {number}}}\n\n");
        self.event_stream((0..count).map(event), gap)
    }

    /// A chunked stream of these server-sent events, each with the empty line at its end, `gap` apart.
    #[must_use]
    pub fn event_stream(self, events: impl IntoIterator<Item = String>, gap: Duration) -> Self {
        Self {
            body: Body::Events {
                events: events.into_iter().collect(),
                gap,
                end: LastChunk::ByItself,
            },
            ..self
        }
    }

    /// Makes the last chunk of a stream of events no write of its own, but one with the last event.
    #[must_use]
    pub fn joined_with_its_end(mut self) -> Self {
        if let Body::Events { end, .. } = &mut self.body {
            *end = LastChunk::WithTheLastEvent;
        }
        self
    }

    /// `Connection: close`.
    #[must_use]
    pub fn closing(self) -> Self {
        Self {
            afterwards: Afterwards::Close,
            ..self
        }
    }

    fn with(service_time: ServiceTime) -> Self {
        const SMALL: usize = 64;
        Self {
            not_before: None,
            service_time,
            status: Status::Ok,
            headers: String::new(),
            body: Body::filler(SMALL),
            afterwards: Afterwards::KeepAlive,
            break_off: None,
        }
    }

    /// The status line and headers.
    pub(super) fn head(&self) -> String {
        let status = match self.status {
            Status::Ok => "200 OK",
            Status::NoContent => "204 No Content",
            Status::NotModified => "304 Not Modified",
            Status::TooManyRequests => "429 Too Many Requests",
            Status::InternalServerError => "500 Internal Server Error",
        };
        let connection = match self.afterwards {
            Afterwards::KeepAlive => "keep-alive",
            Afterwards::Close => "close",
        };
        let framing = match &self.body {
            Body::Whole {
                media_type,
                content,
            } => {
                format!(
                    "Content-Type: {media_type}\r\nContent-Length: {}\r\n",
                    content.len()
                )
            }
            Body::Absent => String::new(),
            Body::Events { .. } => {
                "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n".to_owned()
            }
        };
        format!(
            "HTTP/1.1 {status}\r\nConnection: {connection}\r\n{framing}{}\r\n",
            self.headers
        )
    }
}
