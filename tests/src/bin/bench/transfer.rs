//! `transfer`: bytes and small requests, once the connection is there.

use anyhow::Result;

use crate::{
    order::Order,
    progress::Progress,
    report::{Cell, Goal, Report, Table, Unit},
    spread::Spread,
    venue::{Medium, Venue, Way},
};

const ROUNDS: usize = 25;
const BYTES: usize = 128 << 20;
const PAIRS_A_ROUND: usize = 500;

/// One round of one way.
struct Round {
    /// Bytes a second.
    download: f64,
    /// Bytes a second.
    upload: f64,
    /// Nanoseconds for one request and its answer on a connection that is kept.
    pair: f64,
}

pub fn run() -> Result<Report> {
    let mut venue = Venue::set(&Way::ALL)?;
    let progress = Progress::new("transfer", Medium::ALL.len() * ROUNDS);
    let mut report = Report::default();
    for medium in Medium::ALL {
        let rounds = venue.rounds(&progress, medium, ROUNDS, round)?;
        report.tables.push(table(medium, &rounds));
        report.goals.extend(goals(medium, &rounds));
    }
    Ok(report)
}

fn round(venue: &mut Venue, medium: Medium, way: Way) -> Result<Round> {
    let per_second = |nanos: Vec<u64>| BYTES as f64 * 1e9 / nanos.iter().sum::<u64>() as f64;
    let bytes = BYTES;
    let download = venue.ask(medium, way, |to| Order::Download { to, bytes })?;
    let upload = venue.ask(medium, way, |to| Order::Upload { to, bytes })?;
    let pairs = venue.ask(medium, way, |to| Order::Pairs {
        to,
        count: PAIRS_A_ROUND,
    })?;
    Ok(Round {
        download: per_second(download),
        upload: per_second(upload),
        pair: Spread::of(pairs.into_iter().map(|nanos| nanos as f64)).median,
    })
}

fn table(medium: Medium, rounds: &[Vec<Round>]) -> Table {
    let caption = format!(
        "Over {}: {} MB on one connection down and up, and a request of half a kilobyte with its short answer on a \
         connection that is kept. The ratios are to the same round outside.",
        medium.name(),
        BYTES >> 20
    );
    let head = [
        "way", "download", "ratio", "upload", "ratio", "request", "ratio",
    ];
    let mut table = Table::new(caption, &head);
    for (way, of_way) in Way::ALL.into_iter().zip(rounds) {
        let value = |value: fn(&Round) -> f64, unit| {
            Cell::Spread(Spread::of(of_way.iter().map(value)), unit)
        };
        let ratio = |value: fn(&Round) -> f64| match way {
            Way::Outside => Cell::Absent,
            _ => Cell::Value(to_outside(rounds, of_way, value).median, Unit::Ratio),
        };
        table.push(
            way.name(),
            [
                value(|round| round.download, Unit::BytesPerSecond),
                ratio(|round| round.download),
                value(|round| round.upload, Unit::BytesPerSecond),
                ratio(|round| round.upload),
                value(|round| round.pair, Unit::Nanoseconds),
                ratio(|round| round.pair),
            ],
        );
    }
    table
}

fn to_outside(rounds: &[Vec<Round>], of_way: &[Round], value: fn(&Round) -> f64) -> Spread {
    let pairs = of_way.iter().zip(&rounds[0]);
    Spread::of(pairs.map(|(this, outside)| value(this) / value(outside)))
}

fn goals(medium: Medium, rounds: &[Vec<Round>]) -> [Goal; 2] {
    const SHARE: f64 = 0.98;
    let goal = |direction: &str, value: fn(&Round) -> f64| {
        let ratio = to_outside(rounds, &rounds[Way::Lane.index()], value);
        Goal {
            promise: format!(
                "bulk {direction} through a lane over {}, to one outside",
                medium.name()
            ),
            wanted: "at least 0.98×".to_owned(),
            measured: Cell::Spread(ratio, Unit::Ratio),
            met: ratio.median >= SHARE,
        }
    };
    [
        goal("download", |round| round.download),
        goal("upload", |round| round.upload),
    ]
}
