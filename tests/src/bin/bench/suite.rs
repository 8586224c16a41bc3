//! Running benchmarks, one or all, and keeping what they found.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use shaper_tests::open_files;

use crate::{
    connect, handover, incident,
    machine::Machine,
    memory, page, policy, programs,
    report::{Report, goals_table},
    transfer,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Benchmark {
    /// What a connect costs
    Connect,
    /// What bytes and small requests cost
    Transfer,
    /// What each kernel program costs a run
    Programs,
    /// How long a freed slot takes to the next in line
    Handover,
    /// What waiters cost the host
    Memory,
    /// How fast the policy decides
    Policy,
    /// What shaper is made for, replayed
    Incident,
}

impl Benchmark {
    fn name(self) -> String {
        let value = self.to_possible_value().expect("no variant is skipped");
        value.get_name().to_owned()
    }

    fn run(self, plan: &Plan) -> Result<Report> {
        match self {
            Self::Connect => connect::run(),
            Self::Transfer => transfer::run(),
            Self::Programs => programs::run(),
            Self::Handover => handover::run(),
            Self::Memory => memory::run(),
            Self::Policy => policy::run(),
            Self::Incident => incident::run(plan.plot.as_deref()),
        }
    }
}

/// What is to be done.
pub struct Plan {
    /// `None`: all.
    pub benchmark: Option<Benchmark>,
    pub results: PathBuf,
    pub page: Option<PathBuf>,
    /// Where the incident is drawn.
    pub plot: Option<PathBuf>,
}

/// All figures there are: of this run, and of earlier ones for what did not run now.
#[derive(Serialize, Deserialize)]
struct Results {
    machine: Machine,
    reports: BTreeMap<Benchmark, Report>,
}

/// # Errors
/// A benchmark could not be carried out, after the others were; or the figures could not be kept.
pub fn run(plan: &Plan) -> Result<()> {
    open_files::raise()?;
    let machine = Machine::describe();
    println!("{}", machine.list());
    let mut results = Results {
        machine,
        reports: earlier(&plan.results),
    };
    let benchmarks = plan.benchmark.map_or_else(
        || Benchmark::value_variants().to_vec(),
        |benchmark| vec![benchmark],
    );
    let mut failed = Vec::new();
    for benchmark in benchmarks {
        match benchmark.run(plan) {
            Ok(report) => {
                println!("## {}\n\n{}", benchmark.name(), text(&report));
                results.reports.insert(benchmark, report);
                keep(&plan.results, &results)?;
            }
            Err(error) => {
                eprintln!("error: {}: {error:#}", benchmark.name());
                failed.push(benchmark.name());
            }
        }
    }
    if let Some(page) = &plan.page {
        page::renew(
            page,
            sections(&results)
                .iter()
                .map(|(name, text)| (name.as_str(), text.clone())),
        )?;
    }
    if !failed.is_empty() {
        bail!("not measured: {}", failed.join(", "));
    }
    Ok(())
}

fn text(report: &Report) -> String {
    let mut parts: Vec<String> = report.tables.iter().map(ToString::to_string).collect();
    if !report.goals.is_empty() {
        parts.push(goals_table(&report.goals));
    }
    parts.join("\n")
}

fn sections(results: &Results) -> Vec<(String, String)> {
    let goals = results.reports.values().flat_map(|report| &report.goals);
    let mut sections = vec![
        ("machine".to_owned(), results.machine.list()),
        ("goals".to_owned(), goals_table(goals)),
    ];
    for (benchmark, report) in &results.reports {
        let tables: Vec<String> = report.tables.iter().map(ToString::to_string).collect();
        sections.push((benchmark.name(), tables.join("\n")));
    }
    sections
}

/// The figures of earlier runs, as far as they can be read: their form may be that of an older version.
fn earlier(results: &Path) -> BTreeMap<Benchmark, Report> {
    let read = || serde_json::from_slice::<Results>(&fs::read(results).ok()?).ok();
    read().map(|results| results.reports).unwrap_or_default()
}

fn keep(path: &Path, results: &Results) -> Result<()> {
    let unwritable = || format!("cannot write {}", path.display());
    if let Some(directory) = path.parent() {
        fs::create_dir_all(directory).with_context(unwritable)?;
    }
    let json = serde_json::to_string_pretty(results).context("figures are JSON")?;
    fs::write(path, json).with_context(unwritable)
}
