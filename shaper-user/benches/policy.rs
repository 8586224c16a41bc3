//! How many events a second the policy decides about, with few waiters and with many: `cargo xtask bench policy`.
//!
//! Prints one line of JSON: for each number of waiters the nanoseconds that an event took, once for each round.

use std::{hint::black_box, time::Instant};

use serde::Serialize;
use shaper_common::Class;
use shaper_user::{
    config::{Config, Files, Origin, TextFile},
    policy::{
        AccountId, Action, ClientId, ConnHandle, Event, HeldConn, LaneId, LaneRules, Ns, OpenConn,
        Policy, Stage,
    },
};

const WAITERS: [u64; 5] = [10, 100, 1_000, 10_000, 100_000];
const SLOTS: u64 = 50;
const ACCOUNTS: u64 = 100;
const ROUNDS: usize = 15;
const EVENTS_A_ROUND: u32 = 20_000;
const LANE: LaneId = LaneId(0);

#[derive(Serialize)]
struct Measured {
    waiters: u64,
    nanos_an_event: Vec<f64>,
}

fn main() {
    let mut crowds: Vec<(Crowd, Measured)> = WAITERS
        .map(|waiters| {
            let measured = Measured {
                waiters,
                nanos_an_event: Vec::new(),
            };
            (Crowd::of(waiters), measured)
        })
        .into();
    for _ in 0..ROUNDS {
        for (crowd, measured) in &mut crowds {
            measured.nanos_an_event.push(crowd.round());
        }
    }
    let measured: Vec<Measured> = crowds.into_iter().map(|(_, measured)| measured).collect();
    println!(
        "{}",
        serde_json::to_string(&measured).expect("numbers are JSON")
    );
}

/// A lane whose slots are taken, with waiters of all classes and of many accounts.
struct Crowd {
    policy: Policy,
    next: u64,
    holder: ConnHandle,
}

impl Crowd {
    fn of(waiters: u64) -> Self {
        let mut crowd = Self {
            policy: Policy::new(),
            next: 0,
            holder: ConnHandle(0),
        };
        let mut actions = Vec::new();
        crowd
            .policy
            .set_lane(Ns(0), LANE, "bench", rules(), &mut actions);
        for number in 0..SLOTS {
            let open = OpenConn {
                conn: ConnHandle(number),
                class: Class::Default,
                account: Some(AccountId(1 + number % ACCOUNTS)),
                client: ClientId(number as u32),
                since: Ns(0),
            };
            let opened = Event::Opened(open);
            crowd.policy.on_event(Ns(0), LANE, opened, &mut actions);
        }
        crowd.next = SLOTS;
        for _ in 0..waiters {
            crowd.arrive(&mut actions);
        }
        crowd
    }

    fn arrive(&mut self, actions: &mut Vec<Action>) {
        let number = self.next;
        self.next += 1;
        let held = HeldConn {
            conn: ConnHandle(number),
            class: Class::ALL[number as usize % Class::ALL.len()],
            account: Some(AccountId(1 + number % ACCOUNTS)),
            client: ClientId(number as u32),
            stage: Stage::Connect,
            since: Ns(number),
        };
        actions.clear();
        self.policy
            .on_event(Ns(number), LANE, Event::Held(held), actions);
    }

    /// A slot comes free and goes to whom the policy names; somebody arrives. Nanoseconds an event.
    fn round(&mut self) -> f64 {
        let mut actions = Vec::new();
        let begin = Instant::now();
        for _ in 0..EVENTS_A_ROUND / 2 {
            let released = Event::Released {
                conn: self.holder,
                refunded: false,
            };
            actions.clear();
            self.policy
                .on_event(Ns(self.next), LANE, released, &mut actions);
            let admitted = actions.iter().find_map(|action| match action {
                Action::Admit { conn, .. } => Some(*conn),
                _ => None,
            });
            self.holder = admitted.expect("somebody waits, so somebody goes");
            black_box(self.policy.drain_ended().count());
            self.arrive(&mut actions);
        }
        begin.elapsed().as_nanos() as f64 / f64::from(EVENTS_A_ROUND)
    }
}

/// As a configuration file gives them, but with a queue longer than files may ask for.
fn rules() -> LaneRules {
    let text = format!(
        "endpoints = [\"127.0.0.1:1\"]\nmax_inflight = {SLOTS}\nmax_queue = 1\nqueue_timeout = \"1h\"\n\
         connect_hold = \"always\"\n[account]\nmax_inflight = {SLOTS}\n"
    );
    let files = Files {
        origin: Origin::Embedded,
        settings: None,
        lanes: vec![TextFile {
            path: "lanes.d/bench.toml".into(),
            text,
        }],
    };
    let config = Config::parse(&files).expect("a valid lane");
    LaneRules {
        max_queue: u32::MAX,
        ..config.lanes[0].rules.clone()
    }
}
