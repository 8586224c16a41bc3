//! Pauses, pace and a changing budget.

use shaper_common::Class::{Bulk, Default as Normal, Interactive};

use super::*;

/// C6: nothing starts while the lane is paused, not even interactive work on a free slot.
#[test]
fn nothing_starts_during_a_pause() {
    let mut world = World::new(LaneRules {
        interactive_reserve: 1,
        ..rules(3)
    });
    world.tell(pause_until(world.now + SECOND * 30));
    let waiter = world.arrive(Interactive);
    world.pass(SECOND * 29);
    assert!(world.waits(waiter));
    assert!(world.view().pause.is_some());
    world.pass(SECOND);
    assert!(world.is_open(waiter));
    assert_eq!(world.view().pause, None);
}

/// C6: a pause is honoured in full: a shorter one does not cut it, and `resume` does.
#[test]
fn a_pause_lasts_its_full_length() {
    let mut world = World::new(rules(1));
    let start = world.now;
    for seconds in [60, 5] {
        world.tell(pause_until(start + SECOND * seconds));
    }
    assert_eq!(world.view().pause.unwrap().until, start + SECOND * 60);
    world.tell(Event::Resume);
    let conn = world.arrive(Normal);
    assert!(world.is_open(conn));
}

/// C10: when a pause ends, waiters and newcomers start one by one, however many slots are free.
#[test]
fn no_herd_starts_when_a_pause_ends() {
    let mut world = World::new(rules(20));
    world.tell(pause_until(world.now + SECOND * 30));
    let end = world.now + SECOND * 30;
    for _ in 0..10 {
        world.arrive(Normal);
    }
    world.pass(SECOND * 30);
    for _ in 0..10 {
        world.arrive(Interactive);
    }
    world.pass(SECOND * 10);
    let starts = &world.kernel.starts;
    assert_eq!((starts.len(), starts[0]), (20, end));
    for pair in starts.windows(2) {
        assert_eq!(pair[1].since(pair[0]), Duration::from_millis(250));
    }
    assert!(
        world.kernel.word.refunds(),
        "and afterwards all is as before"
    );
}

/// C3, E8, B9: an even pace and a limit hold together, for waiters and newcomers alike.
#[test]
fn an_even_pace_spaces_starts_and_the_limit_still_holds() {
    let mut world = World::new(LaneRules {
        pace: Some(Pace {
            mode: PaceMode::Even,
            per_minute: Some(240),
            ..PACE
        }),
        ..rules(4)
    });
    let begin = world.now;
    for _ in 0..8 {
        world.arrive(Normal);
    }
    world.pass(SECOND * 5);
    let at: Vec<_> = world
        .kernel
        .starts
        .iter()
        .map(|s| s.since(begin).as_millis())
        .collect();
    assert_eq!(at, [0, 250, 500, 750]);
    world.run_dry();
    world.pass(SECOND);
    assert_eq!(world.kernel.starts.len(), 8);
}

/// C12: what never left is never counted as sent.
#[test]
fn a_client_that_went_away_while_it_was_admitted_used_up_no_start() {
    let mut world = World::new(LaneRules {
        pace: Some(Pace {
            per_minute: Some(1),
            ..PACE
        }),
        ..rules(4)
    });
    let gone = world.connect(Normal, None).unwrap();
    world.kernel.close(gone);
    world.deliver_all();
    assert_eq!(world.view().counters.total(Outcome::Admitted), 0);
    let next = world.arrive(Normal);
    assert!(world.is_open(next));
}

/// B8, C7: a lowered budget revokes nothing and is reached by releases; a raised one admits at once.
#[test]
fn a_budget_below_the_limit_is_the_limit() {
    let mut world = World::new(rules(4));
    let conns: Vec<_> = (0..4).map(|_| world.arrive(Normal)).collect();
    let waiter = world.arrive(Bulk);
    world.tell(Event::Budget(2));
    assert_eq!(world.view().in_flight, [0, 4, 0]);
    assert_eq!(world.view().limits.effective, 2);
    world.leave(conns[0]);
    world.leave(conns[1]);
    assert!(world.waits(waiter));
    world.leave(conns[2]);
    assert!(world.is_open(waiter));
    let next = world.arrive(Bulk);
    world.tell(Event::Budget(9));
    assert!(world.is_open(next));
    assert_eq!(world.view().limits.effective, 4);
}

/// B8: a lane that has no budget holds everybody and loses nobody.
#[test]
fn a_lane_without_budget_holds_everybody() {
    let mut world = World::new(rules(4));
    world.tell(Event::Budget(0));
    let conn = world.arrive(Interactive);
    world.pass(SECOND * 100);
    assert!(world.waits(conn));
    world.tell(Event::Budget(1));
    assert!(world.is_open(conn));
}
