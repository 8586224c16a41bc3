//! What a lane that observes shows of the limit that it would enforce.

use proptest::prelude::*;
use shaper_common::Class::{self, Bulk, Default as Normal, Interactive};

use super::*;

/// These rules, observed.
fn observed(rules: LaneRules) -> LaneRules {
    LaneRules {
        enforce: false,
        ..rules
    }
}

fn would_have(world: &World) -> WouldHave {
    world.view().would_have.expect("has a shadow")
}

fn setbacks(waited: u64, refused: u64, expired: u64) -> Setbacks {
    Setbacks {
        waited,
        refused,
        expired,
    }
}

/// A21, A2: of six requests at a limit of two, four would have waited; none of them does.
#[test]
fn who_would_have_waited_is_counted_and_not_held() {
    let mut world = World::new(observed(rules(2)));
    let done = world.done.len();
    let conns: Vec<_> = (0..6).map(|_| world.arrive(Normal)).collect();
    assert!(conns.iter().all(|&conn| world.is_open(conn)));
    let shown = would_have(&world);
    assert_eq!((shown.recent, shown.queued), (setbacks(4, 0, 0), 4));

    world.pass(SECOND * 10);
    world.leave(conns[0]);
    assert_eq!(would_have(&world).queued, 3, "one would have started");
    for &conn in &conns[1..] {
        world.leave(conn);
    }
    world.assert_empty();
    let shown = would_have(&world);
    assert_eq!((shown.total, shown.queued), (setbacks(4, 0, 0), 0));
    assert!(shown.wait_p50.unwrap() >= SECOND * 9, "{shown:?}");
    assert_eq!(world.done[done..], [], "nothing was asked of the kernel");
    world.pass(SECOND * 300);
    assert_eq!(would_have(&world).recent, Setbacks::default());
    assert_eq!(would_have(&world).total, setbacks(4, 0, 0));
}

/// A21: without a limit there is nothing to tell, and with one that is enforced it is no guess.
#[test]
fn only_an_observing_lane_with_a_limit_has_a_shadow() {
    for rules in [rules(0), observed(rules(0)), rules(2)] {
        assert_eq!(World::new(rules).view().would_have, None);
    }
}

/// A21: a full queue and a queue timeout turn away on paper only, and once.
#[test]
fn who_would_have_been_turned_away_is_counted_once() {
    let mut world = World::new(observed(LaneRules {
        max_queue: 1,
        queue_timeout: [SECOND * 5; 3],
        ..rules(1)
    }));
    let conns: Vec<_> = (0..4).map(|_| world.arrive(Normal)).collect();
    assert_eq!(would_have(&world).recent, setbacks(1, 2, 0));
    world.pass(SECOND * 5);
    let shown = would_have(&world);
    assert_eq!((shown.recent, shown.queued), (setbacks(1, 2, 1), 0));
    world.tell(Event::Reconcile(world.kernel.picture()));
    world.leave(conns[0]);
    assert_eq!(would_have(&world), shown);
    for &conn in &conns[1..] {
        world.leave(conn);
    }
    world.assert_empty();
}

/// A21, A8: a request on a kept connection arrives anew, and is never refused.
#[test]
fn a_further_request_on_a_kept_connection_waits_beyond_the_bound() {
    let mut world = World::new(observed(LaneRules {
        max_queue: 0,
        ..rules(1)
    }));
    let kept = world.arrive(Normal);
    world.kernel.park(kept);
    world.arrive(Normal);
    world.kernel.wake(world.now, kept);
    world.deliver_all();
    world.arrive(Normal);
    let shown = would_have(&world);
    assert_eq!((shown.total, shown.queued), (setbacks(1, 1, 0), 1));
}

/// A21: caps, also by an account's name, and the reserve count on paper.
#[test]
fn caps_and_reserve_count_on_paper() {
    let mut world = World::new(observed(LaneRules {
        interactive_reserve: 1,
        class_cap: [None, None, Some(1)],
        account_overrides: [("acme".to_owned(), 1)].into(),
        ..rules(4)
    }));
    world.policy.name_account(AccountId(7), "acme");
    world.arrive_of(Normal, Some(7));
    world.arrive_of(Normal, Some(7));
    assert_eq!(would_have(&world).total.waited, 1, "the account is full");
    world.policy.forget_account(AccountId(7));
    world.arrive_of(Interactive, Some(8));
    assert_eq!(
        would_have(&world).queued,
        0,
        "the account has no cap any more"
    );
    world.arrive(Bulk);
    assert_eq!(
        would_have(&world).total.waited,
        2,
        "the reserve is used, the rest too"
    );
}

/// A21: a pause and a smaller budget would have held; they do not.
#[test]
fn a_pause_and_a_smaller_budget_reach_the_shadow() {
    let mut world = World::new(observed(rules(3)));
    world.tell(Event::Budget(1));
    let first = world.arrive(Normal);
    let second = world.arrive(Normal);
    assert_eq!(would_have(&world).queued, 1);
    world.leave(first);
    world.leave(second);
    world.tell(pause_until(world.now + SECOND));
    let third = world.arrive(Normal);
    assert!(world.is_open(third));
    assert_eq!(would_have(&world).queued, 1);
    world.pass(SECOND);
    assert_eq!(would_have(&world).queued, 0);
    assert_eq!(would_have(&world).total, setbacks(2, 0, 0));
}

/// A21, E4: a picture that overtakes the news of an arrival takes nothing away from the count.
#[test]
fn a_picture_that_overtakes_its_news_hides_no_wait() {
    let mut world = World::new(observed(rules(1)));
    for _ in 0..3 {
        world.connect(Normal, None);
    }
    world.tell(Event::Reconcile(world.kernel.picture()));
    assert_eq!(would_have(&world).total.waited, 0);
    world.deliver_all();
    assert_eq!(
        (would_have(&world).total, would_have(&world).queued),
        (setbacks(2, 0, 0), 2)
    );
}

/// A21, E4: a picture makes good for lost news, of arrivals and of ends.
#[test]
fn a_picture_mends_the_shadow() {
    let mut world = World::new(observed(rules(1)));
    let conns: Vec<_> = (0..3).map(|_| world.arrive(Normal)).collect();
    let unheard = world.connect(Normal, None).unwrap();
    world.kernel.close(conns[0]);
    world.kernel.close(conns[1]);
    world.kernel.news.clear();
    world.tell(Event::Reconcile(world.kernel.picture()));
    let mut shown: Vec<_> = world.in_shadow().collect();
    shown.sort();
    assert_eq!(shown, [conns[2], unheard]);
}

/// A21, E5: what was in flight when the controller began has its slot and did not wait.
#[test]
fn a_restarted_shadow_begins_with_what_is_in_flight() {
    let mut world = World::new(observed(rules(2)));
    for _ in 0..3 {
        world.arrive(Normal);
    }
    world.policy = Policy::new();
    world.reload(observed(rules(2)));
    for _ in 0..2 {
        world.tell(Event::Reconcile(world.kernel.picture()));
    }
    assert_eq!(would_have(&world), WouldHave::default());
    world.arrive(Normal);
    assert_eq!(
        (would_have(&world).total, would_have(&world).queued),
        (setbacks(1, 0, 0), 1)
    );
}

/// A21, B7: enforcement off and on again: what waited goes, the shadow takes over where the lane was, and back.
#[test]
fn enforcement_is_a_switch() {
    let mut world = World::new(rules(2));
    let holders = [world.arrive(Normal), world.arrive(Normal)];
    let waiter = world.arrive(Normal);
    world.reload(observed(rules(2)));
    assert!(world.is_open(waiter));
    let shown = would_have(&world);
    assert_eq!(
        (shown.queued, shown.total),
        (1, Setbacks::default()),
        "it did wait"
    );
    world.leave(holders[0]);
    assert_eq!(would_have(&world).queued, 0);

    world.reload(rules(2));
    assert_eq!(world.view().would_have, None);
    let next = world.arrive(Normal);
    assert!(world.waits(next), "two are in flight");
    world.leave(holders[1]);
    assert!(world.is_open(next));
}

/// A21: another limit to try keeps the counts and what is in flight.
#[test]
fn another_limit_on_paper_keeps_the_counts() {
    let mut world = World::new(observed(rules(1)));
    for _ in 0..3 {
        world.arrive(Normal);
    }
    world.reload(observed(rules(2)));
    assert_eq!(
        (would_have(&world).total, would_have(&world).queued),
        (setbacks(2, 0, 0), 1)
    );
    world.reload(observed(rules(3)));
    assert_eq!(would_have(&world).queued, 0);
}

/// One thing that happens in two worlds. Indices choose among the requests that have not ended.
#[derive(Clone, Debug)]
enum Op {
    Arrive(Class, Option<u64>),
    End(usize),
    Pass(u64),
    Pause(u64),
    Budget(u32),
    Reload(Box<LaneRules>),
}

fn ops(length: usize) -> impl Strategy<Value = Vec<Op>> {
    let class = prop::sample::select(Class::ALL.to_vec());
    let account = prop::option::of(1u64..4);
    let op = prop_oneof![
        8 => (class, account).prop_map(|(class, account)| Op::Arrive(class, account)),
        6 => any::<usize>().prop_map(Op::End),
        3 => (1u64..1500).prop_map(Op::Pass),
        1 => (1u64..3000).prop_map(Op::Pause),
        1 => (0u32..6).prop_map(Op::Budget),
        1 => any_rules().prop_map(|rules| Op::Reload(Box::new(rules))),
    ];
    prop::collection::vec(op, 1..length)
}

fn any_rules() -> impl Strategy<Value = LaneRules> {
    let pace = prop::option::of(1u32..8).prop_map(|per_second| {
        per_second.map(|rate| Pace {
            per_second: Some(rate),
            ..PACE
        })
    });
    let caps = (prop::option::of(1u32..3), prop::option::of(1u32..3));
    (1u32..6, 0u32..3, 0u32..8, caps, pace).prop_map(
        |(limit, reserve, max_queue, (bulk_cap, account_cap), pace)| LaneRules {
            max_queue,
            queue_timeout: [SECOND * 4, SECOND * 5, SECOND * 6],
            interactive_reserve: reserve.min(limit - 1),
            aging: SECOND * 2,
            ticket_grace: Duration::ZERO,
            class_cap: [None, None, bulk_cap],
            account_cap,
            pace,
            ..rules(limit)
        },
    )
}

/// One request in the enforcing and in the observing world. `None`: it was refused.
type Twin = (Option<ConnHandle>, ConnHandle);

/// The same traffic before a lane that enforces and before one that observes. Requests end when they end, whether they
/// have started or not, so that what the limit does changes nothing about what comes.
#[derive(Debug)]
struct Twins {
    enforcing: World,
    observing: World,
    requests: Vec<Twin>,
    waited: u64,
}

impl Twins {
    fn new(rules: LaneRules) -> Self {
        Self {
            enforcing: World::new(rules.clone()),
            observing: World::new(observed(rules)),
            requests: Vec::new(),
            waited: 0,
        }
    }

    fn both(&mut self, work: impl Fn(&mut World)) {
        work(&mut self.enforcing);
        work(&mut self.observing);
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Arrive(class, account) => {
                let enforced = self.enforcing.connect(class, account);
                self.enforcing.deliver_all();
                let waits = enforced.is_some_and(|conn| self.enforcing.waits(conn));
                self.waited += u64::from(waits);
                let observed = self.observing.arrive_of(class, account);
                self.requests.push((enforced, observed));
            }
            Op::End(index) if !self.requests.is_empty() => {
                let (enforced, observed) = self.requests.remove(index % self.requests.len());
                if let Some(conn) =
                    enforced.filter(|&conn| self.enforcing.kernel.gate(conn).is_some())
                {
                    self.enforcing.leave(conn);
                }
                self.observing.leave(observed);
            }
            Op::End(_) => {}
            Op::Pass(ms) => self.both(|world| world.pass(Duration::from_millis(ms))),
            Op::Pause(ms) => self.both(|world| {
                world.tell(pause_until(world.now + Duration::from_millis(ms)));
            }),
            Op::Budget(budget) => self.both(|world| world.tell(Event::Budget(budget))),
            Op::Reload(ref rules) => {
                self.enforcing.reload(LaneRules::clone(rules));
                self.observing.reload(observed(LaneRules::clone(rules)));
            }
        }
        self.check();
    }

    /// The shadow is what the enforcing lane is: the same slots, the same line, the same counts.
    fn check(&self) {
        let shadow = self.observing.policy.lanes[&world::LANE]
            .shadow
            .as_ref()
            .unwrap();
        let twin = |conn: ConnHandle| {
            let found = self.requests.iter().find(|(_, observed)| *observed == conn);
            found.and_then(|(enforced, _)| *enforced)
        };
        let line = shadow
            .lane
            .queue
            .in_order(self.observing.now, shadow.lane.rules.aging);
        let line: Vec<_> = line.filter_map(|(waiter, _)| twin(waiter.conn)).collect();
        assert_eq!(line, self.enforcing.line());
        assert_eq!(line.len() as u32, shadow.lane.queue.len());

        let mut slots: Vec<_> = shadow.lane.ledger.conns().filter_map(twin).collect();
        slots.sort();
        let conns = &self.enforcing.kernel.conns;
        let open = conns
            .iter()
            .filter(|(_, state)| state.gate == kernel::Gate::Open);
        assert_eq!(slots, open.map(|(&conn, _)| conn).collect::<Vec<_>>());

        let (real, shown) = (self.enforcing.view(), would_have(&self.observing));
        let refused = real.counters.total(Outcome::Refused(Refusal::QueueFull));
        let expired = real.counters.total(Outcome::Expired);
        assert_eq!(shown.total, setbacks(self.waited, refused, expired));
        assert_eq!(
            shadow.lane.tally.counters.total(Outcome::Admitted),
            real.counters.total(Outcome::Admitted)
        );
        assert_eq!(shadow.lane.tally.starts, real.starts);
    }
}

/// What happens before enforcement is switched on.
#[derive(Clone, Copy, Debug)]
enum Before {
    Arrive,
    Leave(usize),
    Park(usize),
    Deliver(usize),
}

fn before() -> impl Strategy<Value = Before> {
    prop_oneof![
        4 => Just(Before::Arrive),
        2 => any::<usize>().prop_map(Before::Leave),
        1 => any::<usize>().prop_map(Before::Park),
        3 => (1usize..4).prop_map(Before::Deliver),
    ]
}

proptest! {
    #![proptest_config(cases(150))]

    /// A21: the shadow is at every step what an enforcing lane is with the same arrivals and ends, and asks for nothing.
    #[test]
    fn the_shadow_is_what_enforcing_would_be(rules in any_rules(), ops in ops(120)) {
        let mut twins = Twins::new(rules);
        let done = twins.observing.done.len();
        for op in &ops {
            twins.step(op);
        }
        while !twins.requests.is_empty() {
            twins.step(&Op::End(0));
        }
        let mut wanted = twins.observing.done[done..].iter();
        // What the lane itself may use changes with its budget.
        let only_limits = wanted.all(|action| matches!(action, Action::SetLimits { .. }));
        prop_assert!(only_limits);
        twins.both(|world| world.pass(SECOND * 20));
        twins.observing.assert_empty();
        twins.enforcing.assert_empty();
    }

    /// A21, B7: enforcement switched on over open connections begins with the true count, however late the news: a
    /// newcomer never makes it more than the limit, and waits only if the limit is reached.
    #[test]
    fn the_first_newcomer_waits_if_the_limit_is_reached_and_only_then(
        limit in 1u32..6,
        on_paper in 0u32..6,
        history in prop::collection::vec(before(), 0..40),
    ) {
        let mut world = World::new(observed(rules(on_paper)));
        for step in history {
            let open: Vec<_> = world.kernel.conns.iter()
                .filter(|(_, state)| state.gate == kernel::Gate::Open)
                .map(|(&conn, _)| conn)
                .collect();
            match step {
                Before::Arrive => {
                    world.connect(Normal, None);
                }
                Before::Leave(index) if !open.is_empty() => world.kernel.close(open[index % open.len()]),
                Before::Park(index) if !open.is_empty() => world.kernel.park(open[index % open.len()]),
                Before::Leave(_) | Before::Park(_) => {}
                Before::Deliver(count) => world.deliver(count),
            }
        }
        let truth = world.kernel.word.slots();
        world.reload(rules(limit));
        prop_assert_eq!(world.kernel.word.slots(), truth, "nothing is revoked, nothing admitted");
        let newcomer = world.connect(Normal, None).unwrap();
        prop_assert!(truth < limit || world.waits(newcomer));
        world.deliver_all();
        prop_assert_eq!(world.is_open(newcomer), truth < limit);
        let in_flight: u32 = world.view().in_flight.iter().sum();
        prop_assert_eq!(in_flight, truth + u32::from(truth < limit));
    }
}
