//! What a gateway's answers and failures do to its lane.

use shaper_common::Class::{Bulk, Default as Normal};

use super::{world::LANE, *};

const ADAPTIVE: Adaptive = Adaptive {
    decrease: 0.7,
    increase: 0.1,
    min: 0.2,
    cooldown: Duration::from_secs(300),
};

fn adaptive(max_inflight: u32) -> LaneRules {
    LaneRules {
        adaptive: Some(ADAPTIVE),
        ..rules(max_inflight)
    }
}

fn sign(sign: Sign) -> Event {
    Event::Gateway {
        class: Normal,
        sign,
    }
}

fn answered(status: u16, retry_after: Option<u64>) -> Event {
    sign(Sign::Head(AnswerHead {
        status,
        retry_after: retry_after.map(Duration::from_secs),
    }))
}

fn failed(fault: Fault) -> Event {
    let conn = ConnHandle(0);
    sign(Sign::Failed { conn, fault })
}

fn first_byte(after: Duration) -> Event {
    let conn = ConnHandle(0);
    sign(Sign::Answered { conn, after })
}

fn erred(world: &mut World) -> Vec<GatewayError> {
    world
        .policy
        .drain_erred()
        .map(|erred| erred.error)
        .collect()
}

/// C6: `Retry-After` is honoured in full, whatever is free; and the longest of several wins.
#[test]
fn nothing_starts_until_the_time_that_the_gateway_named() {
    let mut world = World::new(rules(4));
    let asker = world.arrive(Normal);
    world.tell(answered(429, Some(7)));
    world.leave(asker);
    world.tell(answered(503, Some(3)));
    let waiter = world.arrive(Normal);
    let view = world.view();
    assert_eq!(view.diagnosis, Diagnosis::Paused);
    assert_eq!(view.pause.map(|pause| pause.by), Some(PausedBy::Gateway));
    world.pass(SECOND * 7 - Duration::from_nanos(1));
    assert!(world.waits(waiter));
    world.pass(Duration::from_nanos(1));
    assert!(world.is_open(waiter));
}

/// C6: a gateway cannot stop a lane for longer than its file allows, and not at all where that is zero.
#[test]
fn retry_after_is_bounded_by_the_lane() {
    for (bound, waits) in [(60, true), (0, false)] {
        let mut world = World::new(LaneRules {
            retry_after_max: SECOND * bound,
            ..rules(1)
        });
        world.tell(answered(429, Some(u64::MAX)));
        let conn = world.arrive(Normal);
        assert_eq!(world.waits(conn), waits);
        world.pass(SECOND * 60);
        assert!(world.is_open(conn), "{bound}");
    }
}

/// C6: what is no request for less pauses nothing.
#[test]
fn a_plain_error_pauses_nothing() {
    let mut world = World::new(adaptive(4));
    for (status, retry_after) in [(200, Some(9)), (404, None), (500, None), (429, None)] {
        world.tell(answered(status, retry_after));
        assert_eq!(world.view().pause, None, "{status}");
    }
}

/// C7: a refusal lowers the limit at once, at most once in 5 s; calm raises it again; held slots are never revoked.
#[test]
fn the_limit_follows_what_the_gateway_bears() {
    let mut world = World::new(adaptive(10));
    let conns: Vec<_> = (0..10).map(|_| world.arrive(Normal)).collect();
    world.tell(answered(429, None));
    world.tell(answered(429, None));
    assert_eq!(world.view().limits.effective, 7);
    assert_eq!(world.view().in_flight, [0, 10, 0]);
    let waiter = world.arrive(Normal);
    for conn in &conns[..3] {
        world.leave(*conn);
    }
    assert!(world.waits(waiter));
    world.leave(conns[3]);
    assert!(world.is_open(waiter));

    world.pass(SECOND * 5);
    world.tell(answered(503, None));
    assert_eq!(world.view().limits.effective, 4);
    world.pass(SECOND * 299);
    assert_eq!(world.view().limits.effective, 4);
    world.pass(SECOND);
    assert_eq!(world.view().limits.effective, 5);
    world.pass(SECOND * 3000);
    assert_eq!(world.view().limits.effective, 10);
    assert_eq!(world.view().factor, Factor::ONE);
}

/// C6, C7: each pause, its end and each step of adaptation is told once, with its cause; what changes nothing is not.
#[test]
fn what_changes_the_lane_is_told_with_its_cause() {
    let mut world = World::new(adaptive(10));
    let told = |world: &mut World| std::mem::take(&mut world.changes);
    let adapted = |cause, from, to, share| {
        Change::Adapted(Adapted {
            cause,
            from,
            to,
            share,
        })
    };
    world.tell(answered(429, Some(7)));
    let (until, by) = (world.now + SECOND * 7, PausedBy::Gateway);
    assert_eq!(
        told(&mut world),
        [
            adapted(Cause::Answer { status: 429 }, 10, 7, 0.7),
            Change::Paused(Pause { until, by })
        ]
    );
    world.tell(answered(503, Some(3)));
    world.tell(pause_until(world.now + SECOND));
    assert_eq!(told(&mut world), []);
    world.pass(SECOND * 7);
    let early = false;
    assert_eq!(told(&mut world), [Change::Resumed { by, early }]);

    let (until, by) = (world.now + SECOND, PausedBy::Operator);
    world.tell(pause_until(until));
    world.tell(Event::Resume);
    world.tell(Event::Resume);
    let early = true;
    assert_eq!(
        told(&mut world),
        [
            Change::Paused(Pause { until, by }),
            Change::Resumed { by, early }
        ]
    );

    for _ in 0..5 {
        world.tell(failed(Fault::Refused));
    }
    world.pass(SECOND * 3);
    assert_eq!(
        told(&mut world),
        [adapted(Cause::FailedConnects, 7, 4, 0.49)]
    );
    world.pass(SECOND * 300);
    assert_eq!(told(&mut world), [adapted(Cause::Calm, 4, 5, 0.59)]);
}

/// C7: the rates are lowered with the limit.
#[test]
fn the_pace_follows_too() {
    let mut world = World::new(LaneRules {
        pace: Some(Pace {
            mode: PaceMode::Even,
            per_second: Some(10),
            ..PACE
        }),
        adaptive: Some(Adaptive {
            decrease: 0.5,
            ..ADAPTIVE
        }),
        ..rules(100)
    });
    world.tell(answered(429, None));
    for _ in 0..4 {
        world.arrive(Normal);
    }
    world.pass(SECOND);
    for pair in world.kernel.starts.windows(2) {
        assert_eq!(pair[1].since(pair[0]), Duration::from_millis(200));
    }
}

/// C7: off unless configured: a lane without the table keeps its limit.
#[test]
fn a_lane_without_adaptation_keeps_its_limit() {
    let mut world = World::new(rules(10));
    world.tell(answered(429, None));
    assert_eq!(world.view().limits.effective, 10);
}

/// C7: a gateway at which connects fail asks for less as well.
#[test]
fn a_burst_of_failed_connects_lowers_the_limit() {
    let mut world = World::new(adaptive(10));
    for _ in 0..5 {
        world.tell(failed(Fault::Refused));
    }
    world.pass(SECOND * 3);
    assert_eq!(world.view().limits.effective, 7);
    for _ in 0..5 {
        world.tell(failed(Fault::Reset));
    }
    world.pass(SECOND * 10);
    assert_eq!(
        world.view().limits.effective,
        7,
        "made connections count otherwise"
    );
}

/// C6, C7: the pause and the factor go on in a controller that starts later.
#[test]
fn pause_and_factor_are_taken_over() {
    let mut before = World::new(adaptive(10));
    before.tell(answered(429, Some(60)));
    let lasting = before.policy.lasting(LANE).unwrap();

    let mut after = World::new(adaptive(10));
    after.tell(Event::Restore(lasting));
    assert_eq!(after.view().limits.effective, 7);
    let waiter = after.arrive(Normal);
    after.pass(SECOND * 59);
    assert!(after.waits(waiter));
    after.pass(SECOND);
    assert!(after.is_open(waiter));
    after.pass(SECOND * 240);
    assert_eq!(after.view().limits.effective, 8);
}

/// C8: a refusal within every configured rate is told apart; where no rate is configured there is none to keep.
#[test]
fn refusals_under_the_configured_rates_are_evidence() {
    let pace = Some(Pace {
        per_minute: Some(15),
        ..PACE
    });
    for (pace, evidence) in [
        (pace, GatewayError::ThrottledUnderLimit),
        (None, GatewayError::Throttled),
    ] {
        let mut world = World::new(LaneRules { pace, ..rules(20) });
        for _ in 0..20 {
            world.arrive(Normal);
        }
        world.tell(answered(429, None));
        assert_eq!(erred(&mut world), [evidence]);
        assert_eq!(world.view().gateway_errors[evidence.index()], 1);
    }
}

/// C8: a lane that observes does not keep its rates, so a refusal is evidence only while they happen to be kept. It is
/// not paused, and its limit is not lowered.
#[test]
fn an_observing_lane_only_counts() {
    let mut world = World::new(LaneRules {
        enforce: false,
        pace: Some(Pace {
            per_minute: Some(2),
            ..PACE
        }),
        ..adaptive(4)
    });
    for evidence in [
        GatewayError::ThrottledUnderLimit,
        GatewayError::ThrottledUnderLimit,
        GatewayError::Throttled,
    ] {
        world.arrive(Normal);
        world.tell(answered(429, Some(60)));
        assert_eq!(erred(&mut world), [evidence]);
    }
    let view = world.view();
    assert_eq!((view.pause, view.factor), (None, Factor::ONE));
    assert_eq!(view.diagnosis, Diagnosis::Observe);
}

/// A18: requests that wait on a healthy gateway wait on purpose.
#[test]
fn a_full_queue_on_a_healthy_gateway_is_ours() {
    let mut world = World::new(rules(2));
    for _ in 0..40 {
        world.tell(first_byte(Duration::from_millis(500)));
        world.pass(SECOND);
    }
    assert_eq!(world.view().diagnosis, Diagnosis::Ok);
    for _ in 0..10 {
        world.arrive(Bulk);
    }
    assert_eq!(world.view().diagnosis, Diagnosis::LocalQueue);
    // All of ten share what one has alone: slower, for it is our load.
    for _ in 0..20 {
        world.tell(first_byte(Duration::from_millis(900)));
        world.pass(SECOND);
    }
    assert_eq!(world.view().diagnosis, Diagnosis::LocalQueue);
}

/// A18: a gateway slowed tenfold while slots are free is degraded, within 30 s.
#[test]
fn a_slow_gateway_with_free_slots_is_degraded() {
    let mut world = World::new(rules(6));
    for _ in 0..60 {
        world.tell(first_byte(Duration::from_millis(400)));
        world.pass(SECOND);
    }
    let slowed = world.now;
    while world.view().diagnosis == Diagnosis::Ok {
        world.pass(SECOND * 4);
        world.tell(first_byte(Duration::from_millis(4000)));
        assert!(world.now.since(slowed) <= SECOND * 30);
    }
    let view = world.view();
    assert_eq!(view.diagnosis, Diagnosis::GatewayDegraded);
    let slow = Slowness {
        now: Duration::from_millis(4000),
        usual: Duration::from_millis(400),
    };
    assert_eq!(view.trouble, Some(Trouble::Slow(slow)));
}

/// A18: a gateway that hangs is seen by what it owes, before it has answered anything.
#[test]
fn a_hanging_gateway_is_degraded() {
    let mut world = World::new(rules(20));
    for _ in 0..60 {
        world.tell(first_byte(Duration::from_millis(400)));
        world.pass(SECOND);
    }
    for _ in 0..6 {
        world.arrive(Normal);
    }
    let picture = Picture {
        unanswered: (1..=6).map(|conn| (ConnHandle(conn), world.now)).collect(),
        ..world.kernel.picture()
    };
    world.tell(Event::Reconcile(picture));
    assert_eq!(world.view().diagnosis, Diagnosis::Ok);
    world.pass(SECOND * 20);
    assert_eq!(world.view().diagnosis, Diagnosis::GatewayDegraded);
    world.run_dry();
    assert_eq!(world.view().diagnosis, Diagnosis::Ok);
}

/// A18: a failing gateway is degraded, also while requests wait.
#[test]
fn a_failing_gateway_is_degraded() {
    for (failure, step) in [
        (failed(Fault::Refused), Step::Connect),
        (failed(Fault::Reset), Step::Request),
        (answered(502, None), Step::Request),
        (answered(429, None), Step::Request),
    ] {
        let mut world = World::new(rules(1));
        world.arrive(Normal);
        world.arrive(Normal);
        for _ in 0..3 {
            world.tell(failure.clone());
        }
        let view = world.view();
        assert_eq!(view.diagnosis, Diagnosis::GatewayDegraded, "{failure:?}");
        let failing = Failing {
            step,
            failed: 3,
            of: 3,
        };
        assert_eq!(view.trouble, Some(Trouble::Failing(failing)));
        world.pass(SECOND * 30);
        assert_eq!(world.view().diagnosis, Diagnosis::LocalQueue);
    }
}

/// C2, C6: a connection that keeps its slot between two requests must ask again while starts are timed.
#[test]
fn no_newcomer_and_no_next_request_passes_while_starts_are_timed() {
    let mut world = World::new(rules(4));
    assert_eq!(world.kernel.barrier, None);
    world.tell(answered(429, Some(7)));
    assert_eq!(
        world.kernel.barrier,
        Some(shaper_common::Class::Interactive)
    );
    world.pass(SECOND * 20);
    assert_eq!(world.kernel.barrier, None);
}
