//! `shaper stats`: what happened, by lane, hour and class, as a table of 80 columns or as JSON.

use std::{io, path::PathBuf, time::Duration};

use anstyle::{AnsiColor, Style};
use anyhow::bail;
use clap::Args;
use jiff::Timestamp;
use shaper_common::Class;

use super::{ControllerArgs, print};
use crate::{
    control::ClientError,
    format::{self, styled},
    history::{self, Counts, Figures, LaneReport, Question, Report, StoreError},
    paths,
};

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const NOTABLE: Style = AnsiColor::Yellow.on_default();

/// The longest `--since`, in days: no history goes further back.
const LONGEST_DAYS: u64 = 3660;

/// Show what happened, by lane, hour and class
///
/// PEAK is the most starts within any 60 s that ended in the hour, whatever the hour's boundary. ERRORS is what went wrong
/// at the gateway; UNDER counts those of them by which it asked for less (429, 503) although every rate that is
/// configured here was kept: then the gateway allows less than its limits say, and the lane's should be lowered. AVG and
/// P90 are the waits of what started. Hours are in UTC.
///
/// Asks the controller; if none is running, reads what it has left in the state directory.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  shaper stats
  shaper stats --lane reasoning --since 30d
  shaper stats --json")]
pub struct StatsArgs {
    /// Only this lane
    #[arg(long, value_name = "LANE")]
    lane: Option<String>,
    /// How far back, as in 6h, 24h or 30d; the first hour counts whole
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = since)]
    since: Duration,
    /// Print the figures as a JSON document
    #[arg(long)]
    json: bool,
    /// Where a controller that is not running has left its history
    #[arg(long, value_name = "DIR", default_value = paths::STATE_DIR)]
    state: PathBuf,
    #[command(flatten)]
    controller: ControllerArgs,
}

/// Runs the command.
///
/// # Errors
/// When the controller gives no answer, or there is none and no history; when the lane is unknown; when standard output
/// cannot be written to, unless its reader has gone.
pub fn run(args: &StatsArgs) -> anyhow::Result<()> {
    let question = Question {
        lane: args.lane.clone(),
        since: args.since,
    };
    let report = match args.controller.connect() {
        Ok(mut client) => client.stats(&question)?,
        Err(absent @ ClientError::NotListening(_)) => left_behind(args, &question, absent)?,
        Err(error) => return Err(error.into()),
    };
    if args.json {
        print::json(&report)
    } else {
        print::out(table(&report))
    }
}

/// What a controller has left that is not running.
fn left_behind(
    args: &StatsArgs,
    question: &Question,
    absent: ClientError,
) -> anyhow::Result<Report> {
    let path = args.controller.instance.history(&args.state);
    let report = match history::read(&path, question) {
        Ok(report) => report,
        Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            bail!(
                "{absent}; and it has left no history in {}",
                args.state.display()
            )
        }
        Err(StoreError::Io { source, path })
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            bail!(
                "{absent}; and no permission to read {}: use sudo",
                path.display()
            )
        }
        Err(error) => bail!("{absent}; and its history cannot be read: {error}"),
    };
    if let Some(lane) = &args.lane
        && report.lanes.is_empty()
    {
        bail!(
            "{} has nothing about a lane {lane:?} in the last {}",
            path.display(),
            format::duration(args.since)
        );
    }
    print::note(format_args!(
        "no controller is listening at {}: this is from {}",
        args.controller.socket().display(),
        path.display()
    ));
    Ok(report)
}

fn since(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(since) if since > Duration::from_secs(LONGEST_DAYS * 24 * 60 * 60) => {
            Err(format!("no history is longer than {LONGEST_DAYS} days"))
        }
        Ok(since) => Ok(since),
        Err(error) => Err(format!("{error}; write it as in 6h, 24h or 30d")),
    }
}

/// The figures as a table, with styles.
fn table(report: &Report) -> String {
    let mut lines = vec![styled(
        DIM,
        &format!(
            "shaper {} · {} · since {}",
            report.version,
            // To the second: for people.
            Timestamp::from_second(report.generated_at.as_second()).unwrap_or(report.generated_at),
            report.since
        ),
    )];
    if let Some(problem) = &report.problem {
        lines.push(styled(
            NOTABLE,
            &format!(
                "only in memory, and lost with the controller: {}",
                format::printable(problem)
            ),
        ));
    }
    if report.lanes.is_empty() {
        lines.push(String::new());
        lines.push("nothing happened".to_owned());
    }
    for lane in &report.lanes {
        lines.push(String::new());
        lines.extend(of_lane(lane));
    }
    let mut table = lines.join("\n");
    table.push('\n');
    table
}

fn of_lane(lane: &LaneReport) -> Vec<String> {
    let mut lines = vec![
        styled(BOLD, &format::printable(&lane.lane)),
        styled(
            DIM,
            &format!(
                "{:11} {:11} {:>7} {:>5} {:>7} {:>7} {:>6} {:>5} {:>6} {:>6}",
                "HOUR",
                "CLASS",
                "STARTS",
                "PEAK",
                "REFUSED",
                "TIMEOUT",
                "ERRORS",
                "UNDER",
                "AVG",
                "P90"
            ),
        ),
    ];
    for hour in &lane.hours {
        lines.extend(rows(&hour_name(hour.hour), &hour.figures));
    }
    if lane.hours.len() > 1 {
        lines.extend(rows("all hours", &lane.total));
    }
    lines
}

/// A row for all classes together, and one for each if there are several.
fn rows(when: &str, figures: &Figures) -> Vec<String> {
    let busy: Vec<(Class, &Counts)> = Class::ALL
        .into_iter()
        .map(|class| (class, figures.priorities.get(class)))
        .filter(|(_, counts)| !counts.is_empty())
        .collect();
    match busy.as_slice() {
        [(class, counts)] => vec![row(when, class.name(), counts)],
        _ => {
            let together = row(when, "all", &figures.total);
            let each = busy
                .iter()
                .map(|(class, counts)| row("", class.name(), counts));
            [together].into_iter().chain(each).collect()
        }
    }
}

fn row(when: &str, class: &str, counts: &Counts) -> String {
    let under = format!("{:>5}", counts.gateway_errors_under_limit);
    let under = match counts.gateway_errors_under_limit {
        0 => under,
        _ => styled(NOTABLE, &under),
    };
    format!(
        "{when:11} {class:11} {:>7} {:>5} {:>7} {:>7} {:>6} {under} {:>6} {:>6}",
        counts.starts,
        counts.peak_starts_60s,
        counts.refusals,
        counts.queue_timeouts,
        counts.gateway_errors,
        format::duration(counts.wait_avg),
        format::duration(counts.wait_p90),
    )
}

/// Month, day and hour: the year is in the first line.
fn hour_name(hour: Timestamp) -> String {
    // `2026-01-02T03:00:00Z`
    let text = hour.to_string();
    match (text.get(5..10), text.get(11..16)) {
        (Some(day), Some(time)) => format!("{day} {time}"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::samples::two_hours;

    fn plain(report: &Report) -> String {
        anstream::adapter::strip_str(&table(report)).to_string()
    }

    /// C11: the table.
    #[test]
    fn the_table_shows_hours_and_classes() {
        assert_eq!(
            plain(&two_hours()),
            "\
shaper 0.1.0 · 2026-01-02T04:05:06Z · since 2026-01-02T03:00:00Z

reasoning
HOUR        CLASS        STARTS  PEAK REFUSED TIMEOUT ERRORS UNDER    AVG    P90
01-02 03:00 interactive       3     3       0       0      0     0     0s     0s
01-02 04:00 all             815    15     120       2      8     7    37s    37s
            interactive       3     3       0       0      0     0     0s     0s
            bulk            812    13     120       2      8     7    38s    37s
all hours   all             818    15     120       2      8     7    37s    37s
            interactive       6     3       0       0      0     0     0s     0s
            bulk            812    13     120       2      8     7    38s    37s
"
        );
    }

    #[test]
    fn nothing_is_said_in_words() {
        let report = Report {
            lanes: vec![],
            problem: Some("/var/lib/shaper: No space left on device".to_owned()),
            ..two_hours()
        };
        let table = plain(&report);
        assert!(table.contains("nothing happened"), "{table}");
        assert!(
            table.contains("only in memory") && table.contains("No space"),
            "{table}"
        );
    }

    #[test]
    fn a_time_without_sense_is_an_error_with_a_remedy() {
        assert_eq!(since("30d"), Ok(Duration::from_secs(30 * 86_400)));
        for (text, remedy) in [("24", "24h"), ("yesterday", "24h"), ("99y", "days")] {
            let error = since(text).unwrap_err();
            assert!(error.contains(remedy), "{text}: {error}");
        }
    }
}
