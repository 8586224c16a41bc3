//! Endpoints of gateways as keys of one longest-prefix-match trie.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bits of the key before the address: the port and two reserved bytes. Always matched in full.
pub const PORT_BITS: u32 = 32;

/// The data of a trie key: network byte order, so that a prefix of the bytes is a prefix of the network.
///
/// IPv4 addresses are stored as IPv4-mapped IPv6 addresses (RFC 4291, 2.5.5.2): a v6 socket connected to
/// `::ffff:10.0.0.1` finds the lane of `10.0.0.1` without a second lookup.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct EndpointKey {
    /// Port in network byte order.
    pub port: [u8; 2],
    pub reserved: [u8; 2],
    /// IPv6 or IPv4-mapped address in network byte order.
    pub addr: [u8; 16],
}

const _: () = assert!(size_of::<EndpointKey>() == 20);

impl EndpointKey {
    #[inline(always)]
    pub const fn v6(addr: [u8; 16], port: [u8; 2]) -> Self {
        Self {
            port,
            reserved: [0; 2],
            addr,
        }
    }

    #[inline(always)]
    pub const fn v4(v4: [u8; 4], port: [u8; 2]) -> Self {
        let mut addr = [0; 16];
        addr[10] = 0xff;
        addr[11] = 0xff;
        addr[12] = v4[0];
        addr[13] = v4[1];
        addr[14] = v4[2];
        addr[15] = v4[3];
        Self::v6(addr, port)
    }

    /// Bits of a key that must match in full for a single address.
    pub const FULL: u32 = PORT_BITS + 128;
}

/// One network and port of a gateway, in canonical form: host bits zero, IPv4-mapped addresses as IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    addr: IpAddr,
    prefix: u8,
    port: u16,
}

impl Endpoint {
    /// The network of `prefix` bits around `addr`. `None` if the prefix is longer than the address.
    pub fn new(addr: IpAddr, prefix: u8, port: u16) -> Option<Self> {
        let (addr, prefix) = match addr {
            IpAddr::V4(_) => (addr, prefix),
            IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
                Some(v4) if prefix >= 96 => (IpAddr::V4(v4), prefix - 96),
                _ => (addr, prefix),
            },
        };
        let addr = match addr {
            IpAddr::V4(v4) if prefix <= 32 => {
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
                IpAddr::V4(Ipv4Addr::from_bits(v4.to_bits() & mask))
            }
            IpAddr::V6(v6) if prefix <= 128 => {
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
                IpAddr::V6(Ipv6Addr::from_bits(v6.to_bits() & mask))
            }
            _ => return None,
        };
        Some(Self { addr, prefix, port })
    }

    /// A single address.
    pub fn host(addr: IpAddr, port: u16) -> Self {
        let addr = addr.to_canonical();
        let prefix = if addr.is_ipv4() { 32 } else { 128 };
        Self { addr, prefix, port }
    }

    pub fn addr(&self) -> IpAddr {
        self.addr
    }

    pub fn prefix(&self) -> u8 {
        self.prefix
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn is_host(&self) -> bool {
        self.prefix == if self.addr.is_ipv4() { 32 } else { 128 }
    }

    /// Whether some address and port belong to both.
    pub fn overlaps(&self, other: &Self) -> bool {
        let (mine, others) = (self.trie_key(), other.trie_key());
        if mine.1.port != others.1.port {
            return false;
        }
        let bits = mine.0.min(others.0) - PORT_BITS;
        let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
        (u128::from_be_bytes(mine.1.addr) ^ u128::from_be_bytes(others.1.addr)) & mask == 0
    }

    /// The endpoint behind a trie key; `None` if no endpoint has it.
    pub fn from_trie_key(bits: u32, key: EndpointKey) -> Option<Self> {
        let prefix = u8::try_from(bits.checked_sub(PORT_BITS)?).ok()?;
        let addr = Ipv6Addr::from(key.addr);
        Self::new(addr.into(), prefix, u16::from_be_bytes(key.port))
    }

    /// The trie key: number of leading bits that must match, and the bytes.
    pub fn trie_key(&self) -> (u32, EndpointKey) {
        let port = self.port.to_be_bytes();
        match self.addr {
            IpAddr::V4(v4) => (
                PORT_BITS + 96 + u32::from(self.prefix),
                EndpointKey::v4(v4.octets(), port),
            ),
            IpAddr::V6(v6) => (
                PORT_BITS + u32::from(self.prefix),
                EndpointKey::v6(v6.octets(), port),
            ),
        }
    }
}

impl core::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let Self { addr, prefix, port } = self;
        match (addr, self.is_host()) {
            (IpAddr::V4(v4), true) => write!(f, "{v4}:{port}"),
            (IpAddr::V4(v4), false) => write!(f, "{v4}/{prefix}:{port}"),
            (IpAddr::V6(v6), true) => write!(f, "[{v6}]:{port}"),
            (IpAddr::V6(v6), false) => write!(f, "[{v6}/{prefix}]:{port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(addr: &str, prefix: u8, port: u16) -> Endpoint {
        Endpoint::new(addr.parse().unwrap(), prefix, port).unwrap()
    }

    /// E6: spellings of one endpoint are one endpoint.
    #[test]
    fn mapped_addresses_and_host_bits_are_canonical() {
        assert_eq!(
            endpoint("::ffff:10.1.2.3", 128, 80),
            endpoint("10.1.2.3", 32, 80)
        );
        assert_eq!(endpoint("10.1.2.3", 8, 80), endpoint("10.9.9.9", 8, 80));
        assert_eq!(endpoint("::", 0, 1).trie_key().0, PORT_BITS);
        assert!(Endpoint::new("10.0.0.1".parse().unwrap(), 33, 1).is_none());
        assert_eq!(
            endpoint("10.1.2.3", 32, 80),
            Endpoint::host("::ffff:10.1.2.3".parse().unwrap(), 80)
        );
    }

    /// E5: what is in the kernel's trie is recognised by the next controller.
    #[test]
    fn a_trie_key_leads_back_to_its_endpoint() {
        for (addr, prefix) in [
            ("10.1.2.3", 32),
            ("10.1.0.0", 16),
            ("0.0.0.0", 0),
            ("fd00::", 8),
            ("fd00::1", 128),
            ("::", 0),
        ] {
            let endpoint = endpoint(addr, prefix, 443);
            let (bits, key) = endpoint.trie_key();
            assert_eq!(Endpoint::from_trie_key(bits, key), Some(endpoint));
        }
        let (_, key) = endpoint("10.1.2.3", 32, 443).trie_key();
        assert_eq!(Endpoint::from_trie_key(PORT_BITS - 1, key), None);
    }

    #[test]
    fn overlap_needs_a_common_address_and_the_same_port() {
        let net = endpoint("10.1.0.0", 16, 443);
        assert!(net.overlaps(&endpoint("10.1.9.9", 32, 443)));
        assert!(endpoint("10.1.9.9", 32, 443).overlaps(&net));
        assert!(!net.overlaps(&endpoint("10.1.9.9", 32, 80)));
        assert!(!net.overlaps(&endpoint("10.2.0.0", 16, 443)));
        assert!(endpoint("0.0.0.0", 0, 443).overlaps(&net));
        assert!(!endpoint("0.0.0.0", 0, 443).overlaps(&endpoint("fd00::", 8, 443)));
    }

    #[test]
    fn endpoints_print_as_they_are_written() {
        assert_eq!(endpoint("10.1.0.0", 16, 443).to_string(), "10.1.0.0/16:443");
        assert_eq!(endpoint("fd00::1", 128, 443).to_string(), "[fd00::1]:443");
        assert_eq!(endpoint("fd00::", 8, 443).to_string(), "[fd00::/8]:443");
    }
}
