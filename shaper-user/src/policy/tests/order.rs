//! Who goes first: classes, arrival, aging, reserve and caps.

use shaper_common::Class::{Bulk, Default as Normal, Interactive};

use super::*;

/// A5, E2: strict order by class, first come first served within.
#[test]
fn classes_go_in_order_and_arrivals_within_them() {
    let mut world = World::new(rules(1));
    world.arrive(Normal);
    let [b1, n1, b2, i1, n2, i2] =
        [Bulk, Normal, Bulk, Interactive, Normal, Interactive].map(|class| world.arrive(class));
    assert_eq!(world.line(), [i1, i2, n1, n2, b1, b2]);
    assert_eq!(world.run_dry(), [i1, i2, n1, n2, b1, b2]);
    world.assert_empty();
}

/// A5: an interactive connect overtakes nine queued bulk ones.
#[test]
fn an_interactive_connect_overtakes_nine_queued_bulk_ones() {
    let mut world = World::new(rules(1));
    world.arrive(Bulk);
    for _ in 0..9 {
        world.arrive(Bulk);
    }
    let urgent = world.arrive(Interactive);
    assert_eq!(world.run_dry()[0], urgent);
}

/// E2: a slot that comes free goes to the waiter, although a newcomer of its class is quicker.
#[test]
fn a_newcomer_does_not_pass_a_waiter_of_its_class() {
    let mut world = World::new(rules(1));
    let first = world.arrive(Normal);
    let waiter = world.arrive(Normal);
    world.kernel.close(first);
    let newcomer = world.connect(Normal, None).unwrap();
    assert!(world.waits(newcomer));
    world.deliver_all();
    assert!(world.is_open(waiter) && world.waits(newcomer));
}

/// A6: an aged bulk waiter passes fresh default ones, a younger one does not.
#[test]
fn aging_lets_a_bulk_waiter_pass_fresh_default_ones() {
    let mut world = World::new(rules(1));
    world.arrive(Normal);
    let old = world.arrive(Bulk);
    world.pass(SECOND * 60);
    let fresh = world.arrive(Normal);
    let young = world.arrive(Bulk);
    assert_eq!(world.run_dry(), [old, fresh, young]);
}

/// A6: from the second step on, a bulk waiter ranks with interactive ones, by arrival.
#[test]
fn a_bulk_waiter_rises_two_steps() {
    let mut world = World::new(rules(1));
    world.arrive(Normal);
    let bulk = world.arrive(Bulk);
    world.pass(SECOND * 119);
    let before = world.arrive(Interactive);
    assert_eq!(world.line(), [before, bulk]);
    world.pass(SECOND);
    assert_eq!(world.line(), [bulk, before]);
    let waiter = world.policy.waiters(world.now, world::LANE).next().unwrap();
    assert_eq!((waiter.class, waiter.effective_class), (Bulk, Interactive));
}

/// A6: who has aged up to a class is not passed by newcomers of that class either.
#[test]
fn a_barrier_stands_before_newcomers_of_the_class_that_a_waiter_has_aged_to() {
    let mut world = World::new(rules(1));
    let first = world.arrive(Normal);
    let bulk = world.arrive(Bulk);
    assert_eq!(world.kernel.barrier, None);
    world.pass(SECOND * 60);
    assert_eq!(world.kernel.barrier, Some(Normal));
    world.pass(SECOND * 60);
    assert_eq!(world.kernel.barrier, Some(Interactive));
    world.leave(first);
    assert!(world.is_open(bulk));
    assert_eq!(world.kernel.barrier, None);
}

/// A4: with a reserve of one of three, a bulk flood never takes the third slot, and interactive work finds it at once.
#[test]
fn a_flood_never_takes_the_reserve() {
    let mut world = World::new(LaneRules {
        interactive_reserve: 1,
        ..rules(3)
    });
    for _ in 0..10 {
        world.arrive(Bulk);
    }
    assert_eq!(world.kernel.in_flight(), [0, 0, 2]);
    let urgent = world.connect(Interactive, None).unwrap();
    assert!(world.is_open(urgent), "without asking the controller");
}

/// A4, A6: aging changes the order, never the right to the reserve.
#[test]
fn an_aged_bulk_waiter_does_not_get_the_reserve() {
    let mut world = World::new(LaneRules {
        interactive_reserve: 1,
        ..rules(3)
    });
    for _ in 0..3 {
        world.arrive(Bulk);
    }
    world.pass(SECOND * 200);
    assert_eq!(world.kernel.in_flight(), [0, 0, 2]);
    let urgent = world.arrive(Interactive);
    assert!(world.is_open(urgent));
}

/// A4, A6: interactive work that fills its reserve and asks for more does not keep an aged waiter from the last slot; work
/// that has not aged leaves a reserve free besides.
#[test]
fn an_aged_waiter_gets_the_slot_that_the_reserve_leaves() {
    let mut world = World::new(LaneRules {
        interactive_reserve: 2,
        ..rules(3)
    });
    let urgent = [Interactive, Interactive].map(|class| world.arrive(class));
    let bulk = world.arrive(Bulk);
    world.pass(SECOND * 119);
    assert!(world.waits(bulk));
    world.pass(SECOND);
    assert!(world.is_open(bulk));
    let other = world.arrive(Bulk);
    world.pass(SECOND * 120);
    world.leave(urgent[0]);
    assert!(world.waits(other), "the rest is the reserve");
    let next = world.arrive(Interactive);
    assert!(world.is_open(next));
}

/// A4: the reserve always leaves one slot for the rest, also under a lowered budget.
#[test]
fn the_reserve_leaves_one_slot_for_the_rest() {
    let mut world = World::new(LaneRules {
        interactive_reserve: 2,
        ..rules(3)
    });
    world.tell(Event::Budget(1));
    assert_eq!(world.view().limits.reserve, 0);
    let only = world.arrive(Bulk);
    assert!(world.is_open(only));
}

/// B4: bulk at its cap leaves idle slots to others, and its waiters hold nobody else up.
#[test]
fn a_capped_class_leaves_idle_slots_to_others() {
    let mut world = World::new(LaneRules {
        class_cap: [None, None, Some(1)],
        ..rules(3)
    });
    let [first, second] = [Bulk, Bulk].map(|class| world.arrive(class));
    assert!(world.waits(second));
    let other = world.connect(Normal, None).unwrap();
    assert!(world.is_open(other), "without asking the controller");
    world.leave(first);
    assert!(world.is_open(second));
}

/// B2: one account at its cap waits while another proceeds, although it came later.
#[test]
fn a_capped_account_holds_up_nobody_else() {
    let mut world = World::new(LaneRules {
        account_cap: Some(2),
        ..rules(5)
    });
    let of_one: Vec<_> = (0..4).map(|_| world.arrive_of(Bulk, Some(1))).collect();
    let other = world.arrive_of(Bulk, Some(2));
    assert_eq!(world.kernel.in_flight(), [0, 0, 3]);
    assert!(world.is_open(other) && world.waits(of_one[2]));
    world.leave(of_one[0]);
    assert!(world.is_open(of_one[2]) && world.waits(of_one[3]));
    let view = world.view();
    assert_eq!(
        view.accounts
            .iter()
            .map(|a| (a.account.0, a.in_flight, a.queued))
            .collect::<Vec<_>>(),
        [(1, 2, 1), (2, 1, 0)]
    );
}

/// B3: a default cap for accounts, and overrides by name.
#[test]
fn an_account_may_have_its_own_cap() {
    let mut policy = Policy::new();
    let overrides = BTreeMap::from([("acme".to_owned(), 20)]);
    let with_names = LaneRules {
        account_cap: Some(3),
        account_overrides: overrides,
        ..rules(40)
    };
    policy.set_lane(Ns(0), world::LANE, "lane", with_names, &mut Vec::new());
    policy.name_account(AccountId(1), "acme");
    policy.name_account(AccountId(2), "other");
    let caps = [1, 2, 9].map(|account| policy.account_cap(world::LANE, AccountId(account)));
    assert_eq!(caps, [Some(20), Some(3), Some(3)]);
    policy.forget_account(AccountId(1));
    assert_eq!(policy.account_cap(world::LANE, AccountId(1)), Some(3));
}

/// B2: accounts share a cap across classes: it bounds the tenant.
#[test]
fn an_account_cap_counts_all_classes() {
    let mut world = World::new(LaneRules {
        account_cap: Some(1),
        ..rules(5)
    });
    world.arrive_of(Bulk, Some(1));
    let second = world.arrive_of(Interactive, Some(1));
    assert!(world.waits(second));
}

/// D6: a lane's queue is no other lane's business.
#[test]
fn lanes_do_not_block_each_other() {
    let mut world = World::new(rules(1));
    world.arrive(Normal);
    world.arrive(Normal);
    let mut actions = Vec::new();
    let other = LaneId(9);
    world
        .policy
        .set_lane(world.now, other, "other", rules(1), &mut actions);
    assert_eq!(
        actions,
        [
            Action::SetLimits {
                lane: other,
                limits: Limits {
                    limit: 1,
                    effective: 1,
                    reserve: 0
                }
            },
            Action::SetCredits {
                lane: other,
                credits: 1,
                refunds: true
            },
            Action::SetBarrier {
                lane: other,
                barrier: None
            }
        ]
    );
}
