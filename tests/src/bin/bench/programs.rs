//! `programs`: what the kernel programs cost a run, by the kernel's own statistics.

use std::collections::BTreeMap;

use anyhow::Result;
use shaper_tests::program_stats::{Cost, EmptyProgram, Programs, Statistics};

use crate::{
    order::Order,
    progress::Progress,
    report::{Cell, Goal, Report, Table, Unit},
    spread::Spread,
    venue::{Medium, Venue, Way},
};

const ROUNDS: usize = 15;
const PAIRS_A_ROUND: usize = 2_000;
const BYTES_A_ROUND: usize = 128 << 20;
const CONNECTS_A_ROUND: usize = 500;

/// In the order of the table; the first two are called for packets.
const PROGRAMS: [&str; 5] = [
    "shaper_egress",
    "shaper_ingress",
    "shaper_connect4",
    "shaper_sockops",
    "shaper_release",
];
const PACKET_PROGRAMS: usize = 2;

/// What the client does while the kernel counts.
#[derive(Clone, Copy)]
enum Load {
    Pairs,
    Bulk,
    Connects,
}

impl Load {
    const ALL: [Self; 3] = [Self::Pairs, Self::Bulk, Self::Connects];

    fn apply(self, venue: &mut Venue, way: Way) -> Result<()> {
        let mut ask =
            |order: &dyn Fn(std::net::SocketAddr) -> Order| venue.ask(Medium::Loopback, way, order);
        let bytes = BYTES_A_ROUND;
        match self {
            Self::Pairs => ask(&|to| Order::Pairs {
                to,
                count: PAIRS_A_ROUND,
            })?,
            Self::Bulk => {
                ask(&|to| Order::Download { to, bytes })?;
                ask(&|to| Order::Upload { to, bytes })?
            }
            Self::Connects => ask(&|to| Order::Connect {
                to,
                count: CONNECTS_A_ROUND,
            })?,
        };
        Ok(())
    }
}

/// A column of the table: whose sockets, doing what.
type Column = (Way, Load);

pub fn run() -> Result<Report> {
    let mut venue = Venue::set(&[])?;
    let _statistics = Statistics::enable()?;
    let programs = Programs::of(venue.controller().pid())?;
    let columns: Vec<Column> = [Way::NoLane, Way::Lane]
        .into_iter()
        .flat_map(|way| Load::ALL.map(|load| (way, load)))
        .collect();
    let progress = Progress::new("programs", ROUNDS);
    let mut nothing = Vec::new();
    let mut costs: Vec<Vec<BTreeMap<String, Cost>>> = vec![Vec::new(); columns.len()];
    for _ in 0..ROUNDS {
        progress.step("loopback");
        nothing.extend(cost_of_nothing(&mut venue)?);
        for (&(way, load), costs) in columns.iter().zip(&mut costs) {
            let before = programs.costs()?;
            load.apply(&mut venue, way)?;
            let after = programs.costs()?;
            costs.push(added(&before, after));
        }
    }
    let per_run = |column: usize, program: &str| {
        let of_program = |round: &BTreeMap<String, Cost>| round.get(program)?.per_run();
        let runs: Vec<f64> = costs[column].iter().filter_map(of_program).collect();
        (!runs.is_empty()).then(|| Spread::of(runs))
    };
    let cell = |spread: Option<Spread>| {
        spread.map_or(Cell::Absent, |spread| {
            Cell::Spread(spread, Unit::Nanoseconds)
        })
    };
    let mut table = Table::new(
        "Nanoseconds a run over loopback, with what the kernel's clock itself takes. Ungoverned: sockets in a class that \
         connect to no lane. Requests: half a kilobyte and its answer on a kept connection; bulk: a download and an upload, \
         in packets of up to 64 kB; connects: each closed at once.",
        &[
            "program",
            "ungoverned, requests",
            "ungoverned, bulk",
            "ungoverned, connects",
            "governed, requests",
            "governed, bulk",
            "governed, connects",
        ],
    );
    for program in PROGRAMS {
        let cells: Vec<Cell> = (0..columns.len())
            .map(|column| cell(per_run(column, program)))
            .collect();
        table.push(program, cells);
    }
    let floor = cell((!nothing.is_empty()).then(|| Spread::of(nothing)));
    let mut floor_row = vec![Cell::Absent; columns.len()];
    floor_row[0] = floor;
    table.push("a program that does nothing", floor_row);

    let dearest = |way: Way| {
        let of_way = columns.iter().enumerate().filter(|(_, (of, _))| *of == way);
        let packets = &PROGRAMS[..PACKET_PROGRAMS];
        of_way
            .flat_map(|(column, _)| packets.iter().map(move |program| (column, program)))
            .filter_map(|(column, program)| per_run(column, program))
            .max_by(|a, b| a.median.total_cmp(&b.median))
    };
    let goal = |promise: &str, way, bound: f64| {
        let dearest = dearest(way);
        Goal {
            promise: promise.to_owned(),
            wanted: format!("under {bound:.0} ns"),
            measured: cell(dearest),
            met: dearest.is_some_and(|cost| cost.median < bound),
        }
    };
    let goals = vec![
        goal(
            "the dearest packet program on an ungoverned socket",
            Way::NoLane,
            100.0,
        ),
        goal(
            "the dearest packet program on a governed socket",
            Way::Lane,
            250.0,
        ),
    ];
    Ok(Report {
        tables: vec![table],
        goals,
    })
}

/// The cost of a program that does nothing, on the sockets outside.
fn cost_of_nothing(venue: &mut Venue) -> Result<Option<f64>> {
    let empty = EmptyProgram::attach(&venue.stage().outside)?;
    Load::Pairs.apply(venue, Way::Outside)?;
    Ok(empty.cost()?.per_run())
}

fn added(before: &BTreeMap<String, Cost>, after: BTreeMap<String, Cost>) -> BTreeMap<String, Cost> {
    let since = |name: &String| before.get(name).copied().unwrap_or_default();
    after
        .into_iter()
        .map(|(name, cost)| {
            let added = cost - since(&name);
            (name, added)
        })
        .collect()
}
