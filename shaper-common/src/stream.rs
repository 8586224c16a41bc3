//! What the bytes of a connection are, as far as a gate must know: handshake or request, and the end of a stream.

/// Length of a TLS record's header (RFC 8446, 5.1): type, legacy version (2), length (2).
pub const RECORD_HEADER: usize = 5;

/// Records looked at in one segment. A client's flights have at most four: a certificate, a key exchange,
/// ChangeCipherSpec and Finished.
const MAX_RECORDS: u32 = 6;

const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;

/// What a client's payload is to a gate that lets handshakes pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientBytes {
    /// Only TLS records of types 20 to 22: ChangeCipherSpec, alerts, handshake. The last one continues for that many
    /// bytes beyond the payload.
    Handshake { continues: u32 },
    /// Anything else: application data, or not TLS at all.
    Request,
}

impl ClientBytes {
    /// Walks the records at the start of a payload of `len` bytes. `header` returns the record header at an offset
    /// into the payload, `None` if that cannot be read.
    #[inline(always)]
    pub fn of(header: impl Fn(u32) -> Option<[u8; RECORD_HEADER]>, len: u32) -> Self {
        let mut at = 0;
        for _ in 0..MAX_RECORDS {
            // A header that is cut off says too little: TLS libraries write whole ones.
            if at + RECORD_HEADER as u32 > len {
                return Self::Request;
            }
            let Some([kind, major, _, high, low]) = header(at) else {
                return Self::Request;
            };
            if !(CHANGE_CIPHER_SPEC..=HANDSHAKE).contains(&kind) || major != 3 {
                return Self::Request;
            }
            at += RECORD_HEADER as u32 + (((high as u32) << 8) | low as u32);
            if at >= len {
                return Self::Handshake {
                    continues: at - len,
                };
            }
        }
        Self::Request
    }
}

/// Whether a payload that begins with these bytes begins a request of HTTP/1: with a method (RFC 9110, 9.1: by convention
/// of capital letters) and the blank behind it, or with an empty line before them (RFC 9112, 2.2).
#[inline(always)]
pub fn begins_with_method(start: &[u8; RECORD_HEADER]) -> bool {
    let [a, b, c, d, e] = *start;
    if a == b'\r' && b == b'\n' {
        return c.is_ascii_uppercase() && d.is_ascii_uppercase() && e.is_ascii_uppercase();
    }
    let in_method = |byte: u8| byte.is_ascii_uppercase() || byte == b'-';
    if !(in_method(a) && in_method(b) && in_method(c)) {
        return false;
    }
    d == b' ' || in_method(d) && (e == b' ' || in_method(e))
}

/// Whether a payload that begins with these bytes may begin a request behind one of HTTP/1: as such a one, or with a TLS
/// record, as behind CONNECT. Of the rest of a request this is seldom true.
#[inline(always)]
pub fn may_begin_request(start: &[u8; RECORD_HEADER]) -> bool {
    is_record(start) || begins_with_method(start)
}

/// Whether these bytes are the header of a TLS record.
#[inline(always)]
pub fn is_record(start: &[u8; RECORD_HEADER]) -> bool {
    start[1] == 3 && (CHANGE_CIPHER_SPEC..=APPLICATION_DATA).contains(&start[0])
}

/// Whether payload of `len` bytes is a TLS alert, such as the farewell of a side that closes.
#[inline(always)]
pub fn is_alert(start: &[u8; RECORD_HEADER], len: u32) -> bool {
    is_record(start) && (start[0] == ALERT || start[0] == APPLICATION_DATA && len == SEALED_ALERT)
}

/// Frame types that answer a request of HTTP/2 (RFC 9113, 6): DATA, HEADERS, RST_STREAM, PUSH_PROMISE, CONTINUATION.
const HTTP2_ANSWERS: [u8; 5] = [0, 1, 3, 5, 9];

/// The most that a peer says of its own accord at once: settings, their acknowledgement and a window update, each in a
/// record, come to 93 bytes.
const LONGEST_HOUSEKEEPING: u32 = 128;

/// Whether payload of `len` bytes from an HTTP/2 peer may be settings, pings, window updates and other frames that answer
/// nothing. In the clear the first frame tells; in a record only the length does.
#[inline(always)]
pub fn http2_housekeeping(start: &[u8; RECORD_HEADER], len: u32) -> bool {
    let answers = HTTP2_ANSWERS.contains(&start[3]);
    len <= LONGEST_HOUSEKEEPING && (is_record(start) || !answers)
}

/// What a gateway's payload is to a connection that waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerBytes {
    /// The answer, or the beginning of it.
    Answer,
    /// Nothing but `HTTP/1.1 100 Continue`: the answer is yet to come.
    Continue,
    /// Another interim response (RFC 9110, 15.2), or a TLS handshake message or alert, perhaps with an answer behind it.
    Interim,
    /// TLS 1.3 session tickets (RFC 8446, 4.6.1), which servers send right after the client's Finished, and so often
    /// after the first request: encrypted like the answer, but several of one length.
    Tickets,
    /// One short record: a session ticket, or an answer of a few words.
    Ticket,
}

/// The longest record that may be a session ticket. Without client certificates they have 100 to 300 bytes; the head of
/// an answer alone is longer.
const TICKET_MAX: u32 = 512;

/// Session tickets looked at in one segment. Servers send one to four.
const MAX_TICKETS: u32 = 4;

/// Bytes at the start of a payload that [`ServerBytes::of`] looks at.
pub const START: usize = 12;

/// The status with which a payload begins that begins like a response of HTTP/1 (RFC 9112, 4), as its three digits.
#[inline(always)]
pub fn http1_status(start: &[u8; START]) -> Option<[u8; 3]> {
    let [h, t, t2, p, slash, one, dot, _, blank, a, b, c] = *start;
    if [h, t, t2, p, slash, one, dot, blank] == *b"HTTP/1. " {
        Some([a, b, c])
    } else {
        None
    }
}

/// Payload that is nothing but `HTTP/1.1 100 Continue\r\n\r\n`.
const CONTINUE: u32 = 25;

/// The same in one record: ChaCha20-Poly1305 under TLS 1.2, TLS 1.3, AES-GCM under TLS 1.2. See [`SEALED`].
const SEALED_CONTINUE: [u32; 3] = [5 + CONTINUE + 16, 5 + CONTINUE + 17, 5 + CONTINUE + 24];

/// Payload that is nothing but an alert of two bytes under TLS 1.3, which hides its type (RFC 8446, 5.2).
const SEALED_ALERT: u32 = 5 + 2 + 17;

impl ServerBytes {
    /// Looks at a payload of `len` bytes that begins with `start`, padded with zeros if it is shorter. `header` returns
    /// the five bytes at an offset into the payload.
    #[inline(always)]
    pub fn of(
        start: &[u8; START],
        len: u32,
        header: impl Fn(u32) -> Option<[u8; RECORD_HEADER]>,
    ) -> Self {
        let [kind, major, _, high, low, ..] = *start;
        if major == 3 && (CHANGE_CIPHER_SPEC..=HANDSHAKE).contains(&kind) {
            return Self::Interim;
        }
        if major == 3 && kind == APPLICATION_DATA {
            if len == SEALED_CONTINUE[0]
                || len == SEALED_CONTINUE[1]
                || len == SEALED_CONTINUE[2]
                || len == SEALED_ALERT
            {
                return Self::Interim;
            }
            let first = [kind, major, start[2], high, low];
            let length = ((high as u32) << 8) | low as u32;
            let record = RECORD_HEADER as u32 + length;
            if length > TICKET_MAX {
                return Self::Answer;
            }
            if record == len {
                return Self::Ticket;
            }
            let mut at = record;
            for _ in 1..MAX_TICKETS {
                if header(at) != Some(first) {
                    return Self::Answer;
                }
                at += record;
                if at == len {
                    return Self::Tickets;
                }
            }
            return Self::Answer;
        }
        // "HTTP/1.1 1xx" is an interim response's status line, but for 101, after which it is no HTTP any more.
        let hundreds = start[0] == b'H' && start[5] == b'1' && start[8] == b' ' && start[9] == b'1';
        if !hundreds || (start[10] == b'0' && start[11] == b'1') {
            Self::Answer
        } else if len == CONTINUE && start[10] == b'0' && start[11] == b'0' {
            Self::Continue
        } else {
            Self::Interim
        }
    }
}

/// Bytes at the end of a payload that [`ChunkedEnd::matches`] looks at.
pub const TAIL: usize = RECORD_HEADER + LONGEST_SEALED;

/// `0\r\n\r\n`, the last chunk of a chunked body without trailers (RFC 9112, 7.1).
const LAST_CHUNK: [u8; 5] = *b"0\r\n\r\n";

/// What sealing adds to the five bytes of the last chunk, per protocol and cipher:
/// TLS 1.3: inner type and tag (RFC 8446, 5.2). TLS 1.2: tag with ChaCha20-Poly1305 (RFC 7905), explicit nonce and tag
/// with AES-GCM (RFC 5288).
const SEALED: [usize; 3] = [
    LAST_CHUNK.len() + 1 + 16,
    LAST_CHUNK.len() + 16,
    LONGEST_SEALED,
];
const LONGEST_SEALED: usize = LAST_CHUNK.len() + 8 + 16;

const APPLICATION_DATA: u8 = 23;

/// Whether a payload from the gateway looks like the end of a chunked stream.
#[derive(Clone, Copy, Debug)]
pub struct ChunkedEnd;

impl ChunkedEnd {
    /// `tail` is the end of the payload, its bytes at the end of the array if there are fewer than [`TAIL`].
    #[inline(always)]
    pub fn matches(tail: &[u8; TAIL]) -> bool {
        if tail[TAIL - 5] == LAST_CHUNK[0]
            && tail[TAIL - 4] == LAST_CHUNK[1]
            && tail[TAIL - 3] == LAST_CHUNK[2]
            && tail[TAIL - 2] == LAST_CHUNK[3]
            && tail[TAIL - 1] == LAST_CHUNK[4]
        {
            return true;
        }
        Self::sealed(tail, SEALED[0])
            || Self::sealed(tail, SEALED[1])
            || Self::sealed(tail, SEALED[2])
    }

    /// The payload ends in an application-data record of this length.
    #[inline(always)]
    fn sealed(tail: &[u8; TAIL], length: usize) -> bool {
        let at = TAIL - RECORD_HEADER - length;
        tail[at] == APPLICATION_DATA
            && tail[at + 1] == 3
            && tail[at + 3] == 0
            && tail[at + 4] == length as u8
    }
}

/// Whether sequence number `a` comes after `b` (RFC 9293, 3.4: modulo 2³²).
#[inline(always)]
pub const fn seq_after(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn client(payload: &[u8]) -> ClientBytes {
        let header = |at: u32| payload.get(at as usize..at as usize + 5)?.try_into().ok();
        ClientBytes::of(header, payload.len() as u32)
    }

    fn record(kind: u8, len: usize) -> Vec<u8> {
        let mut record = vec![kind, 3, 3, (len >> 8) as u8, len as u8];
        record.resize(5 + len, 0xaa);
        record
    }

    fn tail(payload: &[u8]) -> [u8; TAIL] {
        let mut tail = [0; TAIL];
        let n = payload.len().min(TAIL);
        tail[TAIL - n..].copy_from_slice(&payload[payload.len() - n..]);
        tail
    }

    #[test]
    fn a_client_hello_is_a_handshake_and_so_is_its_continuation_counted() {
        assert_eq!(
            client(&record(22, 512)),
            ClientBytes::Handshake { continues: 0 }
        );
        assert_eq!(
            client(&record(22, 1800)[..1448]),
            ClientBytes::Handshake { continues: 357 }
        );
    }

    #[test]
    fn a_tls12_flight_of_key_exchange_and_finished_is_a_handshake() {
        let flight = [record(22, 37), record(20, 1), record(22, 40)].concat();
        assert_eq!(client(&flight), ClientBytes::Handshake { continues: 0 });
    }

    /// Node sends ChangeCipherSpec, Finished and the request in one segment: the whole is a request.
    #[test]
    fn a_request_behind_a_finished_is_a_request() {
        let flight = [record(20, 1), record(23, 53), record(23, 700)].concat();
        assert_eq!(client(&flight), ClientBytes::Request);
    }

    #[test]
    fn an_alert_is_no_request() {
        assert_eq!(
            client(&record(21, 2)),
            ClientBytes::Handshake { continues: 0 }
        );
    }

    #[test]
    fn plain_text_is_a_request() {
        assert_eq!(
            client(b"POST /v1/messages HTTP/1.1\r\n"),
            ClientBytes::Request
        );
        assert_eq!(
            client(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
            ClientBytes::Request
        );
        assert_eq!(client(&[22, 3]), ClientBytes::Request);
        assert_eq!(client(&[]), ClientBytes::Request);
    }

    #[test]
    fn the_rest_of_a_request_does_not_begin_like_one() {
        for start in [b"POST ", b"GET /", b"DELET", b"M-SEA", b"PUT h", b"\r\nPOS"] {
            assert!(may_begin_request(start), "{start:?}");
        }
        for kind in [20, 22, 23] {
            assert!(may_begin_request(&[kind, 3, 3, 2, 0]));
        }
        for start in [
            b"GETs ",
            b"ok\"}]",
            b"\"role",
            b"Post ",
            b"A B C",
            b"\r\n400",
            b"\r\n---",
            b"\r\n1,2",
            &[23, 9, 3, 2, 0],
            &[0; 5],
        ] {
            assert!(!may_begin_request(start), "{start:?}");
        }
    }

    #[test]
    fn the_housekeeping_of_http2_is_told_from_answers() {
        let frame = |kind| [0, 0, 8, kind, 0];
        // SETTINGS, PING, GOAWAY, WINDOW_UPDATE, ALTSVC.
        for kind in [4, 6, 7, 8, 10] {
            assert!(http2_housekeeping(&frame(kind), 17));
            assert!(!http2_housekeeping(&frame(kind), 200), "more behind it");
        }
        for kind in HTTP2_ANSWERS {
            assert!(!http2_housekeeping(&frame(kind), 17));
        }
        let sealed = [APPLICATION_DATA, 3, 3, 0, 34];
        assert!(http2_housekeeping(&sealed, 39));
        assert!(!http2_housekeeping(&sealed, 140));
    }

    #[test]
    fn a_farewell_is_an_alert_sealed_or_not() {
        assert!(is_alert(&[21, 3, 3, 0, 2], 7));
        assert!(is_alert(&[23, 3, 3, 0, 19], 24));
        assert!(!is_alert(&[23, 3, 3, 0, 20], 25));
        assert!(!is_alert(b"POST ", 24));
    }

    #[test]
    fn the_last_chunk_is_seen_in_the_clear_and_under_each_seal() {
        assert!(ChunkedEnd::matches(&tail(b"5\r\nhello\r\n0\r\n\r\n")));
        assert!(ChunkedEnd::matches(&tail(b"0\r\n\r\n")));
        for length in [22, 21, 29] {
            let payload = [record(23, 300), record(23, length)].concat();
            assert!(ChunkedEnd::matches(&tail(&payload)), "{length}");
            assert!(ChunkedEnd::matches(&tail(&record(23, length))), "{length}");
        }
        for length in [20, 23, 28, 30, 300] {
            assert!(!ChunkedEnd::matches(&tail(&record(23, length))), "{length}");
        }
        assert!(!ChunkedEnd::matches(&tail(b"data: x\n\n")));
    }

    fn server(payload: &[u8]) -> ServerBytes {
        let mut start = [0; START];
        let n = payload.len().min(START);
        start[..n].copy_from_slice(&payload[..n]);
        let header = |at: u32| payload.get(at as usize..at as usize + 5)?.try_into().ok();
        ServerBytes::of(&start, payload.len() as u32, header)
    }

    #[test]
    fn an_answer_is_told_from_what_comes_before_it() {
        assert_eq!(server(b"HTTP/1.1 200 OK\r\n"), ServerBytes::Answer);
        assert_eq!(
            server(b"HTTP/1.1 100 Continue\r\n\r\n"),
            ServerBytes::Continue
        );
        assert_eq!(
            server(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"),
            ServerBytes::Interim
        );
        assert_eq!(
            server(b"HTTP/1.1 103 Early Hints\r\n\r\n"),
            ServerBytes::Interim
        );
        assert_eq!(server(&record(23, 700)), ServerBytes::Answer);
        assert_eq!(
            server(b"HTTP/1.1 101 Switching Protocols\r\n\r\n"),
            ServerBytes::Answer
        );
        // TLS 1.2: the server's Finished, when the client did not wait for it.
        assert_eq!(
            server(&[record(20, 1), record(22, 40)].concat()),
            ServerBytes::Interim
        );
        for length in [41, 42, 49] {
            assert_eq!(
                server(&record(23, length)),
                ServerBytes::Interim,
                "100 Continue"
            );
        }
        assert_eq!(server(&record(21, 2)), ServerBytes::Interim, "an alert");
        assert_eq!(
            server(&record(23, 19)),
            ServerBytes::Interim,
            "a sealed alert"
        );
        assert_eq!(server(b"x"), ServerBytes::Answer);
    }

    #[test]
    fn a_status_is_that_of_http() {
        assert_eq!(http1_status(b"HTTP/1.1 429"), Some(*b"429"));
        assert_eq!(http1_status(b"HTTP/2.0 429"), None);
        assert_eq!(http1_status(b"250 mail.exa"), None);
    }

    #[test]
    fn session_tickets_are_records_of_one_length() {
        assert_eq!(
            server(&[record(23, 239), record(23, 239)].concat()),
            ServerBytes::Tickets
        );
        assert_eq!(server(&record(23, 239).repeat(4)), ServerBytes::Tickets);
        assert_eq!(server(&record(23, 239).repeat(5)), ServerBytes::Answer);
        assert_eq!(server(&record(23, 239)), ServerBytes::Ticket);
        assert_eq!(
            server(&[record(23, 239), record(23, 700)].concat()),
            ServerBytes::Answer
        );
    }

    #[test]
    fn sequence_numbers_wrap() {
        assert!(seq_after(5, u32::MAX - 5));
        assert!(!seq_after(u32::MAX - 5, 5));
        assert!(!seq_after(7, 7));
    }

    proptest! {
        #[test]
        fn random_bytes_are_handshake_or_request_and_nothing_else(
            payload in prop::collection::vec(any::<u8>(), 0..4000)
        ) {
            if let ClientBytes::Handshake { .. } = client(&payload) {
                prop_assert!((20..=22).contains(&payload[0]) && payload[1] == 3);
            }
            ChunkedEnd::matches(&tail(&payload));
            server(&payload);
        }

        #[test]
        fn random_records_are_walked_to_the_end(kinds in prop::collection::vec((20u8..=23, 0usize..600), 1..6)) {
            let payload: Vec<u8> = kinds.iter().flat_map(|(kind, len)| record(*kind, *len)).collect();
            let expected = if kinds.iter().all(|(kind, _)| *kind != 23) {
                ClientBytes::Handshake { continues: 0 }
            } else {
                ClientBytes::Request
            };
            prop_assert_eq!(client(&payload), expected);
        }
    }
}
