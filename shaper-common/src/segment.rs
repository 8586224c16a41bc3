//! Finding the TCP header and the payload in an IP packet.

/// The IP version of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

/// Why a packet could not be read. It passes, and is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentError {
    /// A header reaches beyond the packet, or a length in it is impossible.
    Malformed,
    /// Not TCP, or TCP behind IPv6 extension headers other than one of hop-by-hop options, or a fragment that does not
    /// start with the TCP header.
    NotTcp,
}

const IPPROTO_TCP: u8 = 6;
/// IPv6 hop-by-hop options (RFC 8200, 4.3). Linux puts one, with the jumbo payload option, into packets of more than
/// 65535 bytes that are segmented later ("BIG TCP", Linux 5.19): large requests on loopback and veth.
const IPPROTO_HOPOPTS: u8 = 0;
const IPV6_HEADER: u32 = 40;
const TCP_MIN_HEADER: u32 = 20;

/// TCP flags (RFC 9293, 3.1).
const SYN: u8 = 0x02;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;

/// Where things are in one TCP packet. Offsets are in bytes from the start of the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub family: Family,
    pub tcp_offset: u32,
    /// Length of the TCP header with its options, 20 to 60.
    pub tcp_header_len: u32,
    /// Sequence number of the first payload byte, or of a SYN (RFC 9293, 3.4).
    pub sequence: u32,
    /// Payload bytes. For a GSO packet that of all its segments together.
    pub payload_len: u32,
    flags: u8,
}

impl Segment {
    /// Reads a packet of `len` bytes. `byte` returns the byte at an offset, `None` beyond what can be read.
    ///
    /// # Errors
    /// [`SegmentError`]; the caller lets the packet pass.
    #[inline(always)]
    pub fn parse(byte: impl Fn(u32) -> Option<u8>, len: u32) -> Result<Self, SegmentError> {
        let malformed = SegmentError::Malformed;
        let first = byte(0).ok_or(malformed)?;
        let (family, tcp_offset) = match first >> 4 {
            4 => {
                let header = u32::from(first & 0x0f) * 4;
                if header < 20 {
                    return Err(malformed);
                }
                // A fragment with a nonzero offset has no TCP header (RFC 791, 3.1).
                let fragment = (byte(6).ok_or(malformed)? & 0x1f) | byte(7).ok_or(malformed)?;
                if byte(9).ok_or(malformed)? != IPPROTO_TCP || fragment != 0 {
                    return Err(SegmentError::NotTcp);
                }
                (Family::V4, header)
            }
            6 => {
                let (mut next, mut offset) = (byte(6).ok_or(malformed)?, IPV6_HEADER);
                if next == IPPROTO_HOPOPTS {
                    next = byte(IPV6_HEADER).ok_or(malformed)?;
                    offset += 8 + 8 * u32::from(byte(IPV6_HEADER + 1).ok_or(malformed)?);
                }
                if next != IPPROTO_TCP {
                    return Err(SegmentError::NotTcp);
                }
                (Family::V6, offset)
            }
            _ => return Err(malformed),
        };
        let tcp_header_len = u32::from(byte(tcp_offset + 12).ok_or(malformed)? >> 4) * 4;
        let flags = byte(tcp_offset + 13).ok_or(malformed)?;
        let sequence = u32::from_be_bytes([
            byte(tcp_offset + 4).ok_or(malformed)?,
            byte(tcp_offset + 5).ok_or(malformed)?,
            byte(tcp_offset + 6).ok_or(malformed)?,
            byte(tcp_offset + 7).ok_or(malformed)?,
        ]);
        let headers = tcp_offset + tcp_header_len;
        if tcp_header_len < TCP_MIN_HEADER || headers > len {
            return Err(malformed);
        }
        Ok(Self {
            family,
            tcp_offset,
            tcp_header_len,
            sequence,
            payload_len: len - headers,
            flags,
        })
    }

    /// Where the payload starts.
    #[inline(always)]
    pub const fn payload_offset(&self) -> u32 {
        self.tcp_offset + self.tcp_header_len
    }

    /// The first packet of a connection.
    #[inline(always)]
    pub const fn is_syn(&self) -> bool {
        self.flags & (SYN | ACK | RST) == SYN
    }

    /// The end of a connection, by force.
    #[inline(always)]
    pub const fn is_reset(&self) -> bool {
        self.flags & RST != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(packet: &[u8]) -> Result<Segment, SegmentError> {
        Segment::parse(|at| packet.get(at as usize).copied(), packet.len() as u32)
    }

    fn v4(options: usize, tcp_options: usize, flags: u8, payload: usize) -> Vec<u8> {
        let mut packet = vec![0; 20 + options + 20 + tcp_options + payload];
        packet[0] = 0x40 | (5 + options / 4) as u8;
        packet[9] = 6;
        packet[20 + options + 12] = ((5 + tcp_options / 4) as u8) << 4;
        packet[20 + options + 13] = flags;
        packet
    }

    #[test]
    fn lengths_are_found_behind_options() {
        let segment = parse(&v4(8, 20, SYN, 0)).unwrap();
        assert_eq!(
            (
                segment.tcp_offset,
                segment.tcp_header_len,
                segment.payload_len
            ),
            (28, 40, 0)
        );
        assert!(segment.is_syn());
        let segment = parse(&v4(0, 12, ACK, 700)).unwrap();
        assert_eq!(segment.payload_len, 700);
        assert!(!segment.is_syn());
    }

    #[test]
    fn v6_without_extension_headers_is_read() {
        let mut packet = vec![0; 40 + 20 + 5];
        packet[0] = 0x60;
        packet[6] = 6;
        packet[40 + 12] = 5 << 4;
        packet[40 + 13] = RST;
        let segment = parse(&packet).unwrap();
        assert_eq!((segment.family, segment.payload_len), (Family::V6, 5));
        packet[6] = 44;
        assert_eq!(parse(&packet), Err(SegmentError::NotTcp));
    }

    /// A7: a request of more than 65535 bytes in one packet is a request too.
    #[test]
    fn v6_with_a_jumbo_payload_is_read() {
        let mut packet = vec![0; 40 + 8 + 20 + 70_000];
        packet[0] = 0x60;
        packet[40] = 6;
        packet[42] = 0xc2;
        packet[43] = 4;
        packet[48 + 12] = 5 << 4;
        packet[48 + 13] = ACK;
        let segment = parse(&packet).unwrap();
        assert_eq!((segment.tcp_offset, segment.payload_len), (48, 70_000));
        packet[40] = 44;
        assert_eq!(parse(&packet), Err(SegmentError::NotTcp));
        packet[40] = 6;
        packet[41] = 255;
        packet.truncate(200);
        assert_eq!(parse(&packet), Err(SegmentError::Malformed));
    }

    #[test]
    fn impossible_lengths_are_malformed_and_fragments_are_not_tcp() {
        let mut short = v4(0, 0, SYN, 0);
        short[32] = 15 << 4;
        assert_eq!(parse(&short), Err(SegmentError::Malformed));
        let mut tiny = v4(0, 0, SYN, 0);
        tiny[32] = 4 << 4;
        assert_eq!(parse(&tiny), Err(SegmentError::Malformed));
        let mut fragment = v4(0, 0, SYN, 0);
        fragment[7] = 1;
        assert_eq!(parse(&fragment), Err(SegmentError::NotTcp));
        assert_eq!(parse(&[]), Err(SegmentError::Malformed));
    }

    proptest! {
        #[test]
        fn random_bytes_never_panic(packet in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(segment) = parse(&packet) {
                let headers = segment.tcp_offset + segment.tcp_header_len;
                prop_assert_eq!(headers + segment.payload_len, packet.len() as u32);
            }
        }
    }
}
