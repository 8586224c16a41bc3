//! One HTTP/1.1 connection of the stub gateway: read a request, work on it, answer, and again.

use std::io::{self, ErrorKind, Read};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::thread::sleep;
use std::time::Duration;

use nix::libc::linger;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};

use super::Service;
use super::answer::{Afterwards, Answer, Body, BreakOff, LastChunk, Request, ServiceTime, Status};
use super::meter::{InService, Outcome};
use super::wire::Wire;

/// Serves requests until the client closes, an answer closes, or the gateway stops.
pub(super) fn serve(mut wire: impl Wire, peer: SocketAddr, service: &Service) -> io::Result<()> {
    let mut unread = Vec::new();
    let unheard = service.unheard.begin(peer);
    if read_more(&mut wire, &mut unread)? {
        service.unheard.end(unheard);
    }
    while !unread.is_empty() || read_more(&mut wire, &mut unread)? {
        let in_service = service.meter.begin(peer);
        let (request, wished) = read_request(&mut wire, &mut unread, &in_service)?;
        let mut answer = service.answer_to(&request, in_service.crowd());
        if wished == Afterwards::Close {
            answer = answer.closing();
        }
        if !work(&wire, &answer, service)? {
            return Ok(());
        }
        if let Some(how) = answer.break_off {
            return break_off(&wire, how);
        }
        write_answer(&mut wire, &request, &answer, in_service)?;
        if answer.afterwards == Afterwards::Close {
            break;
        }
    }
    wire.end()
}

/// False at the stream's end.
fn read_more(wire: &mut impl Read, unread: &mut Vec<u8>) -> io::Result<bool> {
    let mut piece = [0; 16 * 1024];
    let length = wire.read(&mut piece)?;
    unread.extend_from_slice(&piece[..length]);
    Ok(length > 0)
}

fn read_or_break_off(wire: &mut impl Read, unread: &mut Vec<u8>) -> io::Result<()> {
    match read_more(wire, unread)? {
        true => Ok(()),
        false => Err(ErrorKind::UnexpectedEof.into()),
    }
}

fn malformed(error: httparse::Error) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

/// How the request's body is delimited.
enum Framing {
    Length(usize),
    Chunked,
}

/// Whether the client waits for a word before it sends the body: `Expect: 100-continue`.
#[derive(Clone, Copy, Eq, PartialEq)]
enum BodyComes {
    AtOnce,
    WhenInvited,
}

struct Head {
    length: usize,
    request: Request,
    framing: Framing,
    body_comes: BodyComes,
    wished: Afterwards,
}

/// Takes one whole request off the wire, and what its client wishes for the connection afterwards.
fn read_request(
    wire: &mut impl Wire,
    unread: &mut Vec<u8>,
    in_service: &InService,
) -> io::Result<(Request, Afterwards)> {
    let head = loop {
        if let Some(head) = parse_head(unread)? {
            break head;
        }
        read_or_break_off(wire, unread)?;
    };
    unread.drain(..head.length);
    if head.body_comes == BodyComes::WhenInvited {
        wire.write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
        wire.flush()?;
    }
    let body_bytes = match head.framing {
        Framing::Length(length) => take(wire, unread, length)?,
        Framing::Chunked => take_chunks(wire, unread)?,
    };
    in_service.arrived(head.request.clone(), body_bytes);
    Ok((head.request, head.wished))
}

/// The head, once it is there whole.
fn parse_head(bytes: &[u8]) -> io::Result<Option<Head>> {
    let mut headers = [httparse::EMPTY_HEADER; 64];
    let mut parsed = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(length) = parsed.parse(bytes).map_err(malformed)? else {
        return Ok(None);
    };
    let header = |name: &str| {
        parsed
            .headers
            .iter()
            .find(|header| header.name.eq_ignore_ascii_case(name))
            .map(|header| String::from_utf8_lossy(header.value).into_owned())
    };
    let framing = match (header("transfer-encoding"), header("content-length")) {
        (Some(_), _) => Framing::Chunked,
        (None, Some(bytes)) => Framing::Length(
            bytes
                .parse()
                .map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?,
        ),
        (None, None) => Framing::Length(0),
    };
    Ok(Some(Head {
        length,
        request: Request {
            method: parsed.method.unwrap_or_default().to_owned(),
            path: parsed.path.unwrap_or_default().to_owned(),
            label: header("x-label"),
        },
        framing,
        body_comes: match header("expect") {
            Some(_) => BodyComes::WhenInvited,
            None => BodyComes::AtOnce,
        },
        wished: match header("connection") {
            Some(wish) if wish.eq_ignore_ascii_case("close") => Afterwards::Close,
            _ => Afterwards::KeepAlive,
        },
    }))
}

fn take(wire: &mut impl Wire, unread: &mut Vec<u8>, length: usize) -> io::Result<usize> {
    while unread.len() < length {
        read_or_break_off(wire, unread)?;
    }
    unread.drain(..length);
    Ok(length)
}

fn take_chunks(wire: &mut impl Wire, unread: &mut Vec<u8>) -> io::Result<usize> {
    let mut total = 0;
    loop {
        let parsed = httparse::parse_chunk_size(unread).map_err(|error| {
            io::Error::new(ErrorKind::InvalidData, format!("bad chunk size: {error:?}"))
        })?;
        match parsed {
            httparse::Status::Partial => read_or_break_off(wire, unread)?,
            httparse::Status::Complete((prefix, size)) => {
                let size = usize::try_from(size).map_err(io::Error::other)?;
                take(wire, unread, prefix + size + "\r\n".len())?;
                total += size;
                if size == 0 {
                    return Ok(total);
                }
            }
        }
    }
}

/// Waits as long as the answer takes. False if the client went away or the gateway stops before.
fn work(wire: &impl Wire, answer: &Answer, service: &Service) -> io::Result<bool> {
    let socket = wire.socket();
    if let Some(latch) = &answer.not_before {
        // A client that waits for its answer sends nothing, so anything readable is the stream's end.
        let mut watched = [readable(latch), readable(&socket), readable(&service.stop)];
        poll(&mut watched, PollTimeout::NONE)?;
        if watched[1..].iter().any(|ended| ended.any() != Some(false)) {
            return Ok(false);
        }
    }
    // True if neither the client went away nor the gateway stopped for so long.
    let undisturbed = |timeout: PollTimeout| -> io::Result<bool> {
        Ok(poll(&mut [readable(&socket), readable(&service.stop)], timeout)? == 0)
    };
    let timeout = |time: Duration| PollTimeout::try_from(time).map_err(io::Error::other);
    match &answer.service_time {
        ServiceTime::Lasting(time) => undisturbed(timeout(*time)?),
        ServiceTime::Endless => undisturbed(PollTimeout::NONE),
        ServiceTime::Shared(workshop, work) => {
            let ticket = workshop.enter(*work);
            while let Some(while_longer) = ticket.look() {
                if !undisturbed(timeout(while_longer)?)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
    }
}

/// Sees to it that the end of the connection, which comes with its thread's, is as wished.
fn break_off(wire: &impl Wire, how: BreakOff) -> io::Result<()> {
    if how == BreakOff::Reset {
        // With a linger time of zero close(2) sends a reset (socket(7)).
        let at_once = linger {
            l_onoff: 1,
            l_linger: 0,
        };
        setsockopt(&wire.socket(), sockopt::Linger, &at_once)?;
    }
    Ok(())
}

fn readable(descriptor: &impl AsFd) -> PollFd<'_> {
    PollFd::new(descriptor.as_fd(), PollFlags::POLLIN)
}

fn write_answer(
    wire: &mut impl Wire,
    request: &Request,
    answer: &Answer,
    in_service: InService,
) -> io::Result<()> {
    let outcome = match answer.status {
        Status::Ok | Status::NoContent | Status::NotModified | Status::InternalServerError => {
            Outcome::Served
        }
        Status::TooManyRequests => Outcome::TurnedAway,
    };
    let mut piece = answer.head().into_bytes();
    // A HEAD is answered with the head that a GET would have had (RFC 9110, 9.3.2).
    let body = match request.method.as_str() {
        "HEAD" => &Body::Absent,
        _ => &answer.body,
    };
    match body {
        Body::Absent => {
            in_service.finish(outcome);
            wire.write_all(&piece)?;
        }
        Body::Whole { content, .. } => {
            const LAST_PIECE: usize = 16 * 1024;
            piece.extend_from_slice(content);
            let last = piece.split_off(piece.len().saturating_sub(LAST_PIECE));
            wire.write_all(&piece)?;
            in_service.finish(outcome);
            wire.write_all(&last)?;
        }
        Body::Events { events, gap, end } => {
            const LAST_CHUNK: &str = "0\r\n\r\n";
            wire.write_all(&piece)?;
            for (number, event) in events.iter().enumerate() {
                if number > 0 {
                    sleep(*gap);
                }
                let mut chunk = format!("{:x}\r\n{event}\r\n", event.len());
                if *end == LastChunk::WithTheLastEvent && number + 1 == events.len() {
                    chunk.push_str(LAST_CHUNK);
                    in_service.finish(outcome);
                    wire.write_all(chunk.as_bytes())?;
                    return wire.flush();
                }
                wire.write_all(chunk.as_bytes())?;
                wire.flush()?;
            }
            // Time for the client to take the last event, so that the end is a segment and a TLS record of its own.
            sleep(Duration::from_millis(1));
            in_service.finish(outcome);
            wire.write_all(LAST_CHUNK.as_bytes())?;
        }
    }
    wire.flush()
}
