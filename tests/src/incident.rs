//! The incident that shaper is made for, twenty times as fast: a review of fifteen files, a few coding agents and five
//! subprocess calls all ask a gateway at once that serves eight and gets nothing done while it has more than twelve. All
//! time out, and all try again.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! # use shaper_tests::{controller::Controller, incident::Incident, stage::Stage};
//! let stage = Stage::set()?;
//! let incident = Incident::full();
//! let gateway = incident.gateway()?;
//! let controller = Controller::builder(&stage)?.lane("gateway", Incident::lane(&gateway))?.start()?;
//! println!("{}", incident.replay(&stage, &gateway, gateway.address())?.figures());
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::caller::{Call, Orders, caller};
use crate::cgroup::Cgroup;
use crate::client::Running;
use crate::clock::Moment;
use crate::gateway::{Answer, Gateway, RequestRecord, Tally, Workshop};
use crate::lane_file::LaneFile;
use crate::stage::Stage;

/// Requests that the gateway serves at once, and so the lane's limit.
pub const LIMIT: usize = 8;
/// Above so many it gets nothing done.
pub const BEARS: usize = 12;
/// Of the limit, for interactive work alone.
pub const RESERVE: usize = 1;
/// The gateway's work on a request: 20 s.
pub const SERVICE: Duration = Duration::from_secs(1);
/// The clients' patience with a connect, and with an answer: 120 s.
pub const TIMEOUT: Duration = Duration::from_secs(6);
/// The SDKs' first pause before a retry: 0.5 s.
const BACKOFF: Duration = Duration::from_millis(25);
/// `connect_hold`: 4 s.
const CONNECT_HOLD: Duration = Duration::from_millis(200);
/// When somebody sits down at a prompt.
const PROMPT_COMES: Duration = Duration::from_millis(1500);

const SEED: u64 = 0x5ade;

/// Who takes part.
#[derive(Clone, Copy, Debug)]
pub struct Incident {
    reviews: u64,
    coders: u64,
    calls_of_a_coder: u32,
    subprocesses: u64,
    retries: u32,
}

/// What somebody in the incident is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Role {
    Review,
    Coder,
    Subprocess,
    /// A person at a prompt.
    Prompt,
}

/// A client at work.
type Player = (Role, Running<Vec<Call>>);

impl Incident {
    /// All of it.
    pub fn full() -> Self {
        Self {
            reviews: 15,
            coders: 3,
            calls_of_a_coder: 3,
            subprocesses: 5,
            retries: 2,
        }
    }

    /// With fewer calls and one retry, for a test.
    pub fn brief() -> Self {
        Self {
            calls_of_a_coder: 2,
            retries: 1,
            ..Self::full()
        }
    }

    /// The gateway, which measures what it gets.
    ///
    /// # Errors
    /// If it cannot listen.
    pub fn gateway(&self) -> Result<Gateway> {
        let workshop = Workshop::new(LIMIT, BEARS);
        Gateway::answering(Answer::made_in(&workshop, SERVICE))
    }

    /// The lane that puts an end to it.
    pub fn lane(gateway: &Gateway) -> LaneFile {
        LaneFile::over(gateway.addresses())
            .limit(LIMIT)
            .connect_hold(CONNECT_HOLD)
            .line(&format!("interactive_reserve = {RESERVE}"))
    }

    /// Lets it happen. The clients call `front`: the gateway itself, or what stands before it.
    ///
    /// # Errors
    /// If a client cannot be started or does not end.
    pub fn replay(&self, stage: &Stage, gateway: &Gateway, front: SocketAddr) -> Result<Replay> {
        let begun = Instant::now();
        let mut players = Vec::new();
        let mut enter = |role: Role, count: u64, cgroup: &Cgroup| -> Result<()> {
            for number in 0..count {
                players.push(self.enter(role, number, cgroup, gateway, front)?);
            }
            Ok(())
        };
        enter(Role::Review, self.reviews, &stage.bulk)?;
        enter(Role::Coder, self.coders, &stage.default)?;
        enter(Role::Subprocess, self.subprocesses, &stage.bulk)?;
        thread::sleep(PROMPT_COMES.saturating_sub(begun.elapsed()));
        enter(Role::Prompt, 1, &stage.interactive)?;
        self.watch(players, gateway)
    }

    fn enter(
        &self,
        role: Role,
        number: u64,
        cgroup: &Cgroup,
        gateway: &Gateway,
        front: SocketAddr,
    ) -> Result<Player> {
        let orders = Orders {
            url: gateway.url_of(front),
            label: format!("{role}-{number}"),
            calls: match role {
                Role::Coder => self.calls_of_a_coder,
                Role::Review | Role::Subprocess | Role::Prompt => 1,
            },
            think: SERVICE / 2,
            timeout: TIMEOUT,
            retries: self.retries,
            backoff: BACKOFF,
            seed: SEED ^ (role as u64) << 32 ^ number,
        };
        Ok((role, caller(&orders)?.spawn_in(cgroup)?))
    }

    /// Waits for everybody's end.
    fn watch(&self, players: Vec<Player>, gateway: &Gateway) -> Result<Replay> {
        // Every attempt of a coder's every call, and the same again for a busy machine.
        let attempts = self.calls_of_a_coder * (self.retries + 1);
        let patience = TIMEOUT * 2 * attempts * 2;
        let mut calls = Vec::new();
        for (role, player) in players {
            let of_player = player.finish(patience)?;
            calls.extend(of_player.into_iter().map(|call| (role, call)));
        }
        Ok(Replay {
            calls,
            tally: gateway.tally(),
        })
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Review => "review",
            Self::Coder => "coder",
            Self::Subprocess => "subprocess",
            Self::Prompt => "prompt",
        })
    }
}

/// What happened.
#[derive(Clone, Debug)]
pub struct Replay {
    pub calls: Vec<(Role, Call)>,
    pub tally: Tally,
}

/// It in numbers.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    pub calls: usize,
    pub answered: usize,
    /// Attempts that ended with a client's own timeout.
    pub timeouts: u32,
    /// From the first call to the last one's end.
    pub span: Duration,
    /// Calls answered in a second.
    pub goodput: f64,
    /// From the prompt's call to its first byte at the gateway, whose answer it got; `None`: it got none.
    pub prompt_wait: Option<Duration>,
    /// The most requests that the gateway had at once.
    pub peak: usize,
    /// How long the gateway had more than it can serve at once.
    pub crowded: Duration,
    /// How long it had more than it can bear.
    pub stalled: Duration,
}

impl Replay {
    pub fn figures(&self) -> Figures {
        let calls = || self.calls.iter().map(|(_, call)| call);
        let first = calls().map(|call| call.started).min();
        let last = calls().map(|call| call.ended).max();
        let span = match (first, last) {
            (Some(first), Some(last)) => last.since(first),
            _ => Duration::ZERO,
        };
        let answered = calls().filter(|call| call.answered).count();
        Figures {
            calls: self.calls.len(),
            answered,
            timeouts: calls().map(|call| call.timeouts).sum(),
            span,
            goodput: answered as f64 / span.as_secs_f64(),
            prompt_wait: self.prompt_wait(),
            peak: self.tally.peak_in_service,
            crowded: time_above(&self.tally.requests, LIMIT),
            stalled: time_above(&self.tally.requests, BEARS),
        }
    }

    /// How many requests the gateway had from each time on, counted from the first call.
    pub fn at_gateway(&self) -> Vec<(Duration, usize)> {
        let Some(first) = self.calls.iter().map(|(_, call)| call.started).min() else {
            return Vec::new();
        };
        let mut there = 0_usize;
        let step = |(at, change): (Moment, isize)| {
            there = there.saturating_add_signed(change);
            (at.since(first), there)
        };
        changes(&self.tally.requests)
            .into_iter()
            .map(step)
            .collect()
    }

    fn prompt_wait(&self) -> Option<Duration> {
        let (_, call) = self.calls.iter().find(|(role, _)| *role == Role::Prompt)?;
        let label = format!("{}-0", Role::Prompt);
        let request = self
            .tally
            .requests
            .iter()
            .rfind(|request| request.request.label.as_ref() == Some(&label))?;
        call.answered
            .then(|| request.first_byte.since(call.started))
    }
}

/// Arrivals and ends, in the order of time.
fn changes(requests: &[RequestRecord]) -> Vec<(Moment, isize)> {
    let mut changes: Vec<(Moment, isize)> = requests
        .iter()
        .flat_map(|request| {
            let left = request.ended.map(|ended| (ended, -1));
            [Some((request.first_byte, 1)), left]
        })
        .flatten()
        .collect();
    changes.sort_unstable();
    changes
}

/// How long there were more than `limit` of them.
fn time_above(requests: &[RequestRecord], limit: usize) -> Duration {
    let mut above = Duration::ZERO;
    let mut there = 0;
    for pair in changes(requests).windows(2) {
        let [(from, change), (to, _)] = pair else {
            continue;
        };
        there += change;
        if there > limit.cast_signed() {
            above += to.since(*from);
        }
    }
    above
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wait = match self.prompt_wait {
            Some(wait) => format!("the prompt waited {wait:.2?}"),
            None => "the prompt got no answer".to_owned(),
        };
        write!(
            f,
            "{} of {} calls answered, {} client timeouts, in {:.1?} ({:.2} a second); {wait}; the gateway had up to {} at \
             once, {:.1?} above its limit, {:.1?} without getting anything done",
            self.answered,
            self.calls,
            self.timeouts,
            self.span,
            self.goodput,
            self.peak,
            self.crowded,
            self.stalled
        )
    }
}
