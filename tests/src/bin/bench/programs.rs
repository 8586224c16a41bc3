//! `programs`: what the kernel programs cost a run, by the kernel's own statistics.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
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
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        progress.step("loopback");
        let nothing = cost_of_nothing(&mut venue)?;
        let mut costs = Vec::new();
        for &(way, load) in &columns {
            let before = programs.costs()?;
            load.apply(&mut venue, way)?;
            costs.push(added(&before, programs.costs()?));
        }
        rounds.push(Round { nothing, costs });
    }
    let measured = Measured { columns, rounds };
    let caption = "Nanoseconds a run over loopback, as the kernel counts them. Ungoverned: sockets in a class that connect \
                   to no lane. Requests: half a kilobyte and its answer on a kept connection; bulk: a download and an \
                   upload, in packets of up to 64 kB; connects: each closed at once. A program that ran less than a \
                   hundred times in a round has no figure: one run says more of cold caches than of the program.";
    let mut raw = measured.table(caption, Clock::Counted);
    let floor = Spread::of(measured.rounds.iter().map(|round| round.nothing));
    let mut floor_row = vec![Cell::Absent; measured.columns.len()];
    floor_row[0] = Cell::Spread(floor, Unit::Nanoseconds);
    raw.push("a program that does nothing", floor_row);
    let net = measured.table(
        "The same without the kernel's clock: less what the program that does nothing took in the same round.",
        Clock::TakenOff,
    );
    Ok(Report {
        tables: vec![raw, net],
        goals: measured.goals(),
    })
}

/// Whether a figure has in it what counting takes.
#[derive(Clone, Copy)]
enum Clock {
    Counted,
    TakenOff,
}

struct Round {
    /// Nanoseconds a run of a program that does nothing.
    nothing: f64,
    /// For each column, what each program has cost.
    costs: Vec<BTreeMap<String, Cost>>,
}

struct Measured {
    columns: Vec<Column>,
    rounds: Vec<Round>,
}

impl Measured {
    /// Nanoseconds a run. `None`: it ran too seldom.
    fn per_run(&self, column: usize, program: &str, clock: Clock) -> Option<Spread> {
        const SELDOM: u64 = 100;
        let of_round = |round: &Round| {
            let cost = round.costs[column].get(program)?;
            let counted = (cost.runs >= SELDOM).then(|| cost.per_run()).flatten()?;
            Some(match clock {
                Clock::Counted => counted,
                Clock::TakenOff => counted - round.nothing,
            })
        };
        let runs: Vec<f64> = self.rounds.iter().filter_map(of_round).collect();
        (!runs.is_empty()).then(|| Spread::of(runs))
    }

    fn table(&self, caption: &str, clock: Clock) -> Table {
        let mut table = Table::new(
            caption,
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
            let cells: Vec<Cell> = (0..self.columns.len())
                .map(|column| cell(self.per_run(column, program, clock)))
                .collect();
            table.push(program, cells);
        }
        table
    }

    fn goals(&self) -> Vec<Goal> {
        let goal = |promise: &str, of: &dyn Fn(&Column) -> bool, bound: f64| {
            let columns = self.columns.iter().enumerate();
            let dearest = columns
                .filter(|(_, column)| of(column))
                .flat_map(|(column, _)| {
                    PROGRAMS[..PACKET_PROGRAMS]
                        .iter()
                        .map(move |program| (column, program))
                })
                .filter_map(|(column, program)| self.per_run(column, program, Clock::TakenOff))
                .max_by(|a, b| a.median.total_cmp(&b.median));
            Goal {
                promise: format!(
                    "the dearest packet program {promise}, the kernel's clock not counted"
                ),
                wanted: format!("under {bound:.0} ns"),
                measured: cell(dearest),
                met: dearest.is_some_and(|cost| cost.median < bound),
            }
        };
        vec![
            goal(
                "on an ungoverned socket",
                &|(way, _)| *way == Way::NoLane,
                100.0,
            ),
            goal(
                "on a governed socket, in bulk",
                &|(way, load)| *way == Way::Lane && matches!(load, Load::Bulk),
                250.0,
            ),
            goal(
                "on a governed socket, where every packet is a whole request or answer",
                &|(way, load)| *way == Way::Lane && matches!(load, Load::Pairs),
                250.0,
            ),
        ]
    }
}

fn cell(spread: Option<Spread>) -> Cell {
    spread.map_or(Cell::Absent, |spread| {
        Cell::Spread(spread, Unit::Nanoseconds)
    })
}

/// Nanoseconds a run of a program that does nothing, on the sockets outside.
fn cost_of_nothing(venue: &mut Venue) -> Result<f64> {
    let empty = EmptyProgram::attach(&venue.stage().outside)?;
    Load::Pairs.apply(venue, Way::Outside)?;
    empty
        .cost()?
        .per_run()
        .context("a program that does nothing never ran")
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
