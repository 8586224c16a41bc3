//! What an event costs does not grow with the number of waiters.

use std::time::Instant;

use shaper_common::Class;

use super::*;

/// A lane with this many waiters of a hundred accounts, half of which are at their cap.
fn crowded(waiters: u64) -> Policy {
    let mut policy = Policy::new();
    let rules = LaneRules {
        account_cap: Some(1),
        max_queue: u32::MAX,
        ..rules(50)
    };
    policy.set_lane(Ns(0), world::LANE, "lane", rules, &mut Vec::new());
    for number in 0..50 {
        let open = OpenConn {
            conn: ConnHandle(number),
            class: Class::Default,
            account: Some(AccountId(1 + number)),
            client: ClientId(1),
            since: Ns(0),
        };
        policy.on_event(Ns(0), world::LANE, Event::Opened(open), &mut Vec::new());
    }
    for number in 50..50 + waiters {
        arrive(&mut policy, number, 1 + number % 100);
    }
    policy
}

fn arrive(policy: &mut Policy, number: u64, account: u64) {
    let held = HeldConn {
        conn: ConnHandle(number),
        class: Class::ALL[number as usize % 3],
        account: Some(AccountId(account)),
        client: ClientId(number as u32),
        stage: Stage::Connect,
        since: Ns(number),
    };
    policy.on_event(Ns(number), world::LANE, Event::Held(held), &mut Vec::new());
}

/// The shortest of several measurements of a few thousand events: a slot comes free, its successor starts, somebody
/// arrives.
fn cost(waiters: u64) -> Duration {
    let mut policy = crowded(waiters);
    let mut next = 50 + waiters;
    let mut free = ConnHandle(0);
    let rounds = (0..8).map(|_| {
        let begin = Instant::now();
        for _ in 0..300 {
            let mut actions = Vec::new();
            let released = Event::Released {
                conn: free,
                refunded: false,
            };
            policy.on_event(Ns(next), world::LANE, released, &mut actions);
            let Some(Action::Admit { conn, .. }) = actions.first() else {
                panic!("somebody must go, not {actions:?}");
            };
            free = *conn;
            arrive(&mut policy, next, 51 + next % 50);
            next += 1;
        }
        begin.elapsed()
    });
    rounds.min().unwrap_or_default()
}

/// Design 5: the cost of an event with 100,000 waiters is of the order of that with 100.
#[test]
fn an_event_costs_about_the_same_with_a_hundred_thousand_waiters() {
    let few = cost(100);
    let many = cost(100_000);
    assert!(
        many < few * 10,
        "300 rounds take {many:?} with 100,000 waiters and {few:?} with 100"
    );
}

/// The shortest of several measurements of a few hundred looks at a lane.
fn cost_of_looks(waiters: u64) -> Duration {
    let policy = crowded(waiters);
    let now = Ns(50 + waiters);
    let rounds = (0..8).map(|_| {
        let begin = Instant::now();
        for _ in 0..300 {
            let view = policy.view(now, world::LANE).expect("exists");
            assert!(view.waiting.is_some());
        }
        begin.elapsed()
    });
    rounds.min().unwrap_or_default()
}

/// A16: what is shown every second costs about the same however many wait.
#[test]
fn a_look_costs_about_the_same_with_a_hundred_thousand_waiters() {
    let few = cost_of_looks(100);
    let many = cost_of_looks(100_000);
    assert!(
        many < few * 10,
        "300 looks take {many:?} with 100,000 waiters and {few:?} with 100"
    );
}

/// The shortest of several measurements of a few thousand events before a lane that observes: somebody arrives behind
/// this many who would wait, and somebody's turn in the shadow comes.
fn cost_of_shadow(waiters: u64) -> Duration {
    let mut policy = Policy::new();
    let rules = LaneRules {
        enforce: false,
        max_queue: u32::MAX,
        ..rules(50)
    };
    policy.set_lane(Ns(0), world::LANE, "lane", rules, &mut Vec::new());
    let arrive = |policy: &mut Policy, number| {
        let open = OpenConn {
            conn: ConnHandle(number),
            class: Class::ALL[number as usize % 3],
            account: Some(AccountId(1 + number % 100)),
            client: ClientId(number as u32),
            since: Ns(number),
        };
        policy.on_event(
            Ns(number),
            world::LANE,
            Event::Opened(open),
            &mut Vec::new(),
        );
    };
    let mut next = 50 + waiters;
    (0..next).for_each(|number| arrive(&mut policy, number));
    let mut oldest = 0;
    let rounds = (0..8).map(|_| {
        let begin = Instant::now();
        for _ in 0..300 {
            let released = Event::Released {
                conn: ConnHandle(oldest),
                refunded: false,
            };
            policy.on_event(Ns(next), world::LANE, released, &mut Vec::new());
            arrive(&mut policy, next);
            (oldest, next) = (oldest + 1, next + 1);
        }
        begin.elapsed()
    });
    rounds.min().unwrap_or_default()
}

/// A21: on paper, too, an event costs about the same however many would wait.
#[test]
fn an_event_costs_about_the_same_with_a_hundred_thousand_in_the_shadow() {
    let few = cost_of_shadow(100);
    let many = cost_of_shadow(100_000);
    assert!(
        many < few * 10,
        "300 rounds take {many:?} with 100,000 in the shadow and {few:?} with 100"
    );
}
