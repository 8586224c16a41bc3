//! Where the columns are measured: namespaces, a gateway, and each way to it side by side.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use shaper_tests::{
    controller::Controller,
    lane_file::LaneFile,
    netns::{Netns, VethPair},
    stage::Stage,
};

use crate::{
    gateway::{self, Gateway},
    haproxy::{Forward, Haproxy},
    nfqueue::Nfqueue,
    order::Order,
    progress::Progress,
    worker::Worker,
};

/// The gateway's port that a lane is for, and the one that none is for.
const LANE_PORT: u16 = 8001;
const PLAIN_PORT: u16 = 8002;

/// More than any benchmark has in flight: the lane is unsaturated, HAProxy queues nobody.
const AMPLE: usize = 1000;

/// What lies between client and gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    Loopback,
    Veth,
}

impl Medium {
    pub const ALL: [Self; 2] = [Self::Loopback, Self::Veth];

    pub fn name(self) -> &'static str {
        match self {
            Self::Loopback => "loopback",
            Self::Veth => "a veth pair",
        }
    }

    /// Where HAProxy listens for those who want the gateway at the other end. It is a sidecar: always on loopback.
    fn haproxy(self) -> SocketAddr {
        let port = match self {
            Self::Loopback => 8003,
            Self::Veth => 8004,
        };
        (Ipv4Addr::LOCALHOST, port).into()
    }

    fn gateway(self, pair: &VethPair) -> (&Netns, IpAddr) {
        match self {
            Self::Loopback => (&pair.client, Ipv4Addr::LOCALHOST.into()),
            Self::Veth => (&pair.gateway, pair.gateway.v4.into()),
        }
    }
}

/// A way from a client to the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In no class: no program of shaper sees it.
    Outside,
    /// In a class, to an address of no lane.
    NoLane,
    /// Through a lane with slots to spare.
    Lane,
    /// Through HAProxy with connections to spare.
    Haproxy,
    /// With a verdict from userspace on the SYN.
    Nfqueue,
}

impl Way {
    /// The first is what the others are compared with.
    pub const ALL: [Self; 5] = [
        Self::Outside,
        Self::NoLane,
        Self::Lane,
        Self::Haproxy,
        Self::Nfqueue,
    ];

    /// Its place in [`Way::ALL`].
    pub fn index(self) -> usize {
        self as usize
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Outside => "outside",
            Self::NoLane => "in a class, no lane",
            Self::Lane => "through a lane",
            Self::Haproxy => "HAProxy, TCP mode",
            Self::Nfqueue => "NFQUEUE on the SYN",
        }
    }
}

/// Everything the columns need, up and running. What is used by others is dropped after them.
pub struct Venue {
    outside: Worker,
    in_class: Worker,
    judged: Option<Judged>,
    controller: Controller,
    _haproxy: Option<Haproxy>,
    _gateway: Gateway,
    pair: VethPair,
    stage: Stage,
}

/// What [`Way::Nfqueue`] needs: namespaces of its own, because the others' packets must not pass netfilter.
struct Judged {
    worker: Worker,
    _nfqueue: Nfqueue,
    pair: VethPair,
}

impl Venue {
    /// Prepares these ways, and those that need no peer.
    pub fn set(ways: &[Way]) -> Result<Self> {
        let stage = Stage::set()?;
        let pair = VethPair::create()?;
        let judged_pair = match ways.contains(&Way::Nfqueue) {
            true => Some(VethPair::create()?),
            false => None,
        };
        let mut listeners = Vec::new();
        for medium in Medium::ALL {
            let judged = judged_pair.as_ref().map(|pair| (pair, PLAIN_PORT));
            for (pair, port) in [(&pair, LANE_PORT), (&pair, PLAIN_PORT)]
                .into_iter()
                .chain(judged)
            {
                let (netns, ip) = medium.gateway(pair);
                listeners.push(gateway::listener(netns, (ip, port).into())?);
            }
        }
        let gateway = Gateway::start(listeners)?;
        let at = |medium: Medium, port| SocketAddr::new(medium.gateway(&pair).1, port);
        let haproxy = match ways.contains(&Way::Haproxy) {
            true => {
                let forwards = Medium::ALL.map(|medium| Forward {
                    from: medium.haproxy(),
                    to: at(medium, PLAIN_PORT),
                    limit: AMPLE,
                });
                Some(Haproxy::start(Some(&pair.client), &forwards)?)
            }
            false => None,
        };
        let judged = match judged_pair {
            Some(pair) => Some(Judged {
                _nfqueue: Nfqueue::start(&pair.client, PLAIN_PORT)?,
                worker: Worker::start(&stage.outside, &pair.client)?,
                pair,
            }),
            None => None,
        };
        let lane = LaneFile::over(&Medium::ALL.map(|medium| at(medium, LANE_PORT)))
            .limit(AMPLE)
            .queue(AMPLE);
        let controller = Controller::builder(&stage)?.lane("bench", lane)?.start()?;
        Ok(Self {
            outside: Worker::start(&stage.outside, &pair.client)?,
            in_class: Worker::start(&stage.default, &pair.client)?,
            judged,
            controller,
            _haproxy: haproxy,
            _gateway: gateway,
            pair,
            stage,
        })
    }

    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    pub fn controller(&self) -> &Controller {
        &self.controller
    }

    /// Measures all ways in turn over one medium, `count` times, and once before to warm caches and tables up.
    ///
    /// # Errors
    /// What `round` says.
    pub fn rounds<T>(
        &mut self,
        progress: &Progress,
        medium: Medium,
        count: usize,
        round: impl Fn(&mut Self, Medium, Way) -> Result<T>,
    ) -> Result<[Vec<T>; Way::ALL.len()]> {
        for way in Way::ALL {
            round(self, medium, way)?;
        }
        let mut rounds: [Vec<T>; Way::ALL.len()] = Default::default();
        for _ in 0..count {
            progress.step(medium.name());
            for (way, rounds) in Way::ALL.into_iter().zip(&mut rounds) {
                rounds.push(round(self, medium, way)?);
            }
        }
        Ok(rounds)
    }

    /// Has the client of `way` do something with the gateway at the other end of `medium`.
    ///
    /// # Errors
    /// What the client could not do, or that the way was not prepared.
    pub fn ask(
        &mut self,
        medium: Medium,
        way: Way,
        order: impl FnOnce(SocketAddr) -> Order,
    ) -> Result<Vec<u64>> {
        let plain = |pair| SocketAddr::new(medium.gateway(pair).1, PLAIN_PORT);
        let (worker, to) = match way {
            Way::Outside => (&mut self.outside, plain(&self.pair)),
            Way::NoLane => (&mut self.in_class, plain(&self.pair)),
            Way::Lane => {
                let gateway = medium.gateway(&self.pair).1;
                (&mut self.in_class, SocketAddr::new(gateway, LANE_PORT))
            }
            Way::Haproxy => (&mut self.outside, medium.haproxy()),
            Way::Nfqueue => {
                let judged = self
                    .judged
                    .as_mut()
                    .context("no netfilter queue is set up")?;
                (&mut judged.worker, plain(&judged.pair))
            }
        };
        worker.ask(&order(to))
    }
}
