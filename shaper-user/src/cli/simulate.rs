//! `shaper simulate`: what would these lanes have done with that traffic?

use std::{
    fmt::{self, Display},
    fs::File,
    io::{self, BufReader},
    path::PathBuf,
};

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use super::{config::ConfigArgs, print};
use crate::{
    config::LaneConfig,
    format,
    simulate::{ClassReport, LaneReport, Report, Workload, simulate},
};

/// Work out what a configuration would have done with recorded traffic
///
/// TRACE has one JSON object a line, as `shaper run --record` writes them. One written by hand needs arrival_s, lane,
/// priority and service_s.
///
/// To ask "what would a limit of 6 have done?", copy the configuration, change the limit, and name the copy with
/// --config. A limit on trial (`enforce = false`) counts here as if it were kept. Requests keep their arrival and service
/// times, clients do not retry, and nothing touches the network. A trace does not tell what the gateway answered, so
/// `[adaptive]` and `retry_after_max` change nothing.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  shaper simulate --config ./config trace.jsonl
  zcat trace.jsonl.gz | shaper simulate --json -
A line of a trace:
  {\"arrival_s\": 12.5, \"lane\": \"reasoning\", \"priority\": \"bulk\", \"service_s\": 3.2}")]
pub struct SimulateArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    /// The trace; `-` is standard input
    #[arg(value_name = "TRACE.jsonl")]
    trace: PathBuf,
}

/// Runs the simulation and prints its report.
///
/// # Errors
/// When the configuration or the trace cannot be used, or standard output cannot be written to.
pub fn run(args: &SimulateArgs) -> anyhow::Result<()> {
    let lanes = args.config.load()?.lanes;
    let workload = read(args, &lanes)
        .with_context(|| format!("the trace {} cannot be used", args.trace.display()))?;
    let progress = bar(
        Some(workload.request_count()),
        "simulating {bar:30} {percent}% of {len} requests, {eta} left",
    );
    let report = simulate(&workload, &lanes, |done| progress.set_position(done));
    progress.finish_and_clear();
    if args.json {
        print::json(&report)
    } else {
        print::out(Table(&report))
    }
}

fn read(args: &SimulateArgs, lanes: &[LaneConfig]) -> anyhow::Result<Workload> {
    if args.trace.as_os_str() == "-" {
        return Ok(Workload::read(io::stdin().lock(), lanes, |_| ())?);
    }
    let file = File::open(&args.trace)?;
    let size = file.metadata().map(|metadata| metadata.len()).ok();
    let progress = bar(size, "reading {bar:30} {percent}% of {total_bytes}");
    let workload = Workload::read(BufReader::new(file), lanes, |bytes| {
        progress.set_position(bytes);
    })?;
    progress.finish_and_clear();
    Ok(workload)
}

/// A progress bar on standard error, which shows nothing where that is not a terminal.
fn bar(length: Option<u64>, template: &str) -> ProgressBar {
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    length
        .map_or_else(ProgressBar::no_length, ProgressBar::new)
        .with_style(style)
}

/// The report for people.
struct Table<'a>(&'a Report);

impl Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.0;
        writeln!(
            f,
            "{} requests in {}",
            report.requests,
            format::duration(report.span)
        )?;
        if report.assumed_service_times > 0 {
            writeln!(
                f,
                "{} of them have no service time in the trace: the mean of their lane stood in",
                report.assumed_service_times
            )?;
        }
        if let Some(first) = report.first_cut_line {
            writeln!(
                f,
                "left out: lines of the trace that are cut off: {}, the first is line {first}",
                report.cut_lines
            )?;
        }
        for (lane, requests) in &report.unknown_lanes {
            writeln!(
                f,
                "left out: {requests} requests to {}, which is not configured",
                format::printable(lane)
            )?;
        }
        report.lanes.iter().try_for_each(|lane| show_lane(f, lane))
    }
}

fn show_lane(f: &mut fmt::Formatter<'_>, lane: &LaneReport) -> fmt::Result {
    let used = match lane.utilisation {
        Some(share) => {
            let on_trial = if lane.enforce {
                ""
            } else {
                " (on trial, here as if kept)"
            };
            format!(
                "limit {}{on_trial}, {:.1} % of it used",
                lane.limit,
                share * 100.0
            )
        }
        None => "no limit".to_owned(),
    };
    writeln!(
        f,
        "\n{}: {used}; {:.1} in flight on average, {} at most",
        lane.lane, lane.mean_inflight, lane.peak_inflight
    )?;
    writeln!(
        f,
        "  {:11} {:>8} {:>8} {:>7} {:>8} {:>6} {:>7} {:>7} {:>7}",
        "CLASS", "ARRIVED", "SERVED", "REFUSED", "TIMEOUTS", "GONE", "P50", "P90", "MAX"
    )?;
    for class in &lane.classes {
        let ClassReport {
            priority,
            arrivals,
            served,
            refused,
            timeouts,
            gone,
            waits,
        } = class;
        writeln!(
            f,
            "  {priority:11} {arrivals:>8} {served:>8} {refused:>7} {timeouts:>8} {gone:>6} {:>7} {:>7} {:>7}",
            format::duration(waits.p50),
            format::duration(waits.p90),
            format::duration(waits.max),
        )?;
    }
    Ok(())
}
