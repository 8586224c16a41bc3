//! Building the packets that the controller sends in a held socket's name.

use shaper_common::Tuple;

const IPPROTO_TCP: u8 = 6;
const ACK: u8 = 0x10;
const HOP_LIMIT: u8 = 64;
const IPV4_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;

/// A TCP timestamps option (RFC 7323, 3.2).
const OPTION_TIMESTAMPS: u8 = 8;
const OPTION_NOP: u8 = 1;
const OPTION_END: u8 = 0;

/// The SYN of `header` as a whole IP packet from the socket's own addresses.
///
/// Rebuilt from the socket's view, not the packet's: that may have been translated already. The timestamp moves
/// forward by `held_ms`, else the peer's echo would make the round-trip estimate as long as the hold. Payload (TCP
/// Fast Open) is left out; TCP sends it again after the handshake.
pub fn syn(tuple: &Tuple, header: &[u8], held_ms: u32) -> Vec<u8> {
    packet(tuple, header_for(tuple, header, held_ms))
}

/// A keep-alive probe in the name of the socket whose data segment had this `header`: one byte before `acknowledged`,
/// which the peer has for certain, and ACK (RFC 9293, 3.8.4). The peer answers with an acknowledgement, and Linux sends
/// what it holds whenever one comes (`tcp_data_snd_check`, net/ipv4/tcp_input.c).
///
/// With the byte, because Linux answers segments without payload that are out of the window only twice a second
/// (`tcp_oow_rate_limited`), so that a second probe within that time would be lost.
pub fn probe(tuple: &Tuple, header: &[u8], acknowledged: u32, held_ms: u32) -> Vec<u8> {
    let mut tcp = header_for(tuple, header, held_ms);
    tcp[4..8].copy_from_slice(&acknowledged.wrapping_sub(1).to_be_bytes());
    tcp[13] = ACK;
    // No urgent pointer without its flag.
    put_u16(&mut tcp, 18, 0);
    tcp.push(0);
    packet(tuple, tcp)
}

/// The kept header with the socket's own ports and the timestamp of now.
fn header_for(tuple: &Tuple, header: &[u8], held_ms: u32) -> Vec<u8> {
    let mut tcp = header.to_vec();
    put_u16(&mut tcp, 0, tuple.local_port);
    put_u16(&mut tcp, 2, tuple.remote_port);
    advance_timestamp(&mut tcp, held_ms);
    tcp
}

/// Whether the packets between these addresses are IPv4.
pub fn is_v4(tuple: &Tuple) -> bool {
    v4_of(&tuple.remote).is_some()
}

/// The IPv4 address that is stored IPv4-mapped.
pub fn v4_of(addr: &[u8; 16]) -> Option<[u8; 4]> {
    let (prefix, v4) = addr.split_at(12);
    (prefix == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]).then(|| [v4[0], v4[1], v4[2], v4[3]])
}

/// Puts an IP header in front of a TCP header with its payload and fills in the checksums.
fn packet(tuple: &Tuple, mut tcp: Vec<u8>) -> Vec<u8> {
    let length = tcp.len() as u16;
    put_u16(&mut tcp, 16, 0);
    let mut packet;
    let pseudo = match (v4_of(&tuple.local), v4_of(&tuple.remote)) {
        (Some(local), Some(remote)) => {
            packet = vec![0; IPV4_HEADER];
            packet[0] = 0x45;
            put_u16(&mut packet, 2, IPV4_HEADER as u16 + length);
            // Don't fragment, as TCP with path MTU discovery sets it.
            packet[6] = 0x40;
            packet[8] = HOP_LIMIT;
            packet[9] = IPPROTO_TCP;
            packet[12..16].copy_from_slice(&local);
            packet[16..20].copy_from_slice(&remote);
            let sum = fold(sum(0, &packet));
            put_u16(&mut packet, 10, sum);
            sum_parts(&[&local, &remote])
        }
        _ => {
            packet = vec![0; IPV6_HEADER];
            packet[0] = 0x60;
            put_u16(&mut packet, 4, length);
            packet[6] = IPPROTO_TCP;
            packet[7] = HOP_LIMIT;
            packet[8..24].copy_from_slice(&tuple.local);
            packet[24..40].copy_from_slice(&tuple.remote);
            sum_parts(&[&tuple.local, &tuple.remote])
        }
    };
    let checksum = fold(sum(
        pseudo + u32::from(IPPROTO_TCP) + u32::from(length),
        &tcp,
    ));
    put_u16(&mut tcp, 16, checksum);
    packet.extend(tcp);
    packet
}

/// Adds `by_ms` to the timestamp value. Linux counts it in milliseconds (`tcp_clock_ts`).
fn advance_timestamp(tcp: &mut [u8], by_ms: u32) {
    let mut at = 20;
    while at < tcp.len() {
        match tcp[at] {
            OPTION_END => return,
            OPTION_NOP => at += 1,
            kind => {
                let Some(&length) = tcp.get(at + 1) else {
                    return;
                };
                let length = usize::from(length);
                if length < 2 || at + length > tcp.len() {
                    return;
                }
                if kind == OPTION_TIMESTAMPS && length == 10 {
                    let value: [u8; 4] = tcp[at + 2..at + 6].try_into().expect("four bytes");
                    let advanced = u32::from_be_bytes(value).wrapping_add(by_ms);
                    tcp[at + 2..at + 6].copy_from_slice(&advanced.to_be_bytes());
                    return;
                }
                at += length;
            }
        }
    }
}

fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn sum_parts(parts: &[&[u8]]) -> u32 {
    parts.iter().fold(0, |total, part| sum(total, part))
}

/// The Internet checksum's running sum (RFC 1071).
fn sum(start: u32, bytes: &[u8]) -> u32 {
    bytes.chunks(2).fold(start, |total, pair| {
        total + u32::from(u16::from_be_bytes([pair[0], *pair.get(1).unwrap_or(&0)]))
    })
}

fn fold(mut sum: u32) -> u16 {
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MSS_SACK_TS_WS: [u8; 20] = [
        2, 4, 0xff, 0xd7, 4, 2, 8, 10, 0, 0, 0, 100, 0, 0, 0, 0, 1, 3, 3, 7,
    ];

    fn header() -> Vec<u8> {
        let mut header = vec![0; 20];
        header[4..8].copy_from_slice(&0x0102_0304_u32.to_be_bytes());
        header[12] = 10 << 4;
        header[13] = 2;
        header.extend_from_slice(&MSS_SACK_TS_WS);
        header
    }

    fn v4(addr: [u8; 4]) -> [u8; 16] {
        shaper_common::EndpointKey::v4(addr, [0; 2]).addr
    }

    #[test]
    fn a_v4_syn_has_the_sockets_addresses_and_right_checksums() {
        let tuple = Tuple {
            local: v4([10, 0, 0, 1]),
            remote: v4([10, 0, 0, 2]),
            local_port: 40_000,
            remote_port: 443,
        };
        let packet = syn(&tuple, &header(), 1_500);
        assert_eq!(packet.len(), 60);
        assert_eq!(fold(sum(0, &packet[..20])), 0, "IP checksum");
        let pseudo = sum_parts(&[&packet[12..20]]) + 6 + 40;
        assert_eq!(fold(sum(pseudo, &packet[20..])), 0, "TCP checksum");
        assert_eq!(u16::from_be_bytes([packet[20], packet[21]]), 40_000);
        assert_eq!(u16::from_be_bytes([packet[22], packet[23]]), 443);
        let timestamp = 20 + 20 + 8;
        assert_eq!(packet[timestamp..timestamp + 4], 1_600_u32.to_be_bytes());
    }

    #[test]
    fn a_probe_is_an_acknowledgement_one_byte_back() {
        let tuple = Tuple {
            local: v4([127, 0, 0, 1]),
            remote: v4([127, 0, 0, 1]),
            local_port: 1,
            remote_port: 2,
        };
        let mut data = header();
        data[13] = 0x38;
        data[19] = 7;
        let packet = probe(&tuple, &data, 0, 5);
        assert_eq!(packet[20 + 4..20 + 8], u32::MAX.to_be_bytes());
        assert_eq!(packet[20 + 13], ACK);
        assert_eq!(packet.len(), 20 + 40 + 1);
        assert_eq!(packet[20 + 18..20 + 20], [0, 0]);
        let pseudo = sum_parts(&[&packet[12..20]]) + 6 + 41;
        assert_eq!(fold(sum(pseudo, &packet[20..])), 0, "TCP checksum");
    }

    #[test]
    fn a_v6_syn_is_built_alike() {
        let tuple = Tuple {
            local: [0xfd; 16],
            remote: [0xfc; 16],
            local_port: 1,
            remote_port: 2,
        };
        let packet = syn(&tuple, &header(), 0);
        let pseudo = sum_parts(&[&packet[8..40]]) + 6 + 40;
        assert_eq!(fold(sum(pseudo, &packet[40..])), 0, "TCP checksum");
        assert!(!is_v4(&tuple));
    }

    #[test]
    fn broken_options_are_left_alone() {
        for options in [[8, 0, 0, 0], [8, 200, 0, 0], [1, 1, 1, 8], [0, 8, 10, 1]] {
            let mut tcp = vec![0; 20];
            tcp.extend_from_slice(&options);
            let before = tcp.clone();
            advance_timestamp(&mut tcp, 5);
            assert_eq!(tcp, before);
        }
    }
}
