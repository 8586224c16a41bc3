//! Endpoints as operators write them, reduced to what identifies them.

use std::{fmt, net::IpAddr};

use shaper_common::Endpoint;
use url::{Host, Url};

/// A gateway's address as configured. Equal when they mean the same, however they were spelled (E6).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EndpointSpec {
    /// An address or a network, and a port.
    Literal(Endpoint),
    /// A name whose addresses are looked up while running.
    Name(HostPort),
}

/// A host name and port: lower case, without a final dot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPort {
    name: String,
    port: u16,
}

impl HostPort {
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn port(&self) -> u16 {
        self.port
    }
}

impl fmt::Display for HostPort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.port)
    }
}

impl fmt::Display for EndpointSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Literal(endpoint) => endpoint.fmt(f),
            Self::Name(host) => host.fmt(f),
        }
    }
}

/// What an operator should know about an endpoint that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointNote {
    /// Userinfo or a query was dropped (E7).
    CredentialsDropped,
    /// The address of a network had bits set behind its prefix.
    HostBitsDropped,
    /// The network is every address of its family.
    Everything,
}

/// Why a string is no endpoint. Never holds the string, which may hold a credential (E7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndpointError {
    #[error("is empty")]
    Empty,
    #[error("contains white space or control characters")]
    WhiteSpace,
    #[error("has no port")]
    NoPort,
    #[error("has an invalid port")]
    InvalidPort,
    #[error("has a scheme other than http and https")]
    Scheme,
    #[error("is a URL with an address prefix")]
    NetworkInUrl,
    #[error("has an invalid prefix length")]
    InvalidPrefix,
    #[error("is an IPv6 address without brackets")]
    BareV6,
    #[error("has an invalid host")]
    InvalidHost,
    #[error("has an `@` behind its host")]
    AtBehindHost,
    #[error("names the unspecified address, which leads a client to its own host")]
    Unspecified,
    #[error("names an address that nothing can connect to")]
    Unconnectable,
}

impl EndpointError {
    /// What would be right.
    pub fn remedy(self) -> &'static str {
        match self {
            Self::Empty => "the endpoint of a gateway, such as \"10.1.2.3:8000\"",
            Self::WhiteSpace => "one endpoint in each string",
            Self::NoPort => "add the port, such as :443, or write an http:// or https:// URL",
            Self::InvalidPort => "a port from 1 to 65535",
            Self::Scheme => "http://HOST, https://HOST or HOST:PORT",
            Self::NetworkInUrl => {
                "write a network without a scheme: \"10.1.0.0/16:443\" or \"[fd00::/8]:443\""
            }
            Self::InvalidPrefix => {
                "0 to 32 bits for IPv4, \"10.1.0.0/16:443\"; 0 to 128 for IPv6, \"[fd00::/8]:443\""
            }
            Self::BareV6 => "put the address in brackets: \"[fd00::1]:443\" or \"[fd00::/8]:443\"",
            Self::InvalidHost => {
                "a host name of letters, digits, `-`, `_` and dots, or an IP address"
            }
            Self::AtBehindHost => "write HOST:PORT alone: credentials and paths play no part",
            Self::Unspecified => {
                "write 127.0.0.1 or [::1]: clients that connect to 0.0.0.0 or [::] are in that lane, too"
            }
            Self::Unconnectable => "the address of a gateway, not a multicast or broadcast address",
        }
    }
}

impl EndpointSpec {
    /// Reads `host:port`, `address/prefix:port`, `[v6]:port`, `[v6/prefix]:port` or a URL reduced to one of these.
    /// Userinfo, path, query and fragment are dropped and kept nowhere.
    ///
    /// # Errors
    /// [`EndpointError`], which does not repeat the text.
    pub fn parse(text: &str) -> Result<(Self, Vec<EndpointNote>), EndpointError> {
        if text.is_empty() {
            return Err(EndpointError::Empty);
        }
        // The URL standard strips or removes some of these without a word.
        if text.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(EndpointError::WhiteSpace);
        }
        if text.contains("://") {
            return parse_url(text);
        }
        if let Some(network) = Network::split(text) {
            return network.parse();
        }
        parse_authority(text)
    }
}

/// The parts of `address/prefix:port` or `[address/prefix]:port`.
struct Network<'a> {
    addr: IpAddr,
    prefix: &'a str,
    port: Option<&'a str>,
}

impl<'a> Network<'a> {
    /// `None` if the text does not begin with an address and a slash.
    fn split(text: &'a str) -> Option<Self> {
        let (addr, rest) = text.split_once('/')?;
        if let Some(addr) = addr.strip_prefix('[') {
            let (prefix, rest) = rest.split_once(']')?;
            return Some(Self {
                addr: IpAddr::V6(addr.parse().ok()?),
                prefix,
                port: rest.strip_prefix(':'),
            });
        }
        let (prefix, port) = match rest.split_once(':') {
            Some((prefix, port)) => (prefix, Some(port)),
            None => (rest, None),
        };
        Some(Self {
            addr: addr.parse().ok()?,
            prefix,
            port,
        })
    }

    fn parse(self) -> Result<(EndpointSpec, Vec<EndpointNote>), EndpointError> {
        // `10.1.2.3/` is an address with a final slash, not a network.
        let port = self.port.ok_or(EndpointError::NoPort)?;
        let port = decimal(port).ok_or(EndpointError::InvalidPort)?;
        if port == 0 {
            return Err(EndpointError::InvalidPort);
        }
        let endpoint = decimal(self.prefix)
            .and_then(|prefix| Endpoint::new(self.addr, prefix, port))
            .ok_or(EndpointError::InvalidPrefix)?;
        if endpoint.is_host() {
            return literal(endpoint, Vec::new());
        }
        let mut notes = Vec::new();
        if endpoint.addr() != self.addr.to_canonical() {
            notes.push(EndpointNote::HostBitsDropped);
        }
        if endpoint.prefix() == 0 {
            notes.push(EndpointNote::Everything);
        }
        Ok((EndpointSpec::Literal(endpoint), notes))
    }
}

/// A number of digits alone: `str::parse` would take a sign as well.
fn decimal<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| text.parse().ok())?
}

/// `http://` and `https://` URLs.
fn parse_url(text: &str) -> Result<(EndpointSpec, Vec<EndpointNote>), EndpointError> {
    let url = Url::parse(text).map_err(url_error)?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(EndpointError::Scheme);
    }
    let port = url.port_or_known_default().ok_or(EndpointError::NoPort)?;
    let host = url.host_str().ok_or(EndpointError::InvalidHost)?;
    // `http://10.1.0.0/16:443` parses as port 80 of one address, which nobody means.
    let is_address = matches!(url.host(), Some(Host::Ipv4(_) | Host::Ipv6(_)));
    if is_address && url.path().as_bytes().get(1).is_some_and(u8::is_ascii_digit) {
        return Err(EndpointError::NetworkInUrl);
    }
    reduce(&url, host, port)
}

/// `host:port` without a scheme, which may still carry userinfo or a path.
fn parse_authority(text: &str) -> Result<(EndpointSpec, Vec<EndpointNote>), EndpointError> {
    if text.parse::<IpAddr>().is_ok_and(|addr| addr.is_ipv6()) {
        return Err(EndpointError::BareV6);
    }
    // A scheme without a default port, so that the port has to be there.
    let url = Url::parse(&format!("tcp://{text}")).map_err(|error| match url_error(error) {
        // The port began at the first colon of several: an IPv6 address.
        EndpointError::InvalidPort if is_bare_v6(text) => EndpointError::BareV6,
        error => error,
    })?;
    let host = url.host_str().ok_or(EndpointError::InvalidHost)?;
    let port = url.port().ok_or(EndpointError::NoPort)?;
    reduce(&url, host, port)
}

/// Whether an address stands before the last colon.
fn is_bare_v6(text: &str) -> bool {
    text.rsplit_once(':')
        .and_then(|(addr, _)| addr.split('/').next())
        .is_some_and(|addr| addr.parse::<IpAddr>().is_ok_and(|addr| addr.is_ipv6()))
}

/// Host and port of a URL; the rest of it ends here.
fn reduce(
    url: &Url,
    host: &str,
    port: u16,
) -> Result<(EndpointSpec, Vec<EndpointNote>), EndpointError> {
    // A password with an unescaped `/`, `?` or `#` ends the host early: what looks like the host is then the user's name.
    if url[url::Position::BeforePath..].contains('@') {
        return Err(EndpointError::AtBehindHost);
    }
    if port == 0 {
        return Err(EndpointError::InvalidPort);
    }
    let mut notes = Vec::new();
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
        notes.push(EndpointNote::CredentialsDropped);
    }
    match Host::parse(host).map_err(url_error)? {
        Host::Ipv4(addr) => literal(Endpoint::host(addr.into(), port), notes),
        Host::Ipv6(addr) => literal(Endpoint::host(addr.into(), port), notes),
        Host::Domain(name) => {
            let name = name.strip_suffix('.').unwrap_or(&name);
            if !is_host_name(name) {
                return Err(EndpointError::InvalidHost);
            }
            let name = name.to_owned();
            Ok((EndpointSpec::Name(HostPort { name, port }), notes))
        }
    }
}

/// A single address, if something can be connected to it.
fn literal(
    endpoint: Endpoint,
    notes: Vec<EndpointNote>,
) -> Result<(EndpointSpec, Vec<EndpointNote>), EndpointError> {
    let addr = endpoint.addr();
    let is_broadcast = matches!(addr, IpAddr::V4(v4) if v4.is_broadcast());
    if addr.is_unspecified() {
        return Err(EndpointError::Unspecified);
    }
    if addr.is_multicast() || is_broadcast {
        return Err(EndpointError::Unconnectable);
    }
    Ok((EndpointSpec::Literal(endpoint), notes))
}

/// The limits of RFC 1035, 2.3.4; with the underscore that many private zones use.
fn is_host_name(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

fn url_error(error: url::ParseError) -> EndpointError {
    match error {
        url::ParseError::InvalidPort => EndpointError::InvalidPort,
        url::ParseError::RelativeUrlWithoutBase => EndpointError::Scheme,
        _ => EndpointError::InvalidHost,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        match EndpointSpec::parse(text) {
            Ok((spec, _)) => spec.to_string(),
            Err(error) => format!("{error:?}"),
        }
    }

    /// E6: spellings of an endpoint are one endpoint. E7: what may be a credential is not part of it.
    #[test]
    fn spellings_of_one_endpoint_are_one_endpoint() {
        let groups: &[(&str, &[&str])] = &[
            (
                "gateway.internal:443",
                &[
                    "gateway.internal:443",
                    "GATEWAY.Internal:443",
                    "gateway.internal.:443",
                    "gateway.internal:443/",
                    "gateway.internal:443/v1/",
                    "https://gateway.internal",
                    "https://gateway.internal/",
                    "HTTPS://Gateway.Internal.:443/v1?api_key=sk-secret#x",
                    "https://user:sk-secret@gateway.internal/v1",
                    "user:sk-secret@gateway.internal:443",
                    "http://gateway.internal:443",
                ],
            ),
            (
                "10.1.2.3:80",
                &[
                    "10.1.2.3:80",
                    "10.1.2.3:080",
                    "10.1.2.3/32:80",
                    "http://10.1.2.3",
                    "http://10.1.2.3/v1",
                    "[::ffff:10.1.2.3]:80",
                    "[::ffff:10.1.2.3/128]:80",
                    "http://[::ffff:10.1.2.3]/",
                ],
            ),
            (
                "10.1.0.0/16:443",
                &[
                    "10.1.0.0/16:443",
                    "10.1.2.3/16:443",
                    "[::ffff:10.1.0.0/112]:443",
                ],
            ),
            (
                "[fd00::/8]:443",
                &["[fd00::/8]:443", "[FD00:0::/8]:443", "fd00::/8:443"],
            ),
            (
                "[fd00::1]:443",
                &["[fd00::1]:443", "https://[FD00::0:1]/", "[fd00::1/128]:443"],
            ),
            (
                "xn--bcher-kva.example:443",
                &["https://bücher.example", "Bücher.example:443"],
            ),
        ];
        for (canonical, spellings) in groups {
            for spelling in *spellings {
                assert_eq!(shown(spelling), *canonical, "{spelling}");
            }
        }
    }

    #[test]
    fn what_is_no_endpoint_says_why() {
        let cases = [
            ("", "Empty"),
            ("gateway.internal", "NoPort"),
            ("10.1.2.3", "NoPort"),
            ("10.1.2.3/", "NoPort"),
            ("10.1.0.0/16", "NoPort"),
            ("gateway.internal:", "NoPort"),
            ("gateway.internal:0", "InvalidPort"),
            ("gateway.internal:65536", "InvalidPort"),
            ("gateway.internal:https", "InvalidPort"),
            ("gateway.internal:-1", "InvalidPort"),
            ("10.1.0.0/16:0", "InvalidPort"),
            ("10.1.0.0/16:x", "InvalidPort"),
            ("10.1.0.0/16:+443", "InvalidPort"),
            ("10.1.0.0/33:443", "InvalidPrefix"),
            ("10.1.0.0/x:443", "InvalidPrefix"),
            ("[fd00::/129]:443", "InvalidPrefix"),
            ("fd00::1", "BareV6"),
            ("fd00:1:2:3:4:5:6:7:443", "BareV6"),
            ("fd00::1:https", "BareV6"),
            ("[fd00::1]", "NoPort"),
            ("[fd00::1:443", "InvalidHost"),
            ("[fe80::1%eth0]:443", "InvalidHost"),
            ("999.1.1.1:443", "InvalidHost"),
            ("-x.example:443", "InvalidHost"),
            ("a..example:443", "InvalidHost"),
            ("$GATEWAY:443", "InvalidHost"),
            ("*.example:443", "InvalidHost"),
            (":443", "InvalidHost"),
            ("https://", "InvalidHost"),
            ("ftp://gateway.internal", "Scheme"),
            ("://gateway.internal", "Scheme"),
            ("http://10.1.0.0/16:443", "NetworkInUrl"),
            ("http://user:12/34@gateway.internal/", "AtBehindHost"),
            ("http://user:1?2@gateway.internal/", "AtBehindHost"),
            ("a.example:443 b.example:443", "WhiteSpace"),
            ("0.0.0.0:443", "Unspecified"),
            ("[::]:443", "Unspecified"),
            ("224.0.0.1:443", "Unconnectable"),
            ("255.255.255.255/32:443", "Unconnectable"),
        ];
        for (text, error) in cases {
            assert_eq!(shown(text), error, "{text:?}");
        }
    }

    #[test]
    fn what_was_dropped_is_noted() {
        let notes = |text| EndpointSpec::parse(text).unwrap().1;
        use EndpointNote::*;
        assert_eq!(notes("https://key@gateway.internal/"), [CredentialsDropped]);
        assert_eq!(
            notes("https://gateway.internal/?key=1"),
            [CredentialsDropped]
        );
        assert_eq!(notes("10.1.2.3/16:443"), [HostBitsDropped]);
        assert_eq!(notes("0.0.0.0/0:443"), [Everything]);
        assert_eq!(notes("https://gateway.internal/v1"), []);
        assert_eq!(notes("[::ffff:10.1.0.0/112]:443"), []);
    }
}
