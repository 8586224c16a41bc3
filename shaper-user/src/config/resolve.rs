//! From host names to the addresses that a lane governs.
//!
//! Names of gateways change their addresses all the time, and clients keep using an address long after the name has
//! moved on: pooled connections, stale caches. So an address stays with its lane for [`KEEP`] after a look-up last
//! returned it, and longer while a connection uses it. A failed look-up changes nothing.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map},
    io,
    net::IpAddr,
    time::{Duration, Instant},
};

use shaper_common::Endpoint;

use super::{EndpointSpec, HostPort, LaneConfig};

/// How long an address stays after a look-up last returned it.
pub const KEEP: Duration = Duration::from_secs(60 * 60);

/// Longer than a resolver's own tries (glibc: two of 5 s), so that a stuck one does not stop the rest.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(15);

/// What is known of the names in a configuration. Pure bookkeeping but for [`lookup`].
#[derive(Debug, Default)]
pub struct Resolver {
    /// For each name its addresses, and when a look-up last returned them.
    names: BTreeMap<HostPort, BTreeMap<IpAddr, Instant>>,
}

impl Resolver {
    /// Learns which names there are: forgets those that no lane has any more, and keeps what is known of the rest.
    pub fn set_lanes(&mut self, lanes: &[LaneConfig]) {
        let mut known = std::mem::take(&mut self.names);
        for name in lanes
            .iter()
            .flat_map(|lane| &lane.endpoints)
            .filter_map(as_name)
        {
            let addresses = known.remove(name).unwrap_or_default();
            self.names.entry(name.clone()).or_insert(addresses);
        }
    }

    /// The names to look up.
    pub fn names(&self) -> impl Iterator<Item = &HostPort> {
        self.names.keys()
    }

    /// Takes the answer of a look-up: adds what is new and drops what has not been returned for [`KEEP`], unless
    /// `in_use` says that a connection still uses it. An answer for a name that no lane has any more is ignored.
    pub fn record(
        &mut self,
        now: Instant,
        name: &HostPort,
        answer: &[IpAddr],
        in_use: impl Fn(&Endpoint) -> bool,
    ) {
        let Some(addresses) = self.names.get_mut(name) else {
            return;
        };
        for addr in answer {
            addresses.insert(addr.to_canonical(), now);
        }
        addresses.retain(|addr, last_seen| {
            now.saturating_duration_since(*last_seen) < KEEP
                || in_use(&Endpoint::host(*addr, name.port()))
        });
    }

    /// Whether all of these addresses are known of the name.
    pub fn knows(&self, name: &HostPort, addresses: &[IpAddr]) -> bool {
        let known = self.names.get(name);
        known.is_some_and(|known| addresses.iter().all(|addr| known.contains_key(addr)))
    }

    /// The endpoints of one entry of a lane's list, as far as they are known.
    pub fn endpoints(&self, spec: &EndpointSpec) -> BTreeSet<Endpoint> {
        match spec {
            EndpointSpec::Literal(endpoint) => BTreeSet::from([*endpoint]),
            EndpointSpec::Name(name) => {
                let addresses = self.names.get(name).into_iter().flat_map(BTreeMap::keys);
                addresses
                    .map(|addr| Endpoint::host(*addr, name.port()))
                    .collect()
            }
        }
    }

    /// Which lane each endpoint belongs to. Where two lanes claim the same one, a literal address goes before a name,
    /// then the lane that comes first. An address inside another lane's network is no conflict: the kernel takes the
    /// longest match.
    pub fn assign(&self, lanes: &[LaneConfig]) -> Assignment {
        let mut assignment = Assignment::default();
        for literal in [true, false] {
            for (lane, config) in lanes.iter().enumerate() {
                for spec in config
                    .endpoints
                    .iter()
                    .filter(|spec| as_name(spec).is_none() == literal)
                {
                    for endpoint in self.endpoints(spec) {
                        assignment.claim(endpoint, lane, spec);
                    }
                }
            }
        }
        assignment
    }
}

/// Who has which endpoint.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// The index of each endpoint's lane.
    pub endpoints: BTreeMap<Endpoint, usize>,
    pub contested: Vec<Contested>,
}

/// An endpoint that two lanes claim: names that lead to one address, often that of a shared front end.
#[derive(Debug, PartialEq, Eq)]
pub struct Contested {
    pub endpoint: Endpoint,
    /// The index of the lane that has it.
    pub owner: usize,
    /// The index of the lane that wanted it too, and by which entry.
    pub loser: usize,
    pub claim: EndpointSpec,
}

impl Assignment {
    fn claim(&mut self, endpoint: Endpoint, lane: usize, spec: &EndpointSpec) {
        match self.endpoints.entry(endpoint) {
            btree_map::Entry::Vacant(free) => {
                free.insert(lane);
            }
            btree_map::Entry::Occupied(taken) if *taken.get() != lane => {
                self.contested.push(Contested {
                    endpoint,
                    owner: *taken.get(),
                    loser: lane,
                    claim: spec.clone(),
                })
            }
            btree_map::Entry::Occupied(_) => {}
        }
    }
}

fn as_name(spec: &EndpointSpec) -> Option<&HostPort> {
    match spec {
        EndpointSpec::Name(name) => Some(name),
        EndpointSpec::Literal(_) => None,
    }
}

/// Looks a name up with the system's resolver.
///
/// # Errors
/// What the resolver says, or that it took too long. An empty answer is an error as well.
pub async fn lookup(name: &HostPort) -> io::Result<Vec<IpAddr>> {
    let answer = tokio::time::timeout(
        LOOKUP_TIMEOUT,
        tokio::net::lookup_host((name.name(), name.port())),
    )
    .await
    .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the resolver did not answer"))??;
    let addresses: BTreeSet<_> = answer.map(|socket| socket.ip()).collect();
    if addresses.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the name has no address",
        ));
    }
    Ok(addresses.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Files, Origin, TextFile};

    const MINUTE: Duration = Duration::from_secs(60);

    fn lanes(files: &[(&str, &str)]) -> Vec<LaneConfig> {
        let lane = |(name, endpoints): &(&str, &str)| TextFile {
            path: format!("{name}.toml").into(),
            text: format!("endpoints = {endpoints}\nmax_inflight = 0"),
        };
        let files = Files {
            origin: Origin::Embedded,
            settings: None,
            lanes: files.iter().map(lane).collect(),
        };
        Config::parse(&files).unwrap().lanes
    }

    fn addrs(list: &[&str]) -> Vec<IpAddr> {
        list.iter().map(|addr| addr.parse().unwrap()).collect()
    }

    /// A resolver that knows one name, and the name.
    fn resolver() -> (Resolver, EndpointSpec, HostPort) {
        let lanes = lanes(&[("a", r#"["gateway.test:443"]"#)]);
        let mut resolver = Resolver::default();
        resolver.set_lanes(&lanes);
        let name = resolver.names().next().unwrap().clone();
        (resolver, lanes[0].endpoints[0].clone(), name)
    }

    fn shown(resolver: &Resolver, spec: &EndpointSpec) -> Vec<String> {
        resolver
            .endpoints(spec)
            .iter()
            .map(Endpoint::to_string)
            .collect()
    }

    #[test]
    fn an_old_address_stays_for_an_hour_after_it_was_last_returned() {
        // Minute of the look-up, its answer, and what the lane governs after it.
        let script: &[(u32, &[&str], &[&str])] = &[
            (0, &["192.0.2.1"], &["192.0.2.1:443"]),
            (1, &["192.0.2.2"], &["192.0.2.1:443", "192.0.2.2:443"]),
            (30, &["192.0.2.1"], &["192.0.2.1:443", "192.0.2.2:443"]),
            (60, &["192.0.2.1"], &["192.0.2.1:443", "192.0.2.2:443"]),
            (61, &["192.0.2.1"], &["192.0.2.1:443"]),
            (
                62,
                &["2001:db8::1", "::ffff:192.0.2.3"],
                &["192.0.2.1:443", "192.0.2.3:443", "[2001:db8::1]:443"],
            ),
            (121, &["192.0.2.3"], &["192.0.2.3:443", "[2001:db8::1]:443"]),
            (200, &["192.0.2.3"], &["192.0.2.3:443"]),
        ];
        let (mut resolver, spec, name) = resolver();
        let start = Instant::now();
        assert!(
            resolver.endpoints(&spec).is_empty(),
            "nothing is known before the first answer"
        );
        for (minute, answer, expected) in script {
            resolver.record(start + MINUTE * *minute, &name, &addrs(answer), |_| false);
            assert_eq!(shown(&resolver, &spec), *expected, "minute {minute}");
        }
    }

    #[test]
    fn an_address_in_use_stays_until_it_is_not() {
        let (mut resolver, spec, name) = resolver();
        let start = Instant::now();
        resolver.record(start, &name, &addrs(&["192.0.2.1"]), |_| false);
        resolver.record(
            start + MINUTE * 90,
            &name,
            &addrs(&["192.0.2.2"]),
            |endpoint| endpoint.to_string() == "192.0.2.1:443",
        );
        assert_eq!(shown(&resolver, &spec), ["192.0.2.1:443", "192.0.2.2:443"]);
        resolver.record(start + MINUTE * 91, &name, &addrs(&["192.0.2.2"]), |_| {
            false
        });
        assert_eq!(shown(&resolver, &spec), ["192.0.2.2:443"]);
    }

    /// A14: a reload keeps what is known of the names that stay, and forgets the others.
    #[test]
    fn a_reload_keeps_the_addresses_of_names_that_stay() {
        let (mut resolver, spec, name) = resolver();
        let now = Instant::now();
        resolver.record(now, &name, &addrs(&["192.0.2.1"]), |_| false);
        resolver.set_lanes(&lanes(&[(
            "b",
            r#"["https://GATEWAY.test/v1", "other.test:443"]"#,
        )]));
        assert_eq!(shown(&resolver, &spec), ["192.0.2.1:443"]);
        resolver.set_lanes(&[]);
        resolver.record(now, &name, &addrs(&["192.0.2.1"]), |_| false);
        assert!(
            resolver.endpoints(&spec).is_empty(),
            "a late answer for a forgotten name"
        );
    }

    #[test]
    fn an_endpoint_that_two_lanes_claim_goes_to_the_literal_then_to_the_first() {
        let lanes = lanes(&[
            ("a", r#"["one.test:443", "two.test:443"]"#),
            ("b", r#"["192.0.2.1:443", "three.test:443"]"#),
        ]);
        let mut resolver = Resolver::default();
        resolver.set_lanes(&lanes);
        let names: Vec<_> = resolver.names().cloned().collect();
        for (name, answer) in names
            .iter()
            .zip([["192.0.2.1"], ["192.0.2.2"], ["192.0.2.2"]])
        {
            resolver.record(Instant::now(), name, &addrs(&answer), |_| false);
        }
        // In the order of their names: one, three, two.
        let assignment = resolver.assign(&lanes);
        let owners: Vec<_> = assignment
            .endpoints
            .iter()
            .map(|(e, lane)| (e.to_string(), *lane))
            .collect();
        assert_eq!(
            owners,
            [
                ("192.0.2.1:443".to_owned(), 1),
                ("192.0.2.2:443".to_owned(), 0)
            ]
        );
        let contested: Vec<_> = assignment
            .contested
            .iter()
            .map(|c| (c.claim.to_string(), c.owner, c.loser))
            .collect();
        assert_eq!(
            contested,
            [
                ("one.test:443".to_owned(), 1, 0),
                ("three.test:443".to_owned(), 0, 1)
            ]
        );
    }

    #[tokio::test]
    async fn the_system_resolver_is_asked() {
        let spec = EndpointSpec::parse("localhost:443").unwrap().0;
        let found = lookup(as_name(&spec).unwrap()).await.unwrap();
        assert!(found.iter().all(IpAddr::is_loopback), "{found:?}");
    }
}
