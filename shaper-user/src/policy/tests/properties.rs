//! What holds at every step, whatever clients do and however late the news of it comes.

use std::collections::{BTreeMap as Map, BTreeSet};

use proptest::prelude::*;
use shaper_common::Class;

use super::{
    super::queue::effective_class,
    kernel::{Gate, Who},
    *,
};

/// One thing that happens. Indices choose among the connections there are.
#[derive(Clone, Debug)]
enum Op {
    Connect {
        class: Class,
        account: u64,
    },
    /// As a client that comes again and again.
    Reconnect {
        class: Class,
        client: u32,
    },
    Close(usize),
    Park(usize),
    Wake(usize),
    Overrun(usize),
    Deliver(usize),
    Pass(u64),
    Pause(u64),
    Resume,
    Budget(u32),
    Reload(Box<LaneRules>),
    Reconcile,
    Lose(usize),
}

fn class() -> impl Strategy<Value = Class> {
    prop::sample::select(Class::ALL.to_vec())
}

fn lane_rules() -> impl Strategy<Value = LaneRules> {
    (
        1u32..6,
        0u32..5,
        0u32..12,
        prop::option::of(0u32..3),
        prop::option::of(1u32..3),
        prop::option::of(0u64..3000),
    )
        .prop_map(
            |(limit, reserve, max_queue, bulk_cap, account_cap, hold)| LaneRules {
                max_queue,
                queue_timeout: [SECOND * 7, SECOND * 8, SECOND * 9],
                interactive_reserve: reserve.min(limit - 1),
                connect_hold: hold.map_or(ConnectHold::Always, |ms| {
                    ConnectHold::For(Duration::from_millis(ms))
                }),
                aging: SECOND * 2,
                ticket_grace: SECOND,
                class_cap: [None, None, bulk_cap],
                account_cap,
                ..rules(limit)
            },
        )
}

/// The same for a lane that may only observe.
fn switched_rules() -> impl Strategy<Value = LaneRules> {
    (lane_rules(), any::<bool>()).prop_map(|(rules, enforce)| LaneRules { enforce, ..rules })
}

/// What clients do, and time.
fn traffic() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (class(), 0u64..4).prop_map(|(class, account)| Op::Connect { class, account }),
        4 => any::<usize>().prop_map(Op::Close),
        2 => any::<usize>().prop_map(Op::Park),
        2 => any::<usize>().prop_map(Op::Wake),
        1 => any::<usize>().prop_map(Op::Overrun),
        6 => (1usize..6).prop_map(Op::Deliver),
        3 => (1u64..1500).prop_map(Op::Pass),
    ]
}

/// What operators and gateways do besides.
fn operations() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (1u64..4000).prop_map(Op::Pause),
        1 => Just(Op::Resume),
        3 => (0u32..7).prop_map(Op::Budget),
        2 => switched_rules().prop_map(|rules| Op::Reload(Box::new(rules))),
    ]
}

/// What goes wrong, and what mends it.
fn trouble() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => Just(Op::Reconcile),
        1 => (1usize..4).prop_map(Op::Lose),
        2 => (class(), 1u32..4).prop_map(|(class, client)| Op::Reconnect { class, client }),
    ]
}

#[derive(Debug)]
struct Run {
    world: World,
    /// News was lost since the last picture, or overtaken by it.
    behind: bool,
    /// A picture overtook news: a wait that is over may be told of now, and pass for the present one of a connection
    /// that waits again. The controller empties the ring before each picture, so this is a matter of microseconds.
    overtaken: bool,
    /// Every client makes one connection.
    told_apart: bool,
}

impl Run {
    fn new(rules: LaneRules) -> Self {
        Self {
            world: World::new(rules),
            behind: false,
            overtaken: false,
            told_apart: true,
        }
    }

    fn pick(&self, index: usize, which: impl Fn(Gate) -> bool) -> Option<ConnHandle> {
        let conns: Vec<_> = self
            .world
            .kernel
            .conns
            .iter()
            .filter(|(_, state)| which(state.gate))
            .map(|(&conn, _)| conn)
            .collect();
        (!conns.is_empty()).then(|| conns[index % conns.len()])
    }

    fn step(&mut self, op: &Op) {
        let done = self.world.done.len();
        match *op {
            Op::Connect { class, account } => {
                self.check_barging(class);
                self.world.connect(class, (account > 0).then_some(account));
            }
            Op::Reconnect { class, client } => {
                self.told_apart = false;
                let client = ClientId(client);
                let account = None;
                let who = Who {
                    class,
                    account,
                    client,
                };
                self.world.kernel.connect(self.world.now, who);
            }
            Op::Close(index) => {
                if let Some(conn) = self.pick(index, |_| true) {
                    self.world.kernel.close(conn);
                }
            }
            Op::Park(index) => {
                if let Some(conn) = self.pick(index, |gate| gate == Gate::Open) {
                    self.world.kernel.park(conn);
                }
            }
            Op::Wake(index) => {
                if let Some(conn) = self.pick(index, |gate| gate == Gate::Parked) {
                    self.world.kernel.wake(self.world.now, conn);
                }
            }
            Op::Overrun(index) => {
                if let Some(conn) = self.pick(index, |gate| gate == Gate::Parked) {
                    self.world.kernel.overrun(conn);
                }
            }
            Op::Deliver(count) => self.world.deliver(count),
            Op::Pass(ms) => self.world.pass_without_news(Duration::from_millis(ms)),
            Op::Pause(ms) => self
                .world
                .tell(pause_until(self.world.now + Duration::from_millis(ms))),
            Op::Resume => self.world.tell(Event::Resume),
            Op::Budget(budget) => self.world.tell(Event::Budget(budget)),
            Op::Reload(ref rules) => self.world.reload(LaneRules::clone(rules)),
            Op::Reconcile => {
                self.world
                    .tell(Event::Reconcile(self.world.kernel.picture()));
                // News that a picture has overtaken may tell of what is over.
                self.overtaken = !self.world.kernel.news.is_empty();
                self.behind = self.overtaken;
            }
            Op::Lose(count) => {
                let lost = count.min(self.world.kernel.news.len());
                self.world.kernel.news.drain(..lost);
                self.behind |= lost > 0;
            }
        }
        if self.told_apart && !self.overtaken {
            self.check_order(done);
        }
        self.check_idle_slots();
        self.check_shadow();
    }

    /// The policy knows all there is to know.
    fn is_up_to_date(&self) -> bool {
        let lane = &self.world.policy.lanes[&world::LANE];
        !self.behind && self.world.kernel.news.is_empty() && lane.stalled_until.is_none()
    }

    /// Waiters that could use a slot right now, with the class each counts as.
    fn could_start(&self) -> Vec<(Class, Class)> {
        let kernel = &self.world.kernel;
        let free = kernel.word.budget().saturating_sub(kernel.word.slots());
        kernel
            .conns
            .values()
            .filter(|state| matches!(state.gate, Gate::Held(_)))
            .filter(|state| free > kernel.floor(state.class))
            .filter(|state| kernel.below_caps(state.class, state.account))
            .map(|state| {
                let aging = kernel.rules.aging;
                let effective = effective_class(state.class, state.since, self.world.now, aging);
                (state.class, effective)
            })
            .collect()
    }

    /// E2, A6: a newcomer that the kernel would let in passes nobody who ranks with it and could have had the slot.
    fn check_barging(&mut self, class: Class) {
        if !self.told_apart || !self.is_up_to_date() {
            return;
        }
        // Aging happens between two ticks.
        self.world.pass_without_news(Duration::ZERO);
        let who = Who {
            class,
            account: None,
            client: ClientId(0),
        };
        if self.world.kernel.may_open(who) {
            for (own, effective) in self.could_start() {
                assert!(effective > class, "passes {own}, by now {effective}");
            }
        }
    }

    /// E2, D8: nobody is admitted before somebody of its class and account who came earlier.
    fn check_order(&self, done: usize) {
        let kernel = &self.world.kernel;
        for conn in self.world.admitted_since(done) {
            let Some(admitted) = kernel.conns.get(&conn).filter(|s| s.gate == Gate::Open) else {
                continue;
            };
            for waiter in self.world.line() {
                let Some(state) = kernel.conns.get(&waiter) else {
                    continue;
                };
                if (state.class, state.account) == (admitted.class, admitted.account) {
                    assert!(
                        admitted.since <= state.since,
                        "{conn:?} went before {waiter:?}"
                    );
                }
            }
        }
    }

    /// A slot that somebody may have does not stay idle, unless it is kept for somebody who has aged.
    fn check_idle_slots(&self) {
        let lane = &self.world.policy.lanes[&world::LANE];
        let held_back = lane.pause.is_some()
            || lane.pacer.is_pacing(self.world.now)
            || self.world.kernel.barrier.is_some();
        if self.is_up_to_date() && !held_back {
            let could = self.could_start();
            assert_eq!(could, [], "{:?}", self.world.view());
        }
    }

    /// A21: in the shadow of a lane is who is in flight, nobody twice and nobody else.
    fn check_shadow(&self) {
        let observes = self.world.kernel.rules.observes();
        let mut shown: Vec<_> = self.world.in_shadow().collect();
        shown.sort();
        if observes && self.is_up_to_date() {
            let conns = &self.world.kernel.conns;
            let open = conns.iter().filter(|(_, state)| state.gate == Gate::Open);
            assert_eq!(shown, open.map(|(&conn, _)| conn).collect::<Vec<_>>());
        } else if !observes {
            assert_eq!(shown, []);
        }
    }

    /// Everybody leaves, all news comes, and every ticket lapses.
    fn end(&mut self) {
        while let Some(conn) = self.pick(0, |_| true) {
            self.world.kernel.close(conn);
        }
        self.world.deliver_all();
        if self.behind {
            self.world
                .tell(Event::Reconcile(self.world.kernel.picture()));
        }
        self.world.pass(SECOND * 20);
        self.world.assert_empty();
    }
}

proptest! {
    #![proptest_config(cases(300))]

    /// D2, A4, E2, E4, A9: whatever happens and however late or lost the news: credits and slots stay within the budget,
    /// the reserve is not taken by others, nobody is passed (all checked at every step), and nothing is left at the end.
    #[test]
    fn the_lane_keeps_its_promises_through_trouble(
        rules in switched_rules(),
        ops in prop::collection::vec(
            prop_oneof![12 => traffic(), 2 => operations(), 2 => trouble()],
            1..150,
        ),
    ) {
        let mut run = Run::new(rules);
        for op in &ops {
            run.step(op);
        }
        run.end();
    }

    /// Every request ends its wait in exactly one outcome, however late the news of it.
    #[test]
    fn every_waiter_ends_in_exactly_one_outcome(
        rules in switched_rules(),
        ops in prop::collection::vec(prop_oneof![12 => traffic(), 2 => operations()], 1..150),
    ) {
        let mut run = Run::new(rules);
        for op in &ops {
            run.step(op);
        }
        run.end();
        let mut ended = Map::<ConnHandle, u32>::new();
        for end in &run.world.ended {
            *ended.entry(end.conn).or_default() += 1;
        }
        prop_assert_eq!(&ended, &run.world.kernel.requests);

        let view = run.world.view();
        let counted: u64 = [Outcome::Admitted, Outcome::Expired, Outcome::Gone, Outcome::Bypassed]
            .map(|outcome| view.counters.total(outcome))
            .iter()
            .sum();
        prop_assert_eq!(counted, run.world.ended.len() as u64);
        prop_assert_eq!(view.starts.starts(), view.counters.total(Outcome::Admitted));
        prop_assert_eq!(run.world.kernel.starts.len() as u64, view.starts.starts());
    }

    /// C2, C4, E8: no sliding window over what really started holds too many starts, however late the news, and with
    /// clients that go away while they are being admitted.
    #[test]
    fn pace_windows_hold_for_what_really_started(
        rules in lane_rules(),
        per_second in 1u32..5,
        per_minute in prop::option::of(2u32..20),
        even in any::<bool>(),
        ops in prop::collection::vec(prop_oneof![12 => traffic(), 1 => trouble()], 1..150),
    ) {
        let pace = Pace {
            mode: if even { PaceMode::Even } else { PaceMode::Burst },
            per_second: Some(per_second),
            per_minute,
            min_interval: Duration::from_millis(20),
            ..PACE
        };
        let mut run = Run::new(LaneRules { pace: Some(pace), ..rules });
        for op in &ops {
            run.step(op);
        }
        let starts = &run.world.kernel.starts;
        for (rate, window) in [(Some(per_second), 1), (per_minute, 60)] {
            let Some(rate) = rate else { continue };
            for (first, &start) in starts.iter().enumerate() {
                let within = starts[first..].iter().filter(|s| s.since(start) < SECOND * window);
                prop_assert!(within.count() <= rate as usize, "{starts:?}");
            }
        }
        prop_assert_eq!(starts.iter().collect::<BTreeSet<_>>().len(), starts.len());
    }
}
