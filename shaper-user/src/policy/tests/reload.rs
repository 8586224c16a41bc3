//! Lanes added, changed and removed while connections are open.

use shaper_common::Class::{Bulk, Default as Normal, Interactive};

use super::*;

/// A14: a lower limit revokes nothing; a higher one admits at once.
#[test]
fn a_new_limit_applies_to_what_starts_from_now_on() {
    let mut world = World::new(rules(3));
    let conns: Vec<_> = (0..3).map(|_| world.arrive(Normal)).collect();
    let waiter = world.arrive(Normal);
    world.reload(rules(1));
    assert!(conns.iter().all(|&conn| world.is_open(conn)));
    world.leave(conns[0]);
    world.leave(conns[1]);
    assert!(world.waits(waiter));
    world.reload(rules(2));
    assert!(world.is_open(waiter));
}

/// A14: the same rules again change nothing and ask for nothing.
#[test]
fn the_same_rules_again_are_no_change() {
    let mut world = World::new(rules(2));
    world.arrive(Normal);
    let done = world.done.len();
    world.reload(rules(2));
    assert_eq!(world.done[done..], []);
}

/// E5: starts go on counting when a pace is changed.
#[test]
fn a_changed_pace_remembers_the_starts() {
    let paced = |per_minute| LaneRules {
        pace: Some(Pace {
            per_minute: Some(per_minute),
            ..PACE
        }),
        ..rules(9)
    };
    let mut world = World::new(paced(2));
    for _ in 0..6 {
        world.arrive(Normal);
    }
    world.reload(paced(3));
    assert_eq!(world.kernel.starts.len(), 3);
}

/// A14: caps that are lifted let waiters go.
#[test]
fn lifted_caps_let_waiters_go() {
    let mut world = World::new(LaneRules {
        account_cap: Some(1),
        class_cap: [None, None, Some(1)],
        ..rules(9)
    });
    world.arrive_of(Normal, Some(1));
    world.arrive(Bulk);
    let capped = [
        world.arrive_of(Normal, Some(1)),
        world.arrive_of(Interactive, Some(1)),
        world.arrive(Bulk),
    ];
    assert!(capped.iter().all(|&conn| world.waits(conn)));
    world.reload(rules(9));
    assert!(capped.iter().all(|&conn| world.is_open(conn)));
}

/// A21: from observing to enforcing, the true count is where it starts.
#[test]
fn enforcing_begins_with_the_true_count() {
    let mut world = World::new(rules(0));
    let conns: Vec<_> = (0..3).map(|_| world.arrive(Normal)).collect();
    world.reload(rules(2));
    let waiter = world.arrive(Normal);
    world.leave(conns[0]);
    assert!(world.waits(waiter), "two are still in flight");
    world.leave(conns[1]);
    assert!(world.is_open(waiter));
}

/// A2: from enforcing to observing, nobody is held any more.
#[test]
fn observing_lets_everybody_start() {
    let mut world = World::new(rules(1));
    world.arrive(Normal);
    let waiters = [world.arrive(Bulk), world.arrive(Interactive)];
    world.reload(rules(0));
    assert!(waiters.iter().all(|&conn| world.is_open(conn)));
    assert_eq!(world.view().in_flight, [1, 1, 1]);
}

/// A14: a removed lane lets its waiters go, and late news of it harms nobody.
#[test]
fn a_removed_lane_lets_its_waiters_go() {
    let mut world = World::new(rules(1));
    let holder = world.arrive(Normal);
    let [bulk, urgent] = [Bulk, Interactive].map(|class| world.arrive(class));
    let mut actions = Vec::new();
    world
        .policy
        .remove_lane(world.now, world::LANE, &mut actions);
    let let_go = [urgent, bulk].map(|conn| Action::LetGo {
        lane: world::LANE,
        conn,
    });
    assert_eq!(actions, let_go);
    assert_eq!(world.policy.next_deadline(), None);
    let outcomes: Vec<_> = world.policy.drain_ended().map(|e| e.outcome).collect();
    assert_eq!(outcomes, [Outcome::Bypassed; 2]);
    let late = Event::Released {
        conn: holder,
        refunded: false,
    };
    world
        .policy
        .on_event(world.now, world::LANE, late, &mut Vec::new());
    assert_eq!(world.policy.lanes().count(), 0);
}
