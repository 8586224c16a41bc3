//! `connect`: what a connect costs, alone and as part of a whole call.

use anyhow::Result;

use crate::{
    order::Order,
    progress::Progress,
    report::{Cell, Goal, Report, Table, Unit},
    spread::{Spread, quantile, sorted},
    venue::{Medium, Venue, Way},
};

const ROUNDS: usize = 40;
const CONNECTS_A_ROUND: usize = 500;
const CALLS_A_ROUND: usize = 200;

/// One round of one way: what its connects and calls took.
struct Round {
    connect: f64,
    connect_p99: f64,
    /// Connect and close.
    cycle: f64,
    call: f64,
}

pub fn run() -> Result<Report> {
    let mut venue = Venue::set(&Way::ALL)?;
    let progress = Progress::new("connect", Medium::ALL.len() * ROUNDS);
    let mut report = Report::default();
    for medium in Medium::ALL {
        let rounds = venue.rounds(&progress, medium, ROUNDS, round)?;
        report.tables.push(table(medium, &rounds));
        if medium == Medium::Loopback {
            report.goals.extend(goals(&rounds));
        }
    }
    Ok(report)
}

fn round(venue: &mut Venue, medium: Medium, way: Way) -> Result<Round> {
    let mut connects = venue.ask(medium, way, |to| Order::Connect {
        to,
        count: CONNECTS_A_ROUND,
    })?;
    let everything = connects.pop().unwrap_or_default();
    let connects = sorted(connects.into_iter().map(|nanos| nanos as f64));
    let calls = venue.ask(medium, way, |to| Order::Call {
        to,
        count: CALLS_A_ROUND,
    })?;
    Ok(Round {
        connect: quantile(&connects, 0.5),
        connect_p99: quantile(&connects, 0.99),
        cycle: everything as f64 / CONNECTS_A_ROUND as f64,
        call: Spread::of(calls.into_iter().map(|nanos| nanos as f64)).median,
    })
}

fn table(medium: Medium, rounds: &[Vec<Round>]) -> Table {
    let caption = format!(
        "Over {}: `connect()`; connects a second, each closed at once; and a whole call: connect, request, answer, \
         close. The differences and ratios are to the same round outside.",
        medium.name()
    );
    let head = [
        "way",
        "connect()",
        "more than outside",
        "ratio",
        "p99",
        "connects",
        "call",
        "call, ratio",
    ];
    let mut table = Table::new(caption, &head);
    for (way, of_way) in Way::ALL.into_iter().zip(rounds) {
        let spread = |value: fn(&Round) -> f64| Spread::of(of_way.iter().map(value));
        let nanos = |value| Cell::Spread(spread(value), Unit::Nanoseconds);
        let compared = |compare: fn(&Round, &Round) -> f64, unit| match way {
            Way::Outside => Cell::Absent,
            _ => Cell::Spread(to_outside(rounds, of_way, compare), unit),
        };
        table.push(
            way.name(),
            [
                nanos(|round| round.connect),
                compared(
                    |this, outside| this.connect - outside.connect,
                    Unit::Nanoseconds,
                ),
                compared(|this, outside| this.connect / outside.connect, Unit::Ratio),
                nanos(|round| round.connect_p99),
                Cell::Value(spread(|round| 1e9 / round.cycle).median, Unit::PerSecond),
                nanos(|round| round.call),
                compared(|this, outside| this.call / outside.call, Unit::Ratio),
            ],
        );
    }
    table
}

fn to_outside(
    rounds: &[Vec<Round>],
    of_way: &[Round],
    compare: fn(&Round, &Round) -> f64,
) -> Spread {
    let pairs = of_way.iter().zip(&rounds[0]);
    Spread::of(pairs.map(|(this, outside)| compare(this, outside)))
}

fn goals(rounds: &[Vec<Round>]) -> [Goal; 2] {
    const MORE: f64 = 3_000.0;
    const RATIO: f64 = 1.10;
    let lane = &rounds[Way::Lane.index()];
    let more = to_outside(rounds, lane, |lane, outside| lane.connect - outside.connect);
    let ratio = to_outside(rounds, lane, |lane, outside| lane.connect / outside.connect);
    let promise = "a connect through an unsaturated lane, to one outside".to_owned();
    [
        Goal {
            promise: promise.clone(),
            wanted: "at most 3 µs more".to_owned(),
            measured: Cell::Spread(more, Unit::Nanoseconds),
            met: more.median <= MORE,
        },
        Goal {
            promise,
            wanted: "under 1.10×".to_owned(),
            measured: Cell::Spread(ratio, Unit::Ratio),
            met: ratio.median < RATIO,
        },
    ]
}
