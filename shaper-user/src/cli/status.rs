//! `shaper status`: the lanes, as a table of at most 80 columns or as JSON.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal, Write},
    thread,
    time::Duration,
};

use anstyle::{AnsiColor, Style};
use shaper_common::Class;

use super::{ControllerArgs, follow::Follow};
use crate::{
    control::Client,
    format,
    snapshot::{AccountSnapshot, ByClass, Diagnosis, LaneSnapshot, Mode, Snapshot, Ungoverned},
};

/// Columns of the narrowest terminal that shows all.
const WIDTH: usize = 80;
/// Columns of a lane's name; a longer one is clipped.
const NAME_WIDTH: usize = 20;
/// Accounts shown for a lane, those with the most waiters first.
const ACCOUNTS_SHOWN: usize = 5;
/// Time between two looks with `--watch`.
const INTERVAL: Duration = Duration::from_secs(1);

const BOLD: Style = Style::new().bold();
const DIM: Style = Style::new().dimmed();
const GOOD: Style = AnsiColor::Green.on_default();
const NOTABLE: Style = AnsiColor::Yellow.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();

/// Show the lanes as they are now
///
/// A table of at most 80 columns: for each lane its state, slots, queue and waits, and in words what it is doing.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  shaper status
  shaper status --watch
  shaper status --json | jq '.lanes[] | {lane, inflight, queued}'")]
pub struct StatusArgs {
    /// Print the document that /api/lanes serves
    #[arg(long)]
    pub json: bool,

    /// Look again every second, until interrupted
    #[arg(long)]
    pub watch: bool,

    #[command(flatten)]
    pub controller: ControllerArgs,
}

/// Runs the command.
///
/// # Errors
/// When the controller gives no answer; with `--watch` that is shown, and asked again. When standard output cannot be
/// written to, unless its reader has gone.
pub fn run(args: &StatusArgs) -> anyhow::Result<()> {
    let mut follow = Follow::begin(&args.controller)?;
    let written = if args.watch {
        watch(args, follow)
    } else {
        show(&follow.ask(Client::status)?, args.json)
    };
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

fn watch(args: &StatusArgs, mut follow: Follow) -> io::Result<()> {
    let redraws = io::stdout().is_terminal() && !args.json;
    loop {
        match follow.ask(Client::status) {
            Ok(snapshot) if redraws => redraw(&table(&snapshot))?,
            Ok(snapshot) => show(&snapshot, args.json)?,
            Err(error) if redraws => redraw(&format!("{BAD}{error}{BAD:#}\n"))?,
            Err(error) => writeln!(anstream::stderr(), "{BAD}{error}{BAD:#}")?,
        }
        thread::sleep(INTERVAL);
    }
}

/// Puts `text` in the place of what the terminal shows, in one piece: cleared first, it would flicker.
fn redraw(text: &str) -> io::Result<()> {
    const HOME: &str = "\x1b[H";
    const CLEAR_LINE: &str = "\x1b[K";
    const CLEAR_BELOW: &str = "\x1b[J";
    // anstream would take these away together with the colours.
    let coloured = anstream::AutoStream::choice(&io::stdout()) != anstream::ColorChoice::Never;
    let text = if coloured {
        text.to_owned()
    } else {
        anstream::adapter::strip_str(text).to_string()
    };
    let lines: String = text
        .lines()
        .map(|line| format!("{line}{CLEAR_LINE}\r\n"))
        .collect();
    let mut out = io::stdout().lock();
    out.write_all(format!("{HOME}{lines}{CLEAR_BELOW}").as_bytes())?;
    out.flush()
}

fn show(snapshot: &Snapshot, json: bool) -> io::Result<()> {
    if json {
        let mut out = io::stdout().lock();
        serde_json::to_writer(&mut out, snapshot)?;
        return writeln!(out);
    }
    // Strips the styles where NO_COLOR says so, or where nobody sees them.
    let mut out = anstream::stdout().lock();
    out.write_all(table(snapshot).as_bytes())?;
    out.flush()
}

/// The lanes as a table, with styles.
pub fn table(snapshot: &Snapshot) -> String {
    let mut lines = vec![styled(
        DIM,
        &format!(
            "shaper {} · {} · {}",
            snapshot.version,
            snapshot.generated_at,
            counted(snapshot.lanes.len() as u64, "lane")
        ),
    )];
    if let Some(error) = &snapshot.last_reload_error {
        lines.push(styled(
            BAD,
            "the last reload was rejected, the configuration before it is in force:",
        ));
        lines.extend(error.lines().map(|line| {
            // In full: a cut-off message helps nobody.
            styled(BAD, &format!("  {}", format::printable(line)))
        }));
    }
    for Ungoverned { reason, total } in &snapshot.ungoverned {
        if *total > 0 {
            lines.push(styled(
                NOTABLE,
                &format!("passed ungoverned: {total} ({reason})"),
            ));
        }
    }
    if !snapshot.enabled {
        lines.push(styled(
            NOTABLE,
            "no lane enforces its limit: nothing is held",
        ));
    }
    lines.push(String::new());
    lines.push(styled(
        BOLD,
        &format!(
            "{:NAME_WIDTH$} {:16} {:>9} {:>6} {:>7} {:>7} {:>7}",
            "LANE", "STATE", "IN FLIGHT", "QUEUED", "OLDEST", "P50", "P90"
        ),
    ));
    for lane in &snapshot.lanes {
        lines.push(row(lane));
        lines.extend(notes(snapshot, lane).iter().map(|(style, note)| {
            let indented = format!("  {}", format::clip(note, WIDTH - 2));
            styled(*style, &indented)
        }));
    }
    let mut table = lines.join("\n");
    table.push('\n');
    table
}

fn row(lane: &LaneSnapshot) -> String {
    let inflight = match lane.mode {
        Mode::Enforce => format!("{}/{}", lane.inflight, lane.effective_limit),
        Mode::Observe => lane.inflight.to_string(),
    };
    let state = styled(
        match lane.diagnosis {
            Diagnosis::Ok => GOOD,
            Diagnosis::LocalQueue | Diagnosis::Paused => NOTABLE,
            Diagnosis::GatewayDegraded => BAD,
            Diagnosis::Observe => DIM,
        },
        &format!("{:16}", lane.diagnosis.name()),
    );
    format!(
        "{:NAME_WIDTH$} {state} {inflight:>9} {:>6} {:>7} {:>7} {:>7}",
        format::clip(&lane.lane, NAME_WIDTH),
        lane.queued,
        format::duration(lane.oldest_wait),
        format::duration(lane.wait_p50_5m),
        format::duration(lane.wait_p90_5m),
    )
}

/// What there is to say about a lane beyond its row: only what is not at rest, and what a limit on trial would do.
fn notes(snapshot: &Snapshot, lane: &LaneSnapshot) -> Vec<(Style, String)> {
    let mut notes = Vec::new();
    if let Some(reason) = lane.diagnosis_reason.as_deref() {
        match lane.diagnosis {
            Diagnosis::GatewayDegraded => {
                notes.push((BAD, format!("gateway degraded: {reason}")));
            }
            // The note of the pause says it.
            Diagnosis::Paused => {}
            _ => notes.push((NOTABLE, reason.to_owned())),
        }
    }
    if let Some(until) = lane.paused_until {
        let left = until.duration_since(snapshot.generated_at);
        // A pause that ends while the snapshot is made has nothing left.
        let left = format::duration(left.try_into().unwrap_or_default());
        let why = lane.diagnosis_reason.as_deref();
        let why = why.map_or(String::new(), |why| format!("; {why}"));
        notes.push((
            NOTABLE,
            format!("paused for {left} more, until {until}{why}"),
        ));
    } else if lane.mode == Mode::Enforce && lane.effective_limit < lane.limit {
        notes.push((
            NOTABLE,
            format!(
                "limit lowered from {} to {}",
                lane.limit, lane.effective_limit
            ),
        ));
    }
    if lane.inflight > 0 || lane.idle_connections > 0 {
        let mut parts = by_class(&lane.inflight_by_priority);
        if lane.idle_connections > 0 {
            parts.push(counted(lane.idle_connections.into(), "idle connection"));
        }
        notes.push((DIM, format!("in flight: {}", parts.join(", "))));
    }
    if lane.queued > 0 {
        let full = if lane.queued >= lane.max_queue {
            " (queue full)"
        } else if lane.saturated {
            " (saturated)"
        } else {
            ""
        };
        let parts = by_class(&lane.queued_by_priority).join(", ");
        notes.push((DIM, format!("queued: {parts}{full}")));
    }
    notes.extend(accounts(&lane.accounts).map(|note| (DIM, note)));
    let recent: Vec<String> = [
        ("queue timeouts", lane.queue_timeouts_5m),
        ("refusals", lane.refusals_5m),
        ("throttled under the limit", lane.under_limit_5m),
    ]
    .into_iter()
    .filter(|(_, count)| *count > 0)
    .map(|(what, count)| format!("{what} {count}"))
    .collect();
    if !recent.is_empty() {
        notes.push((NOTABLE, format!("last 5 min: {}", recent.join(", "))));
    }
    notes.extend(would_have(lane).map(|note| (NOTABLE, note)));
    if lane.h2_connections > 0 {
        let count = counted(lane.h2_connections.into(), "connection");
        notes.push((
            NOTABLE,
            format!("{count} with HTTP/2: parallel requests on one count as one"),
        ));
    }
    if lane.preexisting_connections > 0 {
        let count = counted(lane.preexisting_connections.into(), "connection");
        notes.push((
            NOTABLE,
            format!("{count} from before shaper's start: ungoverned until closed"),
        ));
    }
    notes
}

/// What the limit of a lane that observes would have done, nothing included: that is the answer to roll-out's question.
fn would_have(lane: &LaneSnapshot) -> Option<String> {
    if lane.mode == Mode::Enforce || lane.limit == 0 {
        return None;
    }
    let turned_away = [
        ("refused", lane.would_have_refused_5m),
        ("timed out", lane.would_have_timed_out_5m),
    ];
    let turned_away: String = turned_away
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(what, count)| format!(", {what} {count}"))
        .collect();
    let mut note = format!(
        "would have: waited {}{turned_away} in 5 min at limit {}",
        lane.would_have_waited_5m, lane.limit
    );
    if lane.would_have_waited_5m > 0 {
        let p90 = format::duration(lane.shadow_wait_p90_5m);
        note += &format!("; p90 {p90}, {} waiting now", lane.shadow_queued);
    }
    Some(note)
}

fn by_class(counts: &ByClass<u32>) -> Vec<String> {
    Class::ALL
        .into_iter()
        .filter(|class| *counts.get(*class) > 0)
        .map(|class| format!("{} {class}", counts.get(class)))
        .collect()
}

fn accounts(accounts: &[AccountSnapshot]) -> impl Iterator<Item = String> {
    let mut sorted: Vec<&AccountSnapshot> = accounts.iter().collect();
    sorted.sort_by_key(|account| std::cmp::Reverse((account.queued, account.inflight)));
    let hidden = sorted.len().saturating_sub(ACCOUNTS_SHOWN);
    sorted.truncate(ACCOUNTS_SHOWN);
    let mut notes: Vec<String> = sorted
        .into_iter()
        .map(|account| {
            format!(
                "account {} ({}): {} in flight, {} queued",
                format::clip(&account.account, NAME_WIDTH),
                account.priority,
                account.inflight,
                account.queued
            )
        })
        .collect();
    if hidden > 0 {
        notes.push(format!("and {}", counted(hidden as u64, "other account")));
    }
    notes.into_iter()
}

/// `count` and the noun, in the plural where it must be.
fn counted(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

fn styled(style: Style, text: &str) -> String {
    let mut styled = String::with_capacity(text.len() + 16);
    // Writing to a String does not fail.
    let _ = write!(styled, "{style}{text}{style:#}");
    styled
}

#[cfg(test)]
mod tests {
    use anstream::adapter::strip_str;

    use super::*;
    use crate::snapshot::samples;

    fn observing(name: &str) -> LaneSnapshot {
        LaneSnapshot {
            mode: Mode::Observe,
            limit: 0,
            effective_limit: 0,
            max_queue: 0,
            diagnosis: Diagnosis::Observe,
            ..samples::lane(name)
        }
    }

    fn plain(snapshot: &Snapshot) -> String {
        strip_str(&table(snapshot)).to_string()
    }

    #[test]
    fn a_busy_lane_says_who_uses_it_and_who_waits() {
        assert_eq!(
            plain(&samples::busy()),
            r"shaper 0.1.0 · 2026-01-02T03:04:05Z · 1 lane

LANE                 STATE            IN FLIGHT QUEUED  OLDEST     P50     P90
reasoning            local_queue            6/6      9   3m32s     38s   2m51s
  in flight: 1 interactive, 2 default, 3 bulk, 4 idle connections
  queued: 2 default, 7 bulk (saturated)
  account acme (bulk): 3 in flight, 5 queued
  last 5 min: queue timeouts 2
"
        );
    }

    /// A21: a host that only observes says so, and what would have waited.
    #[test]
    fn lanes_at_rest_take_one_line_each() {
        let snapshot = Snapshot {
            enabled: false,
            lanes: vec![
                observing("completions"),
                LaneSnapshot {
                    limit: 6,
                    would_have_waited_5m: 12,
                    would_have_refused_5m: 3,
                    shadow_queued: 2,
                    shadow_wait_p90_5m: Duration::from_secs(38),
                    ..observing("a-lane-with-a-very-long-name")
                },
                LaneSnapshot {
                    limit: 8,
                    effective_limit: 8,
                    ..observing("roomy")
                },
            ],
            ..samples::busy()
        };
        assert_eq!(
            plain(&snapshot),
            r"shaper 0.1.0 · 2026-01-02T03:04:05Z · 3 lanes
no lane enforces its limit: nothing is held

LANE                 STATE            IN FLIGHT QUEUED  OLDEST     P50     P90
completions          observe                  0      0      0s      0s      0s
a-lane-with-a-very-… observe                  0      0      0s      0s      0s
  would have: waited 12, refused 3 in 5 min at limit 6; p90 38s, 2 waiting now
roomy                observe                  0      0      0s      0s      0s
  would have: waited 0 in 5 min at limit 8
"
        );
    }

    #[test]
    fn trouble_is_on_top() {
        let snapshot = Snapshot {
            lanes: vec![LaneSnapshot {
                diagnosis: Diagnosis::Paused,
                effective_limit: 0,
                paused_until: Some("2026-01-02T03:04:35Z".parse().unwrap()),
                h2_connections: 1,
                preexisting_connections: 2,
                ..samples::lane("reasoning")
            }],
            ungoverned: vec![Ungoverned {
                reason: "table_full".into(),
                total: 7,
            }],
            last_reload_error: Some("lanes.d/reasoning.toml:2: max_inflight is missing".into()),
            ..samples::busy()
        };
        assert_eq!(
            plain(&snapshot),
            r"shaper 0.1.0 · 2026-01-02T03:04:05Z · 1 lane
the last reload was rejected, the configuration before it is in force:
  lanes.d/reasoning.toml:2: max_inflight is missing
passed ungoverned: 7 (table_full)

LANE                 STATE            IN FLIGHT QUEUED  OLDEST     P50     P90
reasoning            paused                 0/0      0      0s      0s      0s
  paused for 30s more, until 2026-01-02T03:04:35Z
  1 connection with HTTP/2: parallel requests on one count as one
  2 connections from before shaper's start: ungoverned until closed
"
        );
    }

    #[test]
    fn nothing_is_wider_than_the_terminal() {
        let mut snapshot = samples::busy();
        let lane = &mut snapshot.lanes[0];
        lane.lane = "x".repeat(100);
        lane.inflight = 9999;
        lane.effective_limit = 9999;
        lane.limit = 99_999;
        lane.queued = 65_536;
        lane.oldest_wait = Duration::from_secs(86_400 * 99);
        lane.accounts = (0..9)
            .map(|n| AccountSnapshot {
                account: format!("{n}{}", "y".repeat(100)),
                priority: Class::Interactive,
                inflight: u32::MAX,
                queued: n,
            })
            .collect();
        let table = plain(&snapshot);
        assert!(table.contains("and 4 other accounts"), "{table}");
        for line in table.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
    }

    #[test]
    fn an_account_cannot_send_escapes_to_the_terminal() {
        let mut snapshot = samples::busy();
        snapshot.lanes[0].accounts[0].account = "\x1b]0;pwned\x07".into();
        assert!(plain(&snapshot).contains("?]0;pwned?"));
        assert!(!table(&snapshot).contains("\x1b]"));
    }
}
