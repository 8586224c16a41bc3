//! Following what processes resolve: which names the kernel looks for in the answers of name servers, and what it has
//! learnt from them.
//!
//! The kernel gives a new address to its lane before the process that asked has seen it. Here it is taken into the same
//! bookkeeping as the controller's own look-ups ([`Resolver`](crate::config::resolve::Resolver)), which keeps it as long as
//! answers have it, and longer.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::IpAddr,
};

use shaper_common::{Endpoint, EndpointKey, Followed, MAX_TARGETS, Target, WireName, wire_name};
use tracing::{info, warn};

use super::Controller;
use crate::{
    config::{EndpointSpec, resolve::KEEP},
    kernel::{self, NetnsCookie},
    policy::Ns,
};

/// Addresses of one name that are learnt from answers; those of the controller's own look-ups come on top.
const MAX_ADDRESSES: u32 = 128;

/// Where the host's name servers are written (resolv.conf(5)).
const RESOLV_CONF: &str = "/etc/resolv.conf";

/// What answers said: addresses by host name.
pub type Answers = BTreeMap<String, Vec<IpAddr>>;

/// The followed names.
#[derive(Debug, Default)]
pub struct Following {
    names: BTreeMap<String, Name>,
    /// The number of the next name. None is given twice, so that an address learnt of a name that is gone is told.
    next: u32,
    /// As the kernel has them.
    servers: BTreeSet<IpAddr>,
    /// Until when answers have been passed on.
    heard: Ns,
}

#[derive(Debug)]
struct Name {
    number: u32,
    wire: WireName,
    targets: [Target; MAX_TARGETS],
    /// Addresses learnt, when last counted.
    learnt: u32,
}

impl Name {
    fn followed(&self) -> Followed {
        Followed {
            name: self.number,
            room: MAX_ADDRESSES.saturating_sub(self.learnt),
            targets: self.targets,
        }
    }
}

impl Controller {
    /// Has the kernel follow exactly the names of the lanes in force; none unless the settings say so.
    pub(super) fn follow_names(&mut self) {
        let mut wanted = self.wanted_names();
        if !wanted.is_empty()
            && let Err(error) = self.believe_own_netns()
        {
            warn!(%error, "answers of name servers are not followed");
            wanted.clear();
        }
        if wanted.is_empty() {
            self.tables.globals().dns_netns.store(0);
        }
        let gone: Vec<_> = self
            .following
            .names
            .iter()
            .filter(|(host, name)| wanted.get(*host) != Some(&name.targets))
            .map(|(host, _)| host.clone())
            .collect();
        for host in gone {
            if let Some(name) = self.following.names.remove(&host) {
                self.unfollow(&name);
            }
        }
        for (host, targets) in wanted {
            if self.following.names.contains_key(&host) {
                continue;
            }
            let Some(wire) = wire_name(&host) else {
                continue;
            };
            let name = Name {
                number: self.following.next,
                wire,
                targets,
                learnt: 0,
            };
            self.following.next = self.following.next.wrapping_add(1);
            match self.tables.follow(&name.wire, name.followed()) {
                Ok(()) => drop(self.following.names.insert(host, name)),
                Err(error) => {
                    warn!(name = host, %error, "answers for a lane's host name are not followed")
                }
            }
        }
        self.refresh_name_servers();
    }

    /// The names in the lanes' endpoints, and where their addresses belong.
    fn wanted_names(&self) -> BTreeMap<String, [Target; MAX_TARGETS]> {
        let mut wanted = BTreeMap::new();
        if !self.loaded.settings.follow_dns {
            return wanted;
        }
        for (id, lane) in self.lanes.iter() {
            for spec in &lane.config.endpoints {
                let EndpointSpec::Name(host) = spec else {
                    continue;
                };
                let targets = wanted
                    .entry(host.name().to_owned())
                    .or_insert([Target::NONE; MAX_TARGETS]);
                match targets.iter_mut().find(|target| **target == Target::NONE) {
                    Some(free) => {
                        *free = Target {
                            lane: u32::from(id.0),
                            port: host.port().to_be_bytes(),
                            reserved: [0; 2],
                        }
                    }
                    None => warn!(
                        name = host.name(),
                        port = host.port(),
                        "answers are followed for {MAX_TARGETS} ports of a name; this one is looked up on the timer alone"
                    ),
                }
            }
        }
        wanted
    }

    /// In this namespace nobody without privileges can send in a name server's name.
    fn believe_own_netns(&mut self) -> std::io::Result<()> {
        let NetnsCookie(cookie) = kernel::own_netns()?;
        self.tables.globals().dns_netns.store(cookie);
        Ok(())
    }

    /// The kernel learns nothing more of the name. What it has given to lanes goes with the name, unless the lanes have
    /// taken it over, which know themselves when it goes.
    fn unfollow(&mut self, name: &Name) {
        self.tables.unfollow(&name.wire);
        for (key, _) in self.tables.learnt() {
            if key.name != name.number {
                continue;
            }
            self.tables.forget_learnt(&key);
            let addr = IpAddr::from(key.addr);
            for target in name
                .targets
                .iter()
                .filter(|target| **target != Target::NONE)
            {
                let endpoint = Endpoint::host(addr, u16::from_be_bytes(target.port));
                let is_ours = self.tables.lane_of(&endpoint) == Some(target.lane);
                if is_ours && !self.lanes.has_endpoint(&endpoint) {
                    // Absent: a network of the lane has it.
                    let _ = self.tables.remove_endpoint(&endpoint);
                }
            }
        }
    }

    /// Passes on what has been learnt since the last time, and forgets what no answer has had for [`KEEP`].
    pub(super) fn hear_answers(&mut self, now: Ns) {
        if self.following.names.is_empty() {
            return;
        }
        self.refresh_name_servers();
        let hosts: BTreeMap<u32, &str> = self
            .following
            .names
            .iter()
            .map(|(host, name)| (name.number, host.as_str()))
            .collect();
        let (mut answers, mut learnt) = (Answers::new(), BTreeMap::<u32, u32>::new());
        for (key, seen) in self.tables.learnt() {
            let Some(host) = hosts.get(&key.name) else {
                self.tables.forget_learnt(&key);
                continue;
            };
            if now.since(seen) > KEEP {
                self.tables.forget_learnt(&key);
                continue;
            }
            *learnt.entry(key.name).or_default() += 1;
            if seen >= self.following.heard {
                let addr = IpAddr::from(key.addr).to_canonical();
                answers.entry((*host).to_owned()).or_default().push(addr);
            }
        }
        // If the names' task is still busy with what came before, the next round tells it all.
        if answers.is_empty() || self.answers.try_send(answers).is_ok() {
            self.following.heard = now;
        }
        self.count_learnt(&learnt);
    }

    /// Tells the kernel how much room there is for each name, changed or not: it only counts down, and for an address that
    /// its table had no place for, too.
    fn count_learnt(&mut self, learnt: &BTreeMap<u32, u32>) {
        for (host, name) in &mut self.following.names {
            let count = learnt.get(&name.number).copied().unwrap_or(0);
            if count >= MAX_ADDRESSES && name.learnt < MAX_ADDRESSES {
                warn!(
                    name = host,
                    "answers have given the name {MAX_ADDRESSES} addresses: further ones are not governed before the \
                     controller's own look-up finds them"
                );
            }
            name.learnt = count;
            if let Err(error) = self.tables.follow(&name.wire, name.followed()) {
                warn!(name = host, %error, "answers for a lane's host name are not followed any more");
            }
        }
    }

    /// Has the kernel believe the name servers that the host has now.
    fn refresh_name_servers(&mut self) {
        let wanted = match self.following.names.is_empty() {
            true => BTreeSet::new(),
            false => name_servers(&fs::read_to_string(RESOLV_CONF).unwrap_or_default()),
        };
        if wanted == self.following.servers {
            return;
        }
        info!(servers = ?wanted, "answers of these name servers are followed");
        for server in self.following.servers.difference(&wanted) {
            self.tables.disbelieve(&mapped(*server));
        }
        for server in wanted.difference(&self.following.servers) {
            if let Err(error) = self.tables.believe(&mapped(*server)) {
                warn!(%server, %error, "the name server's answers are not followed");
            }
        }
        self.following.servers = wanted;
    }
}

fn mapped(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(v4) => EndpointKey::v4(v4.octets(), [0; 2]).addr,
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// The name servers that resolv.conf(5) says: the first three, or this host's if it says none.
fn name_servers(text: &str) -> BTreeSet<IpAddr> {
    /// `MAXNS` of resolv.h.
    const MOST: usize = 3;
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        let addr = words
            .next()
            .filter(|word| *word == "nameserver")
            .and(words.next())?;
        // The zone of a link-local address is not in packets.
        let (addr, _) = addr.split_once('%').unwrap_or((addr, ""));
        addr.parse::<IpAddr>().ok()
    };
    let servers: BTreeSet<IpAddr> = text.lines().filter_map(server).take(MOST).collect();
    if servers.is_empty() {
        return BTreeSet::from([IpAddr::from([127, 0, 0, 1])]);
    }
    servers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_servers_of_the_host_are_read_as_its_resolver_does() {
        let of = |text| {
            let servers = name_servers(text);
            servers.iter().map(IpAddr::to_string).collect::<Vec<_>>()
        };
        let usual = "# made by hand\nsearch example.test\nnameserver 10.0.0.2\n nameserver\tfe80::1%eth0 \nnameserver x\n";
        assert_eq!(of(usual), ["10.0.0.2", "fe80::1"]);
        let many =
            "nameserver 10.0.0.4\nnameserver 10.0.0.3\nnameserver 10.0.0.2\nnameserver 10.0.0.1\n";
        assert_eq!(of(many), ["10.0.0.2", "10.0.0.3", "10.0.0.4"]);
        assert_eq!(of("options edns0\n"), ["127.0.0.1"]);
        assert_eq!(of(""), ["127.0.0.1"]);
    }
}
