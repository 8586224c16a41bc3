//! Where an HTTP/1 response ends, by its head (RFC 9112, 6.3).
//!
//! Eight bytes at a time, because the kernel does this for every answer: the scan goes from line to line and looks at
//! names only where one begins.

/// Bytes of a head that are looked at. Those of gateways with dozens of fields have about as many.
pub const HEAD_CAPACITY: usize = 2048;

/// Steps that a head of [`HEAD_CAPACITY`] bytes takes: one for every eight bytes, and one more for every line, of which
/// there is room for one in 32 bytes.
pub const HEAD_STEPS: u32 = (HEAD_CAPACITY / 8 + HEAD_CAPACITY / 32) as u32;

/// Responses of this many bytes or more have no end that could be told: sequence numbers tell half of 2³² apart.
pub const LONGEST_RESPONSE: u64 = 1 << 30;

/// What has been read of a response's head.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HeadScan {
    /// Bytes that have been looked at.
    at: u32,
    /// Length of the head with its empty line; 0: that has not come yet.
    head: u32,
    /// Where the value of the last `Content-Length` begins.
    length_at: u32,
    /// Lines with a `Content-Length`.
    lengths: u32,
    /// Lines with a `Transfer-Encoding`.
    encodings: u32,
}

impl HeadScan {
    /// Reads on in a payload of `len` bytes. `word` returns the eight bytes at an offset, the first one lowest; zeros for
    /// those behind the payload. `false` when there is no more to read.
    #[inline(always)]
    pub fn step(&mut self, len: u32, word: impl Fn(u32) -> u64) -> bool {
        if self.at >= len {
            return false;
        }
        let Some(behind) = behind_newline(word(self.at)) else {
            self.at += 8;
            return true;
        };
        self.at += behind;
        let first = word(self.at);
        if first as u16 == u16::from_le_bytes(*b"\r\n") {
            self.head = self.at + 2;
            return false;
        }
        let (first, second) = (lowercase(first), lowercase(word(self.at + 8)));
        // The second word's last byte belongs to the value already.
        if first == u64::from_le_bytes(*b"content-")
            && second << 8 == u64::from_le_bytes(*b"\0length:")
        {
            self.lengths += 1;
            self.length_at = self.at + b"content-length:".len() as u32;
        }
        if first == u64::from_le_bytes(*b"transfer") && second == u64::from_le_bytes(*b"-encodin") {
            self.encodings += 1;
        }
        true
    }

    /// How many bytes behind its first one the response ends; `None`: with its last chunk, or with the connection, or it
    /// cannot be told. `status`: of the response; `to_head`: it answers a HEAD request; `word`: as before.
    #[inline(always)]
    pub fn end(&self, status: u16, to_head: bool, word: impl Fn(u32) -> u64) -> Option<u32> {
        // Interim responses are told apart elsewhere; after 101 it is no HTTP any more.
        if self.head == 0 || status < 200 {
            return None;
        }
        if to_head || status == 204 || status == 304 {
            return Some(self.head);
        }
        if self.encodings != 0 || self.lengths != 1 {
            return None;
        }
        let body = number(word(self.length_at), word(self.length_at + 8));
        if body >= LONGEST_RESPONSE {
            return None;
        }
        Some(self.head + body as u32)
    }
}

/// How many bytes behind its first one a response ends that begins with `payload`: the whole scan at once.
pub fn response_end(payload: &[u8], to_head: bool) -> Option<u32> {
    let seen = payload.get(..HEAD_CAPACITY).unwrap_or(payload);
    let word = |at: u32| {
        let bytes = seen.get(at as usize..).unwrap_or_default();
        let mut word = [0; 8];
        for (to, from) in word.iter_mut().zip(bytes) {
            *to = *from;
        }
        u64::from_le_bytes(word)
    };
    let mut scan = HeadScan::default();
    for _ in 0..HEAD_STEPS {
        if !scan.step(seen.len() as u32, word) {
            break;
        }
    }
    scan.end(status(word(0), word(8)), to_head, word)
}

/// The status of a response by its first eight bytes and the eight after those; 0: they begin no response.
#[inline(always)]
pub const fn status(first: u64, second: u64) -> u16 {
    // "HTTP/1.x ddd"
    const VERSION: u64 = u64::from_le_bytes(*b"HTTP/1.\0");
    if first << 8 != VERSION << 8 || second as u8 != b' ' {
        return 0;
    }
    let (hundreds, tens, ones) = (digit(second >> 8), digit(second >> 16), digit(second >> 24));
    if hundreds > 9 || tens > 9 || ones > 9 {
        return 0;
    }
    (hundreds * 100 + tens * 10 + ones) as u16
}

/// What the lowest byte stands for; more than 9 if it is no digit.
#[inline(always)]
const fn digit(word: u64) -> u64 {
    (word as u8).wrapping_sub(b'0') as u64
}

/// How many bytes there are up to the first line feed, that one counted.
#[inline(always)]
const fn behind_newline(word: u64) -> Option<u32> {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let differs = word ^ (ONES * b'\n' as u64);
    // The highest bit of each byte that was zero, and perhaps of some above it: the lowest one counts.
    let zeros = differs.wrapping_sub(ONES) & !differs & HIGH;
    if zeros == 0 {
        return None;
    }
    // All bits below that one: of every byte up to it the lowest bit, which the product counts.
    let below = (zeros & zeros.wrapping_neg()) - 1;
    Some(((below & ONES).wrapping_mul(ONES) >> 56) as u32)
}

/// Letters in lower case. No other byte becomes one of those in a field's name by this.
#[inline(always)]
const fn lowercase(word: u64) -> u64 {
    word | (word & 0x4040_4040_4040_4040) >> 1
}

/// The decimal number in sixteen bytes, up to the line's end and behind one space at most; [`LONGEST_RESPONSE`] if there is
/// none, or it has more digits than that.
#[inline(always)]
const fn number(mut low: u64, mut high: u64) -> u64 {
    const DIGITS: u32 = 10;
    if low as u8 == b' ' {
        low = low >> 8 | high << 56;
        high >>= 8;
    }
    if digit(low) > 9 {
        return LONGEST_RESPONSE;
    }
    let (mut value, mut digits) = (0, 0);
    while digits < DIGITS && digit(low) <= 9 {
        value = value * 10 + digit(low);
        low = low >> 8 | high << 56;
        high >>= 8;
        digits += 1;
    }
    if low as u8 == b'\r' {
        value
    } else {
        LONGEST_RESPONSE
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn answer(lines: &str) -> Option<u32> {
        response_end(
            format!("HTTP/1.1 200 OK\r\n{lines}\r\nbody").as_bytes(),
            false,
        )
    }

    /// B10: wherever in a word the lines begin and end.
    #[test]
    fn a_length_ends_a_response_behind_its_head() {
        for padding in 0..40 {
            let lines = format!("Server: {}\r\nContent-Length: 12\r\n", "x".repeat(padding));
            let head = 17 + lines.len() as u32 + 2;
            assert_eq!(answer(&lines), Some(head + 12), "{lines:?}");
        }
        for line in [
            "content-length:7",
            "CONTENT-LENGTH: 7",
            "Content-Length: 0007",
        ] {
            let head = 17 + line.len() as u32 + 4;
            assert_eq!(answer(&format!("{line}\r\n")), Some(head + 7), "{line:?}");
        }
        assert_eq!(
            response_end(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", false),
            Some(38)
        );
    }

    #[test]
    fn what_has_no_length_is_unknown() {
        for lines in [
            "",
            "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
            "Content-Length: 3\r\nContent-Length: 4\r\n",
            "Content-Length: -3\r\n",
            "Content-Length: +3\r\n",
            "Content-Length: 3 4\r\n",
            "Content-Length: 3, 3\r\n",
            "Content-Length:\r\n",
            "Content-Length: 3\n",
            "Content-Length: 1073741824\r\n",
            "Content-Length: 99999999999999999999999\r\n",
            "X-Content-Length: 3\r\n",
            "X: Content-Length: 3\r\n",
            "Content-Lengths: 3\r\n",
        ] {
            assert_eq!(answer(lines), None, "{lines:?}");
        }
        for head in [
            "HTTP/1.1 200 OK\r\nContent-Le",
            "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r",
            "HTTP/1.1 101 Switching Protocols\r\nContent-Length: 3\r\n\r\n",
            "HTTP/1.1 200",
            "HTTP/2.0 200 OK\r\nContent-Length: 3\r\n\r\n",
            "nonsense",
            "",
        ] {
            assert_eq!(response_end(head.as_bytes(), false), None, "{head:?}");
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
                Some(head.len() as u32)
            );
        }
        let to_head = "HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n";
        assert_eq!(
            response_end(to_head.as_bytes(), true),
            Some(to_head.len() as u32)
        );
    }

    /// A head longer than what is looked at has no end, whatever stands in its beginning.
    #[test]
    fn a_head_that_is_too_long_is_unknown() {
        let lines = format!("Content-Length: 3\r\nX: {}\r\n", "y".repeat(HEAD_CAPACITY));
        assert_eq!(answer(&lines), None);
        let lines = format!("X: {}\r\nContent-Length: 3\r\n", "y".repeat(1900));
        assert_eq!(answer(&lines), Some(17 + lines.len() as u32 + 2 + 3));
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
            response_end(&bytes, false);
            response_end(&[b"HTTP/1.1 200 OK\r\nContent-Length:", &*bytes].concat(), false);
        }

        #[test]
        fn the_first_line_feed_is_found(word in any::<[u8; 8]>()) {
            let at = word.iter().position(|byte| *byte == b'\n');
            prop_assert_eq!(behind_newline(u64::from_le_bytes(word)), at.map(|at| at as u32 + 1));
        }
    }
}
