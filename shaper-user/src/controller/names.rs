//! Following what the lanes' host names resolve to.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::{Duration, Instant},
};

use shaper_common::Endpoint;
use tokio::sync::{mpsc, watch};
use tracing::{debug, warn};

use super::dns::Answers;
use crate::config::{
    EndpointSpec, LaneConfig,
    resolve::{Resolver, lookup},
};

/// Time between two look-ups of all names. Shorter than the usual minute of a cloud load balancer's records.
const INTERVAL: Duration = Duration::from_secs(30);

/// Which endpoints each lane has now, by the lane's name.
pub type LaneEndpoints = HashMap<String, HashSet<Endpoint>>;

/// The names of the configured lanes and what is known of them.
#[derive(Debug)]
pub struct Names {
    lanes: watch::Receiver<Vec<LaneConfig>>,
    /// Remote ends of present connections: their addresses are kept.
    in_use: watch::Receiver<HashSet<Endpoint>>,
    /// What processes were answered.
    answers: mpsc::Receiver<Answers>,
    resolver: Resolver,
    /// Names whose last look-up failed, so that each failure is reported once.
    failing: BTreeSet<String>,
}

impl Names {
    pub fn new(
        lanes: watch::Receiver<Vec<LaneConfig>>,
        in_use: watch::Receiver<HashSet<Endpoint>>,
        answers: mpsc::Receiver<Answers>,
    ) -> Self {
        Self {
            lanes,
            in_use,
            answers,
            resolver: Resolver::default(),
            failing: BTreeSet::new(),
        }
    }

    /// Takes over the addresses that an earlier controller knew: a name that cannot be looked up now keeps them, as it
    /// would have there.
    pub fn remember(&mut self, endpoints: &LaneEndpoints) {
        let lanes = self.lanes.borrow_and_update().clone();
        self.resolver.set_lanes(&lanes);
        for lane in &lanes {
            let Some(known) = endpoints.get(&lane.name) else {
                continue;
            };
            for spec in &lane.endpoints {
                let EndpointSpec::Name(name) = spec else {
                    continue;
                };
                let literal = |known: &Endpoint| {
                    let spec = EndpointSpec::Literal(*known);
                    lane.endpoints.contains(&spec)
                };
                let addresses: Vec<_> = known
                    .iter()
                    .filter(|known| known.is_host() && known.port() == name.port())
                    .filter(|known| !literal(known))
                    .map(Endpoint::addr)
                    .collect();
                self.resolver
                    .record(Instant::now(), name, &addresses, |_| true);
            }
        }
    }

    /// Looks all names up. A name that cannot be resolved keeps the addresses it had.
    pub async fn look_up(&mut self) -> LaneEndpoints {
        let lanes = self.lanes.borrow_and_update().clone();
        self.resolver.set_lanes(&lanes);
        let names: Vec<_> = self.resolver.names().cloned().collect();
        let answers: Vec<_> = names
            .into_iter()
            .map(|name| {
                let of = name.clone();
                (name, tokio::spawn(async move { lookup(&of).await }))
            })
            .collect();
        for (name, answer) in answers {
            match answer.await {
                Ok(Ok(addresses)) => {
                    self.failing.remove(name.name());
                    let in_use = self.in_use.borrow();
                    self.resolver
                        .record(Instant::now(), &name, &addresses, |endpoint| {
                            in_use.contains(endpoint)
                        });
                }
                Ok(Err(error)) if self.failing.insert(name.name().to_owned()) => {
                    warn!(name = name.name(), %error, "a lane's host name does not resolve; trying again every 30 s");
                }
                Ok(Err(error)) => debug!(name = name.name(), %error, "still does not resolve"),
                Err(error) => warn!(name = name.name(), %error, "the look-up ended"),
            }
        }
        self.assign(&lanes)
    }

    /// Addresses, and what names resolved to before.
    fn known(&mut self) -> LaneEndpoints {
        let lanes = self.lanes.borrow_and_update().clone();
        self.resolver.set_lanes(&lanes);
        self.assign(&lanes)
    }

    fn assign(&self, lanes: &[LaneConfig]) -> LaneEndpoints {
        let assignment = self.resolver.assign(lanes);
        for contested in &assignment.contested {
            warn!(
                endpoint = %contested.endpoint,
                has = lanes[contested.owner].name,
                wants = lanes[contested.loser].name,
                "two lanes' names lead to one address; it stays with the first"
            );
        }
        let mut endpoints: LaneEndpoints = lanes
            .iter()
            .map(|lane| (lane.name.clone(), HashSet::new()))
            .collect();
        for (endpoint, lane) in assignment.endpoints {
            endpoints
                .entry(lanes[lane].name.clone())
                .or_default()
                .insert(endpoint);
        }
        endpoints
    }

    /// Takes what processes were answered as if the controller had asked. Gives the endpoints if any address is new.
    fn hear(&mut self, answers: &Answers) -> Option<LaneEndpoints> {
        let mut new = false;
        let names: Vec<_> = self.resolver.names().cloned().collect();
        for name in names {
            let Some(addresses) = answers.get(name.name()) else {
                continue;
            };
            new |= !self.resolver.knows(&name, addresses);
            let in_use = self.in_use.borrow();
            self.resolver
                .record(Instant::now(), &name, addresses, |endpoint| {
                    in_use.contains(endpoint)
                });
        }
        new.then(|| self.known())
    }

    /// Looks up again on a timer and when the lanes change, until nobody listens.
    pub async fn follow(mut self, resolved: mpsc::Sender<LaneEndpoints>) {
        let mut timer = tokio::time::interval_at(tokio::time::Instant::now() + INTERVAL, INTERVAL);
        loop {
            tokio::select! {
                _ = timer.tick() => {}
                changed = self.lanes.changed() => {
                    // What is known already must not wait for a slow resolver.
                    if changed.is_err() || resolved.send(self.known()).await.is_err() {
                        return;
                    }
                }
                Some(answers) = self.answers.recv() => {
                    if let Some(endpoints) = self.hear(&answers)
                        && resolved.send(endpoints).await.is_err()
                    {
                        return;
                    }
                    continue;
                }
            }
            timer.reset();
            let endpoints = self.look_up().await;
            if resolved.send(endpoints).await.is_err() {
                return;
            }
        }
    }
}
