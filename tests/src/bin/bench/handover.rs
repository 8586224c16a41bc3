//! `handover`: how long a freed slot takes to the next in line.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use anyhow::Result;
use shaper_tests::{controller::Controller, lane_file::LaneFile, netns::VethPair, stage::Stage};

use crate::{
    gateway::{self, Gateway},
    haproxy::{Forward, Haproxy},
    interpreter::semaphore_handovers,
    order::Order,
    progress::Progress,
    report::{Cell, Goal, Report, Table, Unit},
    spread::{quantile, sorted},
    worker::Worker,
};

const WAITERS: [usize; 3] = [10, 1_000, 10_000];
const HANDOVERS: usize = 2_000;

/// How long the gateway works on a request: long enough for a client to prepare the next.
const SERVICE_TIME: Duration = Duration::from_millis(3);

/// The gateway's port for the lane that holds connects, for the lane that holds requests, and for HAProxy; and
/// HAProxy's own.
const CONNECT_PORT: u16 = 8001;
const REQUEST_PORT: u16 = 8002;
const PLAIN_PORT: u16 = 8003;
const HAPROXY_PORT: u16 = 8004;

/// What hands slots over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Queue {
    /// Shaper holds the connect: to the return of the next `connect()`.
    Connects,
    /// Shaper holds the request: from the end of an answer to the next request, as the gateway sees it.
    Requests,
    /// The same behind HAProxy, `maxconn 1`.
    Haproxy,
    /// From a release to the next acquisition inside one Python process.
    Semaphore,
}

impl Queue {
    const ALL: [Self; 4] = [
        Self::Connects,
        Self::Requests,
        Self::Haproxy,
        Self::Semaphore,
    ];

    fn is_peer(self) -> bool {
        matches!(self, Self::Haproxy | Self::Semaphore)
    }

    fn name(self) -> &'static str {
        match self {
            Self::Connects => "shaper: next connect() done",
            Self::Requests => "shaper: next request at the gateway",
            Self::Haproxy => "HAProxy: next request at the gateway",
            Self::Semaphore => "asyncio.Semaphore in one process",
        }
    }
}

/// Handovers of one queue with a number of waiters, in ascending order of their nanoseconds. None: a peer did not manage.
struct Measured {
    queue: Queue,
    waiters: usize,
    sorted: Vec<f64>,
}

pub fn run() -> Result<Report> {
    let mut line = Line::form()?;
    let progress = Progress::new("handover", Queue::ALL.len() * WAITERS.len());
    let mut measured = Vec::new();
    for waiters in WAITERS {
        for queue in Queue::ALL {
            progress.step(queue.name());
            let times = match line.hand_over(queue, waiters) {
                // The figures of the others are worth having without a peer's.
                Err(error) if queue.is_peer() => {
                    eprintln!("{}, {waiters} waiters: {error:#}", queue.name());
                    Vec::new()
                }
                times => times?,
            };
            measured.push(Measured {
                queue,
                waiters,
                sorted: sorted(times.into_iter().map(|nanos| nanos as f64)),
            });
        }
    }
    let mut table = Table::new(
        format!(
            "From the moment one slot's holder is done to the next in line, {HANDOVERS} times each, over loopback. Where \
             the gateway sees it, the time includes the answer's way to the client and the next request's way back."
        ),
        &["queue", "waiters", "p50", "p99", "p99.9"],
    );
    for queue in Queue::ALL {
        for of_queue in measured.iter().filter(|measured| measured.queue == queue) {
            let at = |share| match of_queue.sorted.is_empty() {
                true => Cell::Absent,
                false => Cell::Value(quantile(&of_queue.sorted, share), Unit::Nanoseconds),
            };
            let waiters = Cell::Value(of_queue.waiters as f64, Unit::Count);
            table.push(queue.name(), [waiters, at(0.5), at(0.99), at(0.999)]);
        }
    }
    Ok(Report {
        tables: vec![table],
        goals: goals(&measured),
    })
}

fn goals(measured: &[Measured]) -> Vec<Goal> {
    const BOUNDS: [(f64, &str, f64); 2] = [(0.5, "median", 200e3), (0.99, "p99", 2e6)];
    const GROWTH: f64 = 2.0;
    let mut goals = Vec::new();
    for (queue, reaches) in [
        (Queue::Connects, "the next connect"),
        (Queue::Requests, "the next held request"),
    ] {
        let at = |share: f64| {
            let of_queue = measured
                .iter()
                .filter(move |measured| measured.queue == queue);
            of_queue.map(move |measured| quantile(&measured.sorted, share))
        };
        for (share, name, bound) in BOUNDS {
            let worst = at(share).fold(0.0, f64::max);
            goals.push(Goal {
                promise: format!(
                    "a freed slot reaches {reaches}: {name}, whatever the number of waiters"
                ),
                wanted: format!("under {}", Cell::Value(bound, Unit::Nanoseconds)),
                measured: Cell::Value(worst, Unit::Nanoseconds),
                met: worst < bound,
            });
        }
        let medians: Vec<f64> = at(0.5).collect();
        if let [few, .., many] = medians[..] {
            goals.push(Goal {
                promise: format!(
                    "the same, {} waiters to {}",
                    WAITERS[WAITERS.len() - 1],
                    WAITERS[0]
                ),
                wanted: format!("no growth: under {GROWTH}×"),
                measured: Cell::Value(many / few, Unit::Ratio),
                met: many / few < GROWTH,
            });
        }
    }
    goals
}

/// A gateway that serves one at a time, and the queues before it.
struct Line {
    in_class: Worker,
    outside: Worker,
    _controller: Controller,
    _haproxy: Haproxy,
    gateway: Gateway,
    _pair: VethPair,
    _stage: Stage,
}

impl Line {
    fn form() -> Result<Self> {
        const AMPLE: usize = 20_000;
        let stage = Stage::set()?;
        let pair = VethPair::create()?;
        let netns = &pair.client;
        netns.set("net/ipv4/ip_local_port_range", "16384 65535")?;
        let listeners = [CONNECT_PORT, REQUEST_PORT, PLAIN_PORT]
            .map(|port| gateway::listener(netns, at(port)))
            .into_iter()
            .collect::<Result<Vec<_>>>()?;
        let gateway = Gateway::start(listeners)?;
        gateway.work_for(SERVICE_TIME);
        let forward = Forward {
            from: at(HAPROXY_PORT),
            to: at(PLAIN_PORT),
            limit: 1,
        };
        let haproxy = Haproxy::start(Some(netns), &[forward])?;
        let lane = |port| LaneFile::over(&[at(port)]).limit(1).queue(AMPLE);
        let controller = Controller::builder(&stage)?
            .lane("connects", lane(CONNECT_PORT))?
            .lane("requests", lane(REQUEST_PORT).connect_hold(Duration::ZERO))?
            .start()?;
        Ok(Self {
            in_class: Worker::start(&stage.default, netns)?,
            outside: Worker::start(&stage.outside, netns)?,
            _controller: controller,
            _haproxy: haproxy,
            gateway,
            _pair: pair,
            _stage: stage,
        })
    }

    /// Nanoseconds of each handover.
    fn hand_over(&mut self, queue: Queue, waiters: usize) -> Result<Vec<u64>> {
        let handovers = HANDOVERS;
        let requests = |port| Order::HandOverRequests {
            to: at(port),
            waiters,
            handovers,
        };
        match queue {
            Queue::Connects => self.in_class.ask(&Order::HandOverConnects {
                to: at(CONNECT_PORT),
                waiters,
                handovers,
            }),
            Queue::Requests => {
                self.gateway.take_idle_times();
                self.in_class.ask(&requests(REQUEST_PORT))?;
                Ok(self.idle_times())
            }
            Queue::Haproxy => {
                self.gateway.take_idle_times();
                self.outside.ask(&requests(HAPROXY_PORT))?;
                Ok(self.idle_times())
            }
            Queue::Semaphore => semaphore_handovers(waiters, handovers),
        }
    }

    fn idle_times(&self) -> Vec<u64> {
        let times = self.gateway.take_idle_times();
        // Those who waited and were not needed any more may follow.
        let times = times.into_iter().take(HANDOVERS);
        times.map(|time| time.as_nanos() as u64).collect()
    }
}

fn at(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}
