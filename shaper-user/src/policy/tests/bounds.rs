//! How long somebody waits at most, how many may wait, and what is told of it.

use shaper_common::Class::{Bulk, Default as Normal, Interactive};

use super::*;

fn expiries(world: &World) -> Vec<Expiry> {
    let expiry = |action: &Action| match action {
        Action::Expire(expiry) => Some(expiry.clone()),
        _ => None,
    };
    world.done.iter().filter_map(expiry).collect()
}

/// A3, A11, A12: a queue timeout ends the wait once, and tells lane, wait and position.
#[test]
fn a_queue_timeout_tells_lane_wait_and_position() {
    let mut world = World::new(LaneRules {
        queue_timeout: [SECOND * 30; 3],
        ..rules(1)
    });
    world.arrive(Normal);
    let bulk = world.arrive(Bulk);
    world.pass(SECOND * 10);
    let urgent = world.arrive(Interactive);
    world.pass(SECOND * 20);
    let expiries = expiries(&world);
    let [expiry] = &expiries[..] else {
        panic!("one expiry, not {expiries:?}")
    };
    assert_eq!((expiry.conn, expiry.lane), (bulk, world::LANE));
    assert_eq!(
        (expiry.wait, expiry.position, expiry.queued),
        (SECOND * 30, 2, 2)
    );
    assert!(world.waits(urgent));
    assert_eq!(world.view().queue_timeouts, 1);
    assert_eq!(world.view().counters.get(Bulk, Outcome::Expired), 1);
}

/// A11, B5: a queue timeout tells what kept the waiter from starting, and the counts then.
#[test]
fn a_queue_timeout_tells_what_kept_the_waiter_from_starting() {
    use Hindrance::{AccountCap, ClassCap, Limit, Pause as Paused, Reserve, Spacing};
    let account = Some(7);
    let limits = |limit, reserve| Limits {
        limit,
        effective: limit,
        reserve,
    };
    let base = || LaneRules {
        queue_timeout: [SECOND * 3; 3],
        ..rules(2)
    };
    let mut capped = base();
    capped.class_cap[Bulk.index()] = Some(1);
    let accounts = LaneRules {
        account_cap: Some(1),
        ..base()
    };
    let reserved = LaneRules {
        interactive_reserve: 1,
        ..base()
    };
    let paced = LaneRules {
        pace: Some(Pace {
            per_minute: Some(1),
            ..PACE
        }),
        ..base()
    };
    for (rules, account, ahead, expected) in [
        (
            base(),
            None,
            2,
            Limit {
                in_use: 2,
                limits: limits(2, 0),
            },
        ),
        (capped, None, 1, ClassCap { in_use: 1, cap: 1 }),
        (accounts, account, 1, AccountCap { in_use: 1, cap: 1 }),
        (
            reserved,
            None,
            1,
            Reserve {
                free: 1,
                reserve: 1,
            },
        ),
        (paced, None, 1, Spacing),
    ] {
        let mut world = World::new(rules);
        for _ in 0..=ahead {
            world.connect(Bulk, account);
        }
        world.deliver_all();
        world.pass(SECOND * 3);
        let expiries = expiries(&world);
        let [expiry] = &expiries[..] else {
            panic!("one expiry for {expected:?}, not {expiries:?}")
        };
        assert_eq!((expiry.hindrance, expiry.in_flight), (expected, ahead));
    }
    let mut world = World::new(base());
    world.tell(pause_until(world.now + SECOND * 60));
    world.connect(Bulk, None);
    world.deliver_all();
    world.pass(SECOND * 3);
    assert_eq!(expiries(&world)[0].hindrance, Paused(PausedBy::Operator));
}

/// A3: each class has its own timeout.
#[test]
fn the_timeout_is_the_class_own() {
    let mut world = World::new(LaneRules {
        queue_timeout: [SECOND * 5, SECOND * 20, SECOND * 10],
        ..rules(1)
    });
    world.arrive(Normal);
    let waiters = [Bulk, Normal, Interactive].map(|class| world.arrive(class));
    let waiting = |world: &World| waiters.map(|conn| world.waits(conn));
    world.pass(SECOND * 5);
    assert_eq!(waiting(&world), [true, true, false]);
    world.pass(SECOND * 5);
    assert_eq!(waiting(&world), [false, true, false]);
    world.pass(SECOND * 10);
    assert_eq!(waiting(&world), [false; 3]);
}

/// A9: an expired waiter whose socket could not be ended stays expired, and is forgotten when it goes at last.
#[test]
fn a_waiter_that_cannot_be_ended_expires_once() {
    let mut world = World::new(rules(1));
    let holder = world.arrive(Normal);
    let stuck = world.arrive(Normal);
    let mut actions = Vec::new();
    world.now = world.now + SECOND * 300;
    world.policy.tick(world.now, &mut actions);
    // Nobody carries this out.
    assert!(matches!(&actions[0], Action::Expire(expiry) if expiry.conn == stuck));
    world.tell(Event::Reconcile(world.kernel.picture()));
    world.pass(SECOND * 300);
    assert_eq!(world.view().counters.total(Outcome::Expired), 1);
    world.leave(stuck);
    world.leave(holder);
    world.pass(SECOND * 10);
    world.assert_empty();
}

/// D2, D3, D10: 40 clients, limit 6, queue 8: six go, eight wait, the rest is refused at once and counted.
#[test]
fn the_overflow_is_refused_and_counted() {
    let mut world = World::new(LaneRules {
        max_queue: 8,
        ..rules(6)
    });
    let came: Vec<_> = (0..40).map(|_| world.connect(Normal, None)).collect();
    world.deliver_all();
    assert_eq!(came.iter().flatten().count(), 14);
    let view = world.view();
    assert_eq!((view.in_flight, view.queued), ([0, 6, 0], [0, 8, 0]));
    assert_eq!(view.refusals, 26);
    let refused = Outcome::Refused(Refusal::QueueFull);
    assert_eq!(view.counters.get(Normal, refused), 26);
    assert_eq!(world.run_dry().len(), 8);
}

/// D3: a resumed request over the bound is queued, for its connection exists.
#[test]
fn a_resumed_request_is_queued_over_the_bound() {
    let mut world = World::new(LaneRules {
        max_queue: 0,
        ..rules(1)
    });
    let kept = world.arrive(Normal);
    world.kernel.park(kept);
    world.deliver_all();
    let other = world.arrive(Normal);
    world.kernel.wake(world.now, kept);
    world.deliver_all();
    assert!(world.waits(kept));
    world.leave(other);
    assert!(world.is_open(kept));
}

/// A8: a parked connection costs no slot, and a forced one is counted.
#[test]
fn a_parked_connection_costs_nothing_until_it_takes_its_slot_back() {
    let mut world = World::new(rules(1));
    let kept = world.arrive(Normal);
    world.kernel.park(kept);
    let other = world.connect(Normal, None).unwrap();
    assert!(world.is_open(other), "the slot was refunded in the kernel");
    world.kernel.overrun(kept);
    world.deliver_all();
    assert_eq!(world.view().in_flight, [0, 2, 0]);
    let waiter = world.arrive(Normal);
    world.leave(other);
    assert!(world.waits(waiter), "one slot too many is in use");
    world.leave(kept);
    assert!(world.is_open(waiter));
}

/// A10: after `connect_hold` the connection is let through and its request waits on, at the same place.
#[test]
fn a_held_connect_becomes_a_held_request_and_keeps_its_place() {
    let mut world = World::new(LaneRules {
        connect_hold: ConnectHold::For(SECOND * 4),
        ..rules(1)
    });
    world.arrive(Normal);
    let first = world.arrive(Normal);
    world.pass(SECOND * 3);
    let second = world.arrive(Normal);
    world.pass(SECOND);
    assert_eq!(
        world.kernel.gate(first),
        Some(kernel::Gate::Held(Stage::Request))
    );
    assert_eq!(
        world.kernel.gate(second),
        Some(kernel::Gate::Held(Stage::Connect))
    );
    assert_eq!(world.line(), [first, second]);
}

/// A10: `connect_hold = "0s"` holds requests only, `"always"` holds connects to the end.
#[test]
fn a_connect_is_held_for_no_time_or_all_of_it() {
    for (hold, passes) in [
        (ConnectHold::For(Duration::ZERO), true),
        (ConnectHold::Always, false),
    ] {
        let mut world = World::new(LaneRules {
            connect_hold: hold,
            ..rules(1)
        });
        world.arrive(Normal);
        let waiter = world.arrive(Normal);
        world.pass(SECOND * 299);
        let pass = Action::PassConnect {
            lane: world::LANE,
            conn: waiter,
        };
        assert_eq!(world.done.contains(&pass), passes, "{hold:?}");
    }
}

/// A15, A16: what the snapshot says of a lane that queues.
#[test]
fn the_view_tells_of_waits_and_saturation() {
    let mut world = World::new(rules(1));
    let mut holder = world.arrive(Normal);
    let waiters = [Normal, Bulk].map(|class| world.arrive(class));
    world.pass(SECOND * 59);
    assert!(!world.view().saturated);
    world.pass(SECOND);
    let view = world.view();
    assert!(view.saturated);
    assert_eq!(view.queued, [0, 1, 1]);
    assert_eq!(view.oldest_wait, Some(SECOND * 60));
    for waiter in waiters {
        world.leave(holder);
        holder = waiter;
    }
    let view = world.view();
    assert!(!view.saturated);
    assert_eq!(view.oldest_wait, None);
    let p90 = view.wait_p90.unwrap().as_secs_f64();
    assert!((p90 - 60.0).abs() < 2.4, "{p90} s");
    let waits: Vec<_> = world.ended.iter().map(|e| e.wait).collect();
    assert_eq!(waits, [Duration::ZERO, SECOND * 60, SECOND * 60]);
}

/// A2, A21: an observing lane holds nobody and counts what each limit would have done.
#[test]
fn an_observing_lane_holds_nobody_and_tells_who_would_have_waited() {
    let mut world = World::new(rules(0));
    let conns: Vec<_> = (0..5).map(|_| world.arrive(Normal)).collect();
    assert!(conns.iter().all(|&conn| world.is_open(conn)));
    let view = world.view();
    assert_eq!((view.in_flight, view.peak_in_flight), ([0, 5, 0], 5));
    assert_eq!(view.starts.would_have_waited(3), 2);
    for conn in conns {
        world.leave(conn);
    }
    assert_eq!(world.view().peak_in_flight, 5);
    world.assert_empty();
}
