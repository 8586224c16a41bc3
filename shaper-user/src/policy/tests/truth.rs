//! The kernel's word is the truth: races, lost news, and pictures that overtake it.

use shaper_common::Class::{Bulk, Default as Normal, Interactive};

use super::*;

/// D2, E2: a waiter that is admitted to a slot which the kernel has just handed out keeps its place, and the lane its limit.
#[test]
fn a_waiter_whose_slot_was_taken_keeps_its_place() {
    let capped = LaneRules {
        class_cap: [None, None, Some(1)],
        ..rules(2)
    };
    let mut world = World::new(capped);
    world.arrive(Bulk);
    let waiter = world.arrive(Bulk);
    world.pass(SECOND);
    let quicker = world.connect(Normal, None).unwrap();
    assert!(world.is_open(quicker));
    let done = world.done.len();
    world.reload(rules(2));
    assert_eq!(
        world.admitted_since(done),
        [waiter],
        "a credit is left, it thinks"
    );
    assert_eq!(world.line(), [waiter]);
    assert_eq!(world.view().oldest_wait, Some(SECOND));
    assert_eq!(world.view().counters.get(Bulk, Outcome::Admitted), 1);

    world.deliver_all();
    assert!(world.waits(waiter));
    world.leave(quicker);
    assert!(world.is_open(waiter));
    assert_eq!(world.ended.last().unwrap().conn, waiter);
    assert_eq!(world.ended.len(), 3);
}

/// E4: where the news of a spent credit is lost, the policy tries again now and then, not all the time.
#[test]
fn a_failed_admission_is_tried_again_after_a_moment() {
    let mut world = World::new(LaneRules {
        class_cap: [None, None, Some(1)],
        ..rules(2)
    });
    world.arrive(Bulk);
    let waiter = world.arrive(Bulk);
    world.connect(Normal, None).unwrap();
    world.kernel.news.clear();
    world.reload(rules(2));
    let done = world.done.len();
    world.pass(SECOND);
    assert_eq!(world.admitted_since(done), [waiter; 20]);
}

/// E4: lost news delays, and the next picture makes good for it.
#[test]
fn a_picture_makes_good_for_lost_news() {
    let mut world = World::new(rules(2));
    let conns: Vec<_> = (0..2).map(|_| world.arrive(Normal)).collect();
    let waiter = world.arrive(Normal);
    world.kernel.close(conns[0]);
    let unheard = world.connect(Normal, None).unwrap();
    world.kernel.news.clear();
    world.pass(SECOND);
    assert!(world.waits(waiter) && world.waits(unheard));
    world.tell(Event::Reconcile(world.kernel.picture()));
    assert!(world.is_open(waiter) && world.waits(unheard));
    assert_eq!(world.line(), [unheard]);
    assert_eq!(
        world.view().oldest_wait,
        Some(SECOND),
        "since the kernel held it"
    );
}

/// A9: a waiter that only a picture told of, and that is gone when its turn comes, is counted once: the news of its wait, when
/// it comes, is of no other one.
#[test]
fn a_waiter_gone_before_its_turn_is_counted_once_however_late_its_news() {
    let rules = |limit| LaneRules {
        ticket_grace: Duration::ZERO,
        ..rules(limit)
    };
    let mut world = World::new(rules(1));
    world.arrive(Normal);
    let waiter = world.connect(Normal, None).unwrap();
    world.tell(Event::Reconcile(world.kernel.picture()));
    assert_eq!(world.line(), [waiter]);
    world.kernel.close(waiter);
    world.reload(rules(2));
    world.pass_without_news(SECOND);
    assert_eq!(world.view().counters.get(Normal, Outcome::Gone), 1);
    world.deliver_all();
    world.pass(SECOND);
    assert_eq!(world.view().counters.get(Normal, Outcome::Gone), 1);
}

/// E4: news that is older than a picture does not undo it, and starts are counted once.
#[test]
fn a_picture_that_overtakes_its_news_counts_nothing_twice() {
    let mut world = World::new(rules(2));
    let conns: Vec<_> = (0..3)
        .map(|_| world.connect(Normal, None).unwrap())
        .collect();
    world.tell(Event::Reconcile(world.kernel.picture()));
    assert_eq!(world.view().in_flight, [0, 2, 0]);
    world.deliver_all();
    let view = world.view();
    assert_eq!((view.in_flight, view.queued), ([0, 2, 0], [0, 1, 0]));
    assert_eq!(view.counters.total(Outcome::Admitted), 2);
    world.leave(conns[0]);
    assert!(world.is_open(conns[2]));
}

/// E5: a new controller finds the lane as the old one left it, places included.
#[test]
fn a_restarted_policy_takes_over_from_the_picture() {
    let mut world = World::new(rules(1));
    let holder = world.arrive(Normal);
    let first = world.arrive(Normal);
    world.pass(SECOND * 61);
    let second = world.arrive(Interactive);
    world.policy = Policy::new();
    world.reload(rules(1));
    world.tell(Event::Reconcile(world.kernel.picture()));
    assert_eq!(world.view().in_flight, [0, 1, 0]);
    assert_eq!(world.line(), [first, second]);
    assert!(world.view().saturated);
    world.leave(holder);
    assert!(world.is_open(first));
}

/// E4: a waiter that vanished unheard is found out by the picture and leaves its ticket.
#[test]
fn a_waiter_that_vanished_unheard_leaves_its_ticket() {
    let mut world = World::new(rules(1));
    world.arrive(Normal);
    let lost = world.connect_as(Normal, None, 7).unwrap();
    world.deliver_all();
    world.kernel.close(lost);
    world.kernel.news.clear();
    world.tell(Event::Reconcile(world.kernel.picture()));
    assert_eq!((world.view().queued, world.view().tickets), ([0; 3], 1));
}

/// An unsaturated lane asks for nothing: the kernel spends and refunds by itself.
#[test]
fn an_unsaturated_lane_needs_no_action() {
    let mut world = World::new(LaneRules {
        interactive_reserve: 1,
        ..rules(8)
    });
    let done = world.done.len();
    for _ in 0..100 {
        let conns = [Bulk, Normal, Interactive].map(|class| world.arrive(class));
        for conn in conns {
            world.leave(conn);
        }
    }
    assert_eq!(world.done[done..], []);
    assert_eq!(world.policy.next_deadline(), None);
}

/// E5: a controller that takes over finds slots and waiters as they are, in their order.
#[test]
fn another_controller_goes_on_with_slots_and_waiters() {
    let mut world = World::new(rules(2));
    let conns: Vec<_> = (0..2).map(|_| world.arrive(Normal)).collect();
    let first = world.arrive(Normal);
    world.pass(SECOND);
    let second = world.arrive(Normal);
    let done = world.done.len();
    world.restart(None);
    assert_eq!(world.admitted_since(done), []);
    assert_eq!(world.line(), [first, second]);
    assert_eq!(world.view().oldest_wait, Some(SECOND));
    assert_eq!(world.view().counters.get(Normal, Outcome::Admitted), 0);
    world.leave(conns[0]);
    assert!(world.is_open(first) && world.waits(second));
}

/// C6, E5: a pause that outlives a controller is in force from the next one's first moment: no credit is minted before it.
#[test]
fn a_pause_is_taken_over_before_anything_is_handed_out() {
    let mut world = World::new(rules(2));
    let end = world.now + SECOND * 10;
    world.tell(pause_until(end));
    let waiter = world.arrive(Normal);
    let lasting = world.policy.lasting(world::LANE);
    let done = world.done.len();
    world.restart(lasting);
    let minted = |action: &Action| matches!(action, Action::SetCredits { credits: 1.., .. });
    assert!(!world.done[done..].iter().any(minted));
    assert!(world.waits(waiter));
    world.pass(SECOND * 11);
    assert!(world.is_open(waiter));
}
