//! What the first bytes of a message say: where a response ends, and whether a client offers HTTP/2.

use tls_parser::{
    TlsExtension, TlsMessage, TlsMessageHandshake, parse_tls_extensions, parse_tls_plaintext,
};

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

/// Reads the head of an HTTP/1 response. `to_head`: it answers a HEAD request.
pub fn response_end(bytes: &[u8], to_head: bool) -> ResponseEnd {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let Ok(httparse::Status::Complete(head)) = response.parse(bytes) else {
        return ResponseEnd::Unknown;
    };
    let head = head as u64;
    // RFC 9112, 6.3, in its order.
    match response.code {
        // Interim responses are told apart in the kernel; after 101 it is no HTTP any more.
        Some(100..=199) | None => return ResponseEnd::Unknown,
        Some(204 | 304) => return ResponseEnd::After(head),
        Some(_) if to_head => return ResponseEnd::After(head),
        Some(_) => {}
    }
    if header(response.headers, "transfer-encoding")
        .next()
        .is_some()
    {
        return ResponseEnd::Unknown;
    }
    let mut lengths = header(response.headers, "content-length");
    match (lengths.next().and_then(number), lengths.next()) {
        (Some(length), None) => ResponseEnd::After(head.saturating_add(length)),
        _ => ResponseEnd::Unknown,
    }
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
        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            response_end(&bytes, false);
            offers_http2(&bytes);
        }
    }
}
