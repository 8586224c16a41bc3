//! What the first in line waits for: the one thing that is in its way, not a guess from the counts.

use shaper_common::Class::{Bulk, Default as Normal, Interactive};

use super::*;

fn first_waits_for(world: &World) -> Option<Hindrance> {
    world.view().waiting.map(|waiting| waiting.hindrance)
}

/// A18: slots, reserve, caps, pauses and the spacing after one are told apart, and nobody in line waits for nothing.
#[test]
fn the_first_in_line_waits_for_what_is_in_its_way() {
    let mut full = World::new(rules(1));
    assert_eq!(first_waits_for(&full), None);
    let holder = full.arrive(Normal);
    full.arrive(Bulk);
    let limits = full.view().limits;
    let in_use = 1;
    assert_eq!(
        first_waits_for(&full),
        Some(Hindrance::Limit { in_use, limits })
    );
    full.leave(holder);
    assert_eq!(first_waits_for(&full), None);

    let mut reserved = World::new(LaneRules {
        interactive_reserve: 1,
        ..rules(2)
    });
    reserved.arrive(Normal);
    reserved.arrive(Normal);
    let (free, reserve) = (1, 1);
    assert_eq!(
        first_waits_for(&reserved),
        Some(Hindrance::Reserve { free, reserve })
    );

    let (in_use, cap) = (1, 1);
    let mut class_capped = World::new(LaneRules {
        class_cap: [None, None, Some(1)],
        ..rules(3)
    });
    class_capped.arrive(Bulk);
    class_capped.arrive(Bulk);
    assert_eq!(
        first_waits_for(&class_capped),
        Some(Hindrance::ClassCap { in_use, cap })
    );

    let mut account_capped = World::new(LaneRules {
        account_cap: Some(1),
        ..rules(3)
    });
    account_capped.arrive_of(Normal, Some(7));
    account_capped.arrive_of(Normal, Some(7));
    let waiting = account_capped.view().waiting.unwrap();
    assert_eq!(waiting.hindrance, Hindrance::AccountCap { in_use, cap });
    assert_eq!(
        (waiting.class, waiting.account),
        (Normal, Some(AccountId(7)))
    );

    let mut paused = World::new(rules(20));
    paused.tell(pause_until(paused.now + SECOND * 30));
    paused.arrive(Normal);
    paused.arrive(Normal);
    assert_eq!(
        first_waits_for(&paused),
        Some(Hindrance::Pause(PausedBy::Operator))
    );
    paused.pass(SECOND * 30);
    assert_eq!(first_waits_for(&paused), Some(Hindrance::Spacing));
}

/// A18: an interactive waiter that the pace holds does not wait for the reserve, which is its own.
#[test]
fn interactive_work_before_its_own_reserve_waits_for_the_pace() {
    let mut world = World::new(LaneRules {
        interactive_reserve: 1,
        pace: Some(Pace {
            per_minute: Some(5),
            ..PACE
        }),
        ..rules(6)
    });
    for _ in 0..5 {
        world.arrive(Normal);
    }
    world.arrive(Normal);
    let (free, reserve) = (1, 1);
    assert_eq!(
        first_waits_for(&world),
        Some(Hindrance::Reserve { free, reserve })
    );
    world.arrive(Interactive);
    assert_eq!(first_waits_for(&world), Some(Hindrance::Spacing));
}

/// A18: who has aged up to interactive work may have what that does not need of its reserve.
#[test]
fn what_has_aged_does_not_wait_for_a_reserve_that_is_in_use() {
    let mut world = World::new(LaneRules {
        interactive_reserve: 1,
        pace: Some(Pace {
            min_interval: SECOND * 200,
            ..PACE
        }),
        ..rules(2)
    });
    world.arrive(Interactive);
    let waiter = world.arrive(Bulk);
    let (free, reserve) = (1, 1);
    assert_eq!(
        first_waits_for(&world),
        Some(Hindrance::Reserve { free, reserve })
    );
    world.pass(SECOND * 120);
    assert_eq!(first_waits_for(&world), Some(Hindrance::Spacing));
    world.pass(SECOND * 80);
    assert!(world.is_open(waiter));
}
