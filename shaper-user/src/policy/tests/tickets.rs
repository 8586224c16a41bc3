//! Places in line that outlive their sockets.

use shaper_common::Class::{Default as Normal, Interactive};

use super::*;

/// A13: a client that reconnects keeps its arrival time and is served before a later one.
#[test]
fn a_client_that_reconnects_keeps_its_place() {
    let mut world = World::new(rules(1));
    world.arrive(Normal);
    let gave_up = world.connect_as(Normal, None, 7).unwrap();
    world.pass(SECOND);
    let later = world.arrive(Normal);
    world.pass(SECOND * 4);
    world.leave(gave_up);
    assert_eq!(world.view().queued, [0, 1, 0]);
    world.pass(SECOND * 2);
    let again = world.connect_as(Normal, None, 7).unwrap();
    world.deliver_all();
    assert_eq!(world.line(), [again, later]);
    assert_eq!(world.view().oldest_wait, Some(SECOND * 7));
    assert_eq!(world.run_dry(), [again, later]);
    let outcomes: Vec<_> = world.ended.iter().map(|e| (e.conn, e.outcome)).collect();
    assert!(
        !outcomes.iter().any(|(conn, _)| *conn == gave_up),
        "{outcomes:?}"
    );
}

/// A13: only the same process, and only for so long.
#[test]
fn a_ticket_is_its_process_own_and_lapses() {
    let mut world = World::new(rules(1));
    world.arrive(Normal);
    let gave_up = world.connect_as(Normal, None, 7).unwrap();
    let later = world.arrive(Normal);
    world.leave(gave_up);
    world.pass(SECOND);
    let stranger = world.connect_as(Normal, None, 8).unwrap();
    world.deliver_all();
    assert_eq!(world.line(), [later, stranger]);
    world.pass(SECOND * 9);
    let too_late = world.connect_as(Normal, None, 7).unwrap();
    world.deliver_all();
    assert_eq!(world.line(), [later, stranger, too_late]);
    let gone: Vec<_> = world
        .ended
        .iter()
        .filter(|e| e.outcome == Outcome::Gone)
        .map(|e| (e.conn, e.wait))
        .collect();
    assert_eq!(gone, [(gave_up, Duration::ZERO)]);
}

/// A13, E3: a client that comes back to a free slot has waited, and its ticket is spent.
#[test]
fn a_client_that_comes_back_to_a_free_slot_spends_its_ticket() {
    let mut world = World::new(rules(1));
    let holder = world.arrive(Normal);
    let gave_up = world.connect_as(Normal, None, 7).unwrap();
    world.pass(SECOND * 5);
    world.leave(gave_up);
    world.leave(holder);
    let again = world.connect_as(Normal, None, 7).unwrap();
    world.deliver_all();
    assert!(world.is_open(again));
    assert_eq!(world.view().tickets, 0);
    assert_eq!(world.ended.last().unwrap().wait, SECOND * 5);
}

/// A3, A13: the bound is on the whole wait, whichever socket it is spent on.
#[test]
fn the_queue_timeout_counts_from_the_ticket() {
    let mut world = World::new(LaneRules {
        queue_timeout: [SECOND * 30; 3],
        ..rules(1)
    });
    world.arrive(Normal);
    let gave_up = world.connect_as(Normal, None, 7).unwrap();
    world.pass(SECOND * 20);
    world.leave(gave_up);
    let again = world.connect_as(Normal, None, 7).unwrap();
    world.pass(SECOND * 10);
    assert!(!world.waits(again));
    assert_eq!(world.ended.last().unwrap().wait, SECOND * 30);
}

/// A10: the connect hold is about the client's connect timeout, so it counts from the socket.
#[test]
fn the_connect_hold_counts_from_the_socket() {
    let mut world = World::new(LaneRules {
        connect_hold: ConnectHold::For(SECOND * 4),
        ..rules(1)
    });
    world.arrive(Normal);
    let gave_up = world.connect_as(Normal, None, 7).unwrap();
    world.pass(SECOND * 3);
    world.leave(gave_up);
    let again = world.connect_as(Normal, None, 7).unwrap();
    world.pass(SECOND * 3);
    assert_eq!(
        world.kernel.gate(again),
        Some(kernel::Gate::Held(Stage::Connect))
    );
    world.pass(SECOND);
    assert_eq!(
        world.kernel.gate(again),
        Some(kernel::Gate::Held(Stage::Request))
    );
}

/// D5, A9: a client that leaves while it waits never takes a slot and leaves nothing behind.
#[test]
fn a_killed_waiter_leaves_nothing_behind() {
    let mut world = World::new(rules(1));
    let holder = world.arrive(Interactive);
    let killed = world.arrive(Interactive);
    world.leave(killed);
    world.leave(holder);
    world.pass(SECOND * 10);
    world.assert_empty();
    assert_eq!(world.kernel.starts.len(), 1);
    assert_eq!(world.kernel.word.credits(), 1);
}

/// A9: without a grace, a ticket ends with its socket.
#[test]
fn no_grace_means_no_ticket() {
    let mut world = World::new(LaneRules {
        ticket_grace: Duration::ZERO,
        ..rules(1)
    });
    world.arrive(Normal);
    let killed = world.arrive(Normal);
    world.leave(killed);
    assert_eq!(world.view().tickets, 0);
    assert_eq!(world.view().counters.total(Outcome::Gone), 1);
    assert_eq!(world.view().left, 1);
}
