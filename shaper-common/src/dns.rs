//! Reading DNS answers (RFC 1035, 4.1): which addresses does one give the name that was asked for?
//!
//! A kernel program reads them, so the walk through a message is cut into steps of little work each: one byte of a name,
//! or the fixed part of one record. All there is to know between two steps is in a [`Walk`], and the name in a
//! [`WireName`] beside it.

use crate::Family;

/// The longest name in wire form, its final zero included, is 255 bytes (RFC 1035, 3.1).
pub const NAME_CAPACITY: usize = 256;

/// A name in wire form: labels behind their lengths, in lower case, a zero, and zeros to the end.
pub type WireName = [u8; NAME_CAPACITY];

/// Where the payload of a datagram begins that came from a name server's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FromNameServer {
    pub family: Family,
    /// In bytes from the start of the IP header.
    pub payload_offset: u32,
}

const IPPROTO_UDP: u8 = 17;
const UDP_HEADER: u32 = 8;
/// The port of name servers (RFC 1035, 4.2.1).
pub const NAME_SERVER_PORT: u16 = 53;

impl FromNameServer {
    /// Reads the headers of a packet. `byte` returns the byte at an offset, `None` beyond what can be read. `None`: it is
    /// no UDP from port 53, or UDP behind IPv6 extension headers.
    #[inline(always)]
    pub fn parse(byte: impl Fn(u32) -> Option<u8>) -> Option<Self> {
        let first = byte(0)?;
        let (family, udp) = match first >> 4 {
            4 if byte(9)? == IPPROTO_UDP => (Family::V4, u32::from(first & 0x0f) * 4),
            6 if byte(6)? == IPPROTO_UDP => (Family::V6, 40),
            _ => return None,
        };
        let port = u16::from_be_bytes([byte(udp)?, byte(udp + 1)?]);
        if udp < 20 || port != NAME_SERVER_PORT {
            return None;
        }
        Some(Self {
            family,
            payload_offset: udp + UDP_HEADER,
        })
    }
}

/// What a step has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// Nothing yet.
    Nothing,
    /// The question has been read, which is for addresses: its name is in the [`WireName`].
    Question,
    /// An address of the name is at this offset: 4 bytes, or 16.
    Address(Family, u32),
    /// There is no more.
    End,
}

/// What is read next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Part {
    /// The question's name, into the [`WireName`].
    Question,
    /// A record's owner, compared with the [`WireName`].
    Owner,
    /// The rest of an owner that is another name.
    OtherOwner,
    /// The fixed part of a record of the name.
    Record,
    /// The fixed part of another record.
    OtherRecord,
    /// The name that an alias stands for, into the [`WireName`].
    Target,
}

/// A walk through a message, between two steps.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk {
    part: Part,
    /// Offset of the next byte.
    at: u32,
    /// Where it goes on behind the name; 0: no pointer has been followed in it.
    resume: u32,
    /// Bytes of the name so far.
    index: u32,
    /// Bytes of its label left.
    left: u32,
    /// Pointers followed in it.
    jumps: u32,
    /// Where the message has the name that owns the addresses.
    known_at: u32,
    /// Records left, the present one counted in.
    records: u32,
}

const HEADER: u32 = 12;
const TYPE_A: u16 = 1;
const TYPE_CNAME: u16 = 5;
const TYPE_AAAA: u16 = 28;
const CLASS_IN: u16 = 1;

/// The first two bits of a pointer, and the length of the longest label (RFC 1035, 4.1.4).
const POINTER: u8 = 0xc0;
const LABEL_MAX: u8 = 0x3f;

/// Pointers in one name: servers write one at most.
const MAX_JUMPS: u32 = 8;

impl Walk {
    /// Begins with a message's header. `None`: it is no answer to one question, or says that there is none.
    #[inline(always)]
    pub fn begin(byte: impl Fn(u32) -> Option<u8>) -> Option<Self> {
        // RFC 1035, 4.1.1: a response (QR) to a standard query (OPCODE), without error (RCODE).
        let is_answer = byte(2)? & 0xf8 == 0x80 && byte(3)? & 0x0f == 0;
        let records = word(&byte, 6)?;
        if !is_answer || word(&byte, 4)? != 1 || records == 0 {
            return None;
        }
        Some(Self {
            part: Part::Question,
            at: HEADER,
            resume: 0,
            index: 0,
            left: 0,
            jumps: 0,
            known_at: HEADER,
            records: u32::from(records),
        })
    }

    /// Goes one step. `byte` returns the message's byte at an offset, `None` beyond its end; `name` is all zeros before the
    /// first step. Addresses are found of the name in the question, and of the name that it is an alias for (CNAME), and
    /// so on; records of other names are passed over, and so is an alias that comes behind its address.
    #[inline(always)]
    pub fn step(&mut self, byte: impl Fn(u32) -> Option<u8>, name: &mut WireName) -> Found {
        if self.records == 0 {
            return Found::End;
        }
        let next = match self.part {
            Part::Record | Part::OtherRecord => self.record(byte),
            Part::OtherOwner => self.pass_over(byte),
            Part::Question | Part::Owner | Part::Target => self.name(byte, name),
        };
        next.unwrap_or(Found::End)
    }

    /// One byte of a name, or a pointer to the rest of it. `None`: the message is malformed.
    #[inline(always)]
    fn name(&mut self, byte: impl Fn(u32) -> Option<u8>, name: &mut WireName) -> Option<Found> {
        let first = byte(self.at)?;
        let is_length = self.left == 0;
        if is_length && first >= POINTER {
            return self.pointer(first, byte);
        }
        self.at += 1;
        if is_length {
            if first > LABEL_MAX {
                return None;
            }
            self.left = u32::from(first);
        } else {
            self.left -= 1;
        }
        let letter = lower(first);
        let place = name.get_mut(self.index as usize)?;
        self.index += 1;
        let ends = is_length && first == 0;
        if self.part != Part::Owner {
            *place = letter;
        } else if *place != letter {
            if self.resume != 0 {
                self.at = self.resume;
                self.part = Part::OtherRecord;
            } else {
                self.at += self.left;
                self.part = if ends {
                    Part::OtherRecord
                } else {
                    Part::OtherOwner
                };
            }
            self.forget_name();
            return Some(Found::Nothing);
        }
        if ends {
            self.end_of_name(byte)
        } else {
            Some(Found::Nothing)
        }
    }

    /// Follows a pointer (RFC 1035, 4.1.4).
    #[inline(always)]
    fn pointer(&mut self, first: u8, byte: impl Fn(u32) -> Option<u8>) -> Option<Found> {
        let target = (u32::from(first & !POINTER) << 8) | u32::from(byte(self.at + 1)?);
        self.at += 2;
        if self.part == Part::Question || self.jumps == MAX_JUMPS {
            return None;
        }
        if self.index == 0 && self.part == Part::Owner && target == self.known_at {
            // What servers write mostly: no need to compare.
            self.at = self.behind();
            self.forget_name();
            self.part = Part::Record;
            return Some(Found::Nothing);
        }
        if self.index == 0 && self.part == Part::Target {
            self.known_at = target;
        }
        self.resume = self.behind();
        self.at = target;
        self.jumps += 1;
        Some(Found::Nothing)
    }

    /// The name is complete, and if it is an owner's it is the name that is looked for.
    #[inline(always)]
    fn end_of_name(&mut self, byte: impl Fn(u32) -> Option<u8>) -> Option<Found> {
        self.at = self.behind();
        self.forget_name();
        match self.part {
            Part::Question => {
                let (kind, class) = (word(&byte, self.at)?, word(&byte, self.at + 2)?);
                if class != CLASS_IN || (kind != TYPE_A && kind != TYPE_AAAA) {
                    return None;
                }
                self.at += 4;
                self.part = Part::Owner;
                return Some(Found::Question);
            }
            Part::Target => self.part = Part::Owner,
            _ => self.part = Part::Record,
        }
        Some(Found::Nothing)
    }

    /// Passes over a label of another name.
    #[inline(always)]
    fn pass_over(&mut self, byte: impl Fn(u32) -> Option<u8>) -> Option<Found> {
        let first = byte(self.at)?;
        if first >= POINTER {
            self.at += 2;
            self.part = Part::OtherRecord;
        } else if first > LABEL_MAX {
            return None;
        } else {
            self.at += 1 + u32::from(first);
            if first == 0 {
                self.part = Part::OtherRecord;
            }
        }
        Some(Found::Nothing)
    }

    /// Reads the fixed part of a record: type, class, time to live, length of the data (RFC 1035, 4.1.3).
    #[inline(always)]
    fn record(&mut self, byte: impl Fn(u32) -> Option<u8>) -> Option<Found> {
        let (kind, class) = (word(&byte, self.at)?, word(&byte, self.at + 2)?);
        let length = word(&byte, self.at + 8)?;
        let data = self.at + 10;
        self.records -= 1;
        self.at = data + u32::from(length);
        let of_the_name = self.part == Part::Record && class == CLASS_IN;
        self.part = Part::Owner;
        Some(match (kind, length) {
            (TYPE_A, 4) if of_the_name => Found::Address(Family::V4, data),
            (TYPE_AAAA, 16) if of_the_name => Found::Address(Family::V6, data),
            (TYPE_CNAME, _) if of_the_name => {
                self.part = Part::Target;
                self.at = data;
                self.known_at = data;
                Found::Nothing
            }
            _ => Found::Nothing,
        })
    }

    /// Where the message goes on after what has been read of the present name.
    #[inline(always)]
    fn behind(&self) -> u32 {
        if self.resume == 0 {
            self.at
        } else {
            self.resume
        }
    }

    #[inline(always)]
    fn forget_name(&mut self) {
        self.resume = 0;
        self.index = 0;
        self.left = 0;
        self.jumps = 0;
    }
}

#[inline(always)]
fn word(byte: &impl Fn(u32) -> Option<u8>, at: u32) -> Option<u16> {
    Some(u16::from_be_bytes([byte(at)?, byte(at + 1)?]))
}

/// Names are compared without regard to case (RFC 1035, 2.3.3). The lengths of labels are below any letter.
#[inline(always)]
fn lower(byte: u8) -> u8 {
    if byte.is_ascii_uppercase() {
        byte | 0x20
    } else {
        byte
    }
}

/// A host name in wire form. `None`: it is empty, has an empty label, or is too long.
pub fn wire_name(host: &str) -> Option<WireName> {
    let mut name = [0; NAME_CAPACITY];
    let mut at = 0;
    for label in host.split('.') {
        let length = u8::try_from(label.len()).ok()?;
        if length == 0 || length > LABEL_MAX {
            return None;
        }
        *name.get_mut(at)? = length;
        at += 1;
        for byte in label.bytes() {
            *name.get_mut(at)? = lower(byte);
            at += 1;
        }
    }
    // With the final zero at most 255.
    (at < NAME_CAPACITY - 1).then_some(name)
}

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    /// What an answer gives: the name in the question, and its addresses.
    #[derive(Debug, PartialEq, Eq)]
    struct Read {
        question: Option<WireName>,
        addresses: Vec<IpAddr>,
        steps: u32,
    }

    fn read(message: &[u8]) -> Read {
        let byte = |at: u32| message.get(at as usize).copied();
        let mut name = [0; NAME_CAPACITY];
        let mut read = Read {
            question: None,
            addresses: Vec::new(),
            steps: 0,
        };
        let Some(mut walk) = Walk::begin(byte) else {
            return read;
        };
        loop {
            read.steps += 1;
            match walk.step(byte, &mut name) {
                Found::Nothing => {}
                Found::Question => read.question = Some(name),
                Found::Address(family, at) => {
                    let at = at as usize;
                    let addr = match family {
                        Family::V4 => message
                            .get(at..at + 4)
                            .map(|b| IpAddr::from(<[u8; 4]>::try_from(b).unwrap())),
                        Family::V6 => message
                            .get(at..at + 16)
                            .map(|b| IpAddr::from(<[u8; 16]>::try_from(b).unwrap())),
                    };
                    read.addresses.extend(addr);
                }
                Found::End => return read,
            }
        }
    }

    /// Builds answers the way servers do.
    struct Message {
        bytes: Vec<u8>,
        compress: bool,
        written: Vec<(String, u16)>,
    }

    impl Message {
        /// The question, and room for an answer without error.
        fn about(name: &str, kind: u16, compress: bool) -> Self {
            let mut message = Self {
                bytes: vec![0x12, 0x34, 0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0],
                compress,
                written: Vec::new(),
            };
            message.name(name);
            message.bytes.extend(kind.to_be_bytes());
            message.bytes.extend(CLASS_IN.to_be_bytes());
            message
        }

        fn name(&mut self, name: &str) {
            let mut rest = name;
            while !rest.is_empty() {
                let lowered = rest.to_ascii_lowercase();
                if let Some((_, at)) = self.written.iter().find(|(n, _)| *n == lowered)
                    && self.compress
                {
                    self.bytes.extend((0xc000 | at).to_be_bytes());
                    return;
                }
                self.written.push((lowered, self.bytes.len() as u16));
                let (label, more) = rest.split_once('.').unwrap_or((rest, ""));
                self.bytes.push(label.len() as u8);
                self.bytes.extend(label.bytes());
                rest = more;
            }
            self.bytes.push(0);
        }

        fn record(&mut self, owner: &str, kind: u16, data: impl FnOnce(&mut Self)) -> &mut Self {
            self.name(owner);
            self.bytes.extend(kind.to_be_bytes());
            self.bytes.extend([0, 1, 0, 0, 0, 60, 0, 0]);
            let start = self.bytes.len();
            data(self);
            let length = (self.bytes.len() - start) as u16;
            self.bytes[start - 2..start].copy_from_slice(&length.to_be_bytes());
            let count = u16::from_be_bytes([self.bytes[6], self.bytes[7]]) + 1;
            self.bytes[6..8].copy_from_slice(&count.to_be_bytes());
            self
        }

        fn address(&mut self, owner: &str, addr: &str) -> &mut Self {
            match addr.parse().unwrap() {
                IpAddr::V4(v4) => self.record(owner, TYPE_A, |m| m.bytes.extend(v4.octets())),
                IpAddr::V6(v6) => self.record(owner, TYPE_AAAA, |m| m.bytes.extend(v6.octets())),
            }
        }

        fn alias(&mut self, owner: &str, target: &str) -> &mut Self {
            self.record(owner, TYPE_CNAME, |m| m.name(target))
        }
    }

    fn addresses(message: &Message) -> Vec<String> {
        let read = read(&message.bytes);
        read.addresses.iter().map(IpAddr::to_string).collect()
    }

    /// A1: the addresses of a name, however it is spelled and however its server writes it.
    #[test]
    fn addresses_of_both_families_are_found() {
        for compress in [true, false] {
            let mut message = Message::about("API.Gateway.test", TYPE_A, compress);
            message
                .address("api.gateway.test", "192.0.2.1")
                .address("API.gateway.TEST", "192.0.2.2")
                .address("api.gateway.test", "2001:db8::1");
            let read = read(&message.bytes);
            assert_eq!(read.question, wire_name("api.gateway.test"));
            assert_eq!(
                addresses(&message),
                ["192.0.2.1", "192.0.2.2", "2001:db8::1"]
            );
        }
    }

    /// A1: a chain of aliases, as content delivery networks have them.
    #[test]
    fn aliases_are_followed() {
        for compress in [true, false] {
            let mut message = Message::about("api.gateway.test", TYPE_A, compress);
            message
                .alias("api.gateway.test", "api.gateway.test.edge.cdn.example")
                .alias("api.gateway.test.edge.cdn.example", "e77.edge.cdn.example")
                .address("e77.edge.cdn.example", "192.0.2.7")
                .address("e77.edge.cdn.example", "192.0.2.8");
            assert_eq!(
                addresses(&message),
                ["192.0.2.7", "192.0.2.8"],
                "{compress}"
            );
        }
    }

    /// A22: what a message says of other names is not taken for an answer.
    #[test]
    fn records_of_other_names_are_passed_over() {
        for compress in [true, false] {
            let mut message = Message::about("api.gateway.test", TYPE_A, compress);
            message
                .address("gateway.test", "192.0.2.1")
                .address("api.gateway.test.other", "192.0.2.2")
                .address("apj.gateway.test", "192.0.2.3")
                .address("ap", "192.0.2.4")
                .alias("other.test", "api.gateway.test")
                .address("api.gateway.test", "192.0.2.9")
                .address("x.api.gateway.test", "192.0.2.5");
            assert_eq!(addresses(&message), ["192.0.2.9"], "{compress}");
        }
    }

    #[test]
    fn what_is_no_answer_with_addresses_is_none() {
        let mut answer = Message::about("gateway.test", TYPE_A, true);
        answer.address("gateway.test", "192.0.2.1");
        let nothing = Read {
            question: None,
            addresses: Vec::new(),
            steps: 0,
        };
        // A query, another operation, an error, two questions, no record.
        for (at, value) in [(2, 0x01), (2, 0xa8), (3, 0x83), (5, 2), (7, 0)] {
            let mut bytes = answer.bytes.clone();
            bytes[at] = value;
            assert_eq!(read(&bytes), nothing, "{at}");
        }
        let mut mail = Message::about("gateway.test", 15, true);
        mail.address("gateway.test", "192.0.2.1");
        assert_eq!(read(&mail.bytes).question, None);
    }

    #[test]
    fn pointers_in_a_circle_come_to_an_end() {
        let mut message = Message::about("gateway.test", TYPE_A, true);
        let here = message.bytes.len() as u16;
        message.address("other.test", "192.0.2.1");
        message.bytes[usize::from(here)..][..2].copy_from_slice(&(0xc000 | here).to_be_bytes());
        assert_eq!(addresses(&message), [""; 0]);
    }

    #[test]
    fn host_names_have_a_wire_form() {
        assert_eq!(wire_name("Gw.test").unwrap()[..9], *b"\x02gw\x04test\0");
        let label = "a".repeat(63);
        let longest = [label.as_str(), &label, &label, &label[..61]].join(".");
        assert!(wire_name(&longest).is_some());
        for bad in [
            "",
            ".",
            "a..b",
            "a.",
            &"a".repeat(64),
            &format!("{longest}a"),
        ] {
            assert_eq!(wire_name(bad), None, "{bad}");
        }
    }

    #[test]
    fn datagrams_of_a_name_server_are_told_from_the_rest() {
        let parse = |packet: &[u8]| FromNameServer::parse(|at| packet.get(at as usize).copied());
        let mut v4 = vec![0; 36];
        (v4[0], v4[9], v4[25]) = (0x46, 17, 53);
        let found = FromNameServer {
            family: Family::V4,
            payload_offset: 32,
        };
        assert_eq!(parse(&v4), Some(found));
        v4[9] = 6;
        assert_eq!(parse(&v4), None);
        let mut v6 = vec![0; 48];
        (v6[0], v6[6], v6[41]) = (0x60, 17, 53);
        let found = FromNameServer {
            family: Family::V6,
            payload_offset: 48,
        };
        assert_eq!(parse(&v6), Some(found));
        v6[40] = 1;
        assert_eq!(parse(&v6), None);
        assert_eq!(parse(&[]), None);
    }

    fn host() -> impl Strategy<Value = String> {
        prop::sample::select(vec![
            "a.test",
            "b.a.test",
            "A.TEST",
            "test",
            "cdn.example",
            "x.cdn.example",
        ])
        .prop_map(str::to_owned)
    }

    #[derive(Clone, Debug)]
    enum Record {
        V4(String, [u8; 4]),
        V6(String, [u8; 16]),
        Alias(String, String),
        Other(String, Vec<u8>),
    }

    fn record() -> impl Strategy<Value = Record> {
        prop_oneof![
            (host(), any::<[u8; 4]>()).prop_map(|(owner, addr)| Record::V4(owner, addr)),
            (host(), any::<[u8; 16]>()).prop_map(|(owner, addr)| Record::V6(owner, addr)),
            (host(), host()).prop_map(|(owner, target)| Record::Alias(owner, target)),
            (host(), prop::collection::vec(any::<u8>(), 0..20))
                .prop_map(|(owner, data)| Record::Other(owner, data)),
        ]
    }

    proptest! {
        /// Whatever records there are, in whatever order: found is what a chain from the question leads to.
        #[test]
        fn exactly_the_chain_is_found(
            question in host(),
            records in prop::collection::vec(record(), 1..12),
            compress in any::<bool>(),
        ) {
            let mut message = Message::about(&question, TYPE_A, compress);
            let mut name = question.to_ascii_lowercase();
            let mut expected = Vec::new();
            for record in &records {
                match record {
                    Record::V4(owner, addr) => {
                        let addr = IpAddr::from(Ipv4Addr::from(*addr));
                        message.address(owner, &addr.to_string());
                        expected.extend(owner.eq_ignore_ascii_case(&name).then_some(addr));
                    }
                    Record::V6(owner, addr) => {
                        let addr = IpAddr::from(Ipv6Addr::from(*addr));
                        message.address(owner, &addr.to_string());
                        expected.extend(owner.eq_ignore_ascii_case(&name).then_some(addr));
                    }
                    Record::Alias(owner, target) => {
                        message.alias(owner, target);
                        if owner.eq_ignore_ascii_case(&name) {
                            name = target.to_ascii_lowercase();
                        }
                    }
                    Record::Other(owner, data) => {
                        message.record(owner, 16, |m| m.bytes.extend(data));
                    }
                }
            }
            let read = read(&message.bytes);
            prop_assert_eq!(read.question, wire_name(&question));
            prop_assert_eq!(read.addresses, expected);
        }

        /// Every walk ends, in any bytes: a step costs a byte of the message, a pointer, or a record.
        #[test]
        fn random_bytes_come_to_an_end(
            mut message in prop::collection::vec(any::<u8>(), 12..600),
            flags in any::<bool>(),
        ) {
            if flags {
                message[2..6].copy_from_slice(&[0x81, 0x80, 0, 1]);
            }
            read(&message);
        }
    }
}
