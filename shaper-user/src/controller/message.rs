//! What the first bytes of a message say: where a response ends, what its gateway asks for, and whether a client offers
//! HTTP/2.

use std::time::{Duration, SystemTime};

use tls_parser::{
    TlsExtension, TlsMessage, TlsMessageHandshake, parse_tls_extensions, parse_tls_plaintext,
};

use crate::policy::AnswerHead;

/// Header fields looked at; gateways send some dozens.
const MAX_HEADERS: usize = 128;

/// Where a response ends, as far as its head tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseEnd {
    /// That many bytes after its first.
    After(u64),
    /// With its last chunk, or with the connection, or it cannot be told.
    Unknown,
}

/// The head of an HTTP/1 response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    pub answer: AnswerHead,
    /// The length of the head itself; `None`: not all of it is there.
    length: Option<u64>,
    /// Where it ends, unless it answers a HEAD request.
    end: ResponseEnd,
}

impl ResponseHead {
    /// Reads it at the time `now`. `None`: it is none.
    pub fn read(bytes: &[u8], now: SystemTime) -> Option<Self> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        let parsed = response.parse(bytes).ok()?;
        let status = response.code?;
        let (length, retry_after, end) = match parsed {
            httparse::Status::Complete(length) => (
                Some(length as u64),
                retry_after(response.headers, now),
                end(length as u64, status, response.headers),
            ),
            httparse::Status::Partial => (None, None, ResponseEnd::Unknown),
        };
        let answer = AnswerHead {
            status,
            retry_after,
        };
        Some(Self {
            answer,
            length,
            end,
        })
    }

    /// Where the response ends. `to_head`: it answers a HEAD request.
    pub fn end(&self, to_head: bool) -> ResponseEnd {
        match self.length {
            Some(length) if to_head && self.answer.status >= 200 => ResponseEnd::After(length),
            _ => self.end,
        }
    }
}

/// The end of a response with a head of `length` bytes, in the order of RFC 9112, 6.3.
fn end(length: u64, status: u16, headers: &[httparse::Header<'_>]) -> ResponseEnd {
    match status {
        // Interim responses are told apart in the kernel; after 101 it is no HTTP any more.
        100..=199 => return ResponseEnd::Unknown,
        204 | 304 => return ResponseEnd::After(length),
        _ => {}
    }
    if header(headers, "transfer-encoding").next().is_some() {
        return ResponseEnd::Unknown;
    }
    let mut lengths = header(headers, "content-length");
    match (lengths.next().and_then(number), lengths.next()) {
        (Some(body), None) => ResponseEnd::After(length.saturating_add(body)),
        _ => ResponseEnd::Unknown,
    }
}

/// `Retry-After`, in seconds or as a date (RFC 9110, 10.2.3). A date is taken by the gateway's own clock if it tells it.
fn retry_after(headers: &[httparse::Header<'_>], now: SystemTime) -> Option<Duration> {
    let value = str::from_utf8(header(headers, "retry-after").next()?)
        .ok()?
        .trim();
    if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) {
        return Some(Duration::from_secs(value.parse().unwrap_or(u64::MAX)));
    }
    let until = httpdate::parse_http_date(value).ok()?;
    let date = header(headers, "date").next();
    let theirs = date
        .and_then(|date| str::from_utf8(date).ok())
        .and_then(|date| httpdate::parse_http_date(date.trim()).ok());
    // What is past is over.
    Some(
        until
            .duration_since(theirs.unwrap_or(now))
            .unwrap_or_default(),
    )
}

fn header<'a>(headers: &'a [httparse::Header<'a>], name: &str) -> impl Iterator<Item = &'a [u8]> {
    headers
        .iter()
        .filter(move |header| header.name.eq_ignore_ascii_case(name))
        .map(|header| header.value)
}

fn number(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.trim().parse().ok()
}

/// Whether a TLS ClientHello offers `h2` (RFC 7301, RFC 9113 3.2), or the client opens HTTP/2 at once (RFC 9113, 3.4).
/// `None`: it is neither, or not all of it is there.
pub fn offers_http2(bytes: &[u8]) -> Option<bool> {
    if bytes.starts_with(b"PRI * HTTP/2") {
        return Some(true);
    }
    let (_, record) = parse_tls_plaintext(bytes).ok()?;
    let hello = record.msg.iter().find_map(|message| match message {
        TlsMessage::Handshake(TlsMessageHandshake::ClientHello(hello)) => Some(hello),
        _ => None,
    })?;
    let Some(extensions) = hello.ext else {
        return Some(false);
    };
    let (_, extensions) = parse_tls_extensions(extensions).ok()?;
    let offered = |extension: &TlsExtension<'_>| match extension {
        TlsExtension::ALPN(protocols) => protocols.contains(&b"h2".as_slice()),
        _ => false,
    };
    Some(extensions.iter().any(offered))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Wed, 21 Oct 2015 07:28:00 GMT.
    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_445_412_480)
    }

    fn response_end(bytes: &[u8], to_head: bool) -> ResponseEnd {
        let head = ResponseHead::read(bytes, now());
        head.map_or(ResponseEnd::Unknown, |head| head.end(to_head))
    }

    fn retry_after(lines: &str) -> Option<Duration> {
        let head = format!("HTTP/1.1 429 Too Many Requests\r\n{lines}\r\n");
        let answer = ResponseHead::read(head.as_bytes(), now()).unwrap().answer;
        assert_eq!(answer.status, 429);
        answer.retry_after
    }

    /// C6: seconds, and each of the three forms of a date.
    #[test]
    fn retry_after_is_read_in_all_its_forms() {
        for (lines, seconds) in [
            ("Retry-After: 7\r\n", Some(7)),
            ("retry-after:  120 \r\n", Some(120)),
            ("Retry-After: 99999999999999999999\r\n", Some(u64::MAX)),
            ("Retry-After: Wed, 21 Oct 2015 07:28:07 GMT\r\n", Some(7)),
            (
                "Retry-After: Wednesday, 21-Oct-15 07:28:07 GMT\r\n",
                Some(7),
            ),
            ("Retry-After: Wed Oct 21 07:28:07 2015\r\n", Some(7)),
            ("Retry-After: Wed, 21 Oct 2015 07:27:00 GMT\r\n", Some(0)),
            ("Retry-After: -3\r\n", None),
            ("Retry-After: soon\r\n", None),
            ("Retry-After:\r\n", None),
            ("", None),
        ] {
            assert_eq!(
                retry_after(lines),
                seconds.map(Duration::from_secs),
                "{lines:?}"
            );
        }
    }

    /// C6: a gateway whose clock is wrong means what it says by its own clock.
    #[test]
    fn a_date_is_taken_by_the_clock_of_its_sender() {
        let lines =
            "Date: Thu, 01 Jan 1970 00:00:00 GMT\r\nRetry-After: Thu, 01 Jan 1970 00:00:07 GMT\r\n";
        assert_eq!(retry_after(lines), Some(Duration::from_secs(7)));
    }

    /// A18: the status counts even if the head is longer than what was seen of it.
    #[test]
    fn the_status_of_an_unfinished_head_is_read() {
        let head =
            ResponseHead::read(b"HTTP/1.1 503 Service Unavailable\r\nRetry-Af", now()).unwrap();
        assert_eq!((head.answer.status, head.answer.retry_after), (503, None));
        assert_eq!(head.end(true), ResponseEnd::Unknown);
    }

    #[test]
    fn a_length_ends_a_response_behind_its_head() {
        let bytes = b"HTTP/1.1 200 OK\r\nContent-Type: x\r\ncontent-length: 12\r\n\r\nhello";
        assert_eq!(response_end(bytes, false), ResponseEnd::After(56 + 12));
        assert_eq!(response_end(bytes, true), ResponseEnd::After(56));
    }

    #[test]
    fn what_has_no_length_is_unknown() {
        for head in [
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
            "HTTP/1.1 200 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -3\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Le",
            "HTTP/1.1 200",
            "nonsense",
            "",
        ] {
            assert_eq!(
                response_end(head.as_bytes(), false),
                ResponseEnd::Unknown,
                "{head:?}"
            );
        }
    }

    #[test]
    fn responses_without_a_body_end_with_their_head() {
        for head in [
            "HTTP/1.1 204 No Content\r\n\r\n",
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
        ] {
            assert_eq!(
                response_end(head.as_bytes(), false),
                ResponseEnd::After(head.len() as u64)
            );
        }
    }

    #[test]
    fn the_preface_of_http2_offers_it() {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        assert_eq!(offers_http2(preface), Some(true));
        assert_eq!(offers_http2(b"PRI * HTTP/1.1\r\n\r\n"), None);
    }

    proptest! {
        /// B10: the kernel looks at heads with code of its own; where it finds an end, it is the one found here.
        #[test]
        fn the_kernel_finds_no_other_end(
            status in prop::sample::select(vec!["200 OK", "204 No Content", "206 x", "301 y", "304 z"]),
            lines in prop::collection::vec(
                prop_oneof![
                    "[Cc]ontent-[Ll]ength:[ ]{0,2}[0-9]{0,5}[ ]?",
                    "(x-)?[Tt]ransfer-[Ee]ncoding: (chunked|gzip)",
                    "[A-Za-z-]{1,20}: [ -~]{0,40}",
                ],
                0..8,
            ),
            cut in 0_usize..60,
            to_head: bool,
        ) {
            let whole = format!("HTTP/1.1 {status}\r\n{}\r\n", lines.iter().map(|line| format!("{line}\r\n")).collect::<String>());
            let bytes = &whole.as_bytes()[..whole.len().saturating_sub(cut.saturating_sub(50))];
            if let Some(end) = shaper_common::response_end(bytes, to_head) {
                prop_assert_eq!(response_end(bytes, to_head), ResponseEnd::After(end.into()));
            }
        }

        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            response_end(&bytes, false);
            response_end(&[b"HTTP/1.1 429 \r\nRetry-After: ", &*bytes, b"\r\n\r\n"].concat(), true);
            offers_http2(&bytes);
        }
    }
}
