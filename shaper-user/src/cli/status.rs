//! `shaper status`: the lanes, as a table (on a terminal of at most 80 columns) or as JSON.

use std::{
    io::{self, IsTerminal, Write},
    thread,
    time::Duration,
};

use anstyle::{AnsiColor, Style};
use shaper_common::Class;

use super::{ControllerArgs, follow::Follow, print};
use crate::{
    control::Client,
    format::{self, counted, styled},
    snapshot::{AccountSnapshot, ByClass, Diagnosis, LaneSnapshot, Mode, Snapshot, Ungoverned},
    words,
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
/// A table: for each lane its state, slots, queue and waits, and in words what it is doing and what its waiters wait for. On
/// a terminal it has at most 80 columns; elsewhere no line of it is broken.
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
    print::done(written)
}

fn watch(args: &StatusArgs, mut follow: Follow) -> io::Result<()> {
    let redraws = io::stdout().is_terminal() && !args.json;
    loop {
        match follow.ask(Client::status) {
            Ok(snapshot) if redraws => redraw(&table(&snapshot, Notes::Wrapped))?,
            Ok(snapshot) => show(&snapshot, args.json)?,
            Err(error) if redraws => redraw(&format!("{BAD}{error}{BAD:#}\n"))?,
            Err(error) => print::note(format_args!("{BAD}{error}{BAD:#}")),
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
        let document = serde_json::to_string(snapshot)?;
        return print::write(format_args!("{document}\n"));
    }
    let notes = if io::stdout().is_terminal() {
        Notes::Wrapped
    } else {
        Notes::Whole
    };
    print::write(table(snapshot, notes))
}

/// How notes that are longer than a line are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notes {
    /// In as many lines as it takes: a terminal has [`WIDTH`] columns.
    Wrapped,
    /// In one line, for programs that look for something.
    Whole,
}

/// The lanes as a table, with styles.
pub fn table(snapshot: &Snapshot, as_shown: Notes) -> String {
    let mut lines = vec![styled(
        DIM,
        &format!(
            "shaper {} · {} · {}",
            snapshot.version,
            format::moment(snapshot.generated_at),
            counted(snapshot.lanes.len(), "lane")
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
        for (style, note) in notes(snapshot, lane) {
            let shown = match as_shown {
                Notes::Wrapped => format::wrap(&note, WIDTH - 2, 2),
                Notes::Whole => vec![format::printable(&note).into_owned()],
            };
            let indented = shown.iter().map(|line| format!("  {line}"));
            lines.extend(indented.map(|line| styled(style, &line)));
        }
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
        state_style(lane.diagnosis),
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

fn state_style(diagnosis: Diagnosis) -> Style {
    match diagnosis {
        Diagnosis::Ok => GOOD,
        Diagnosis::LocalQueue | Diagnosis::Paused => NOTABLE,
        Diagnosis::GatewayDegraded => BAD,
        Diagnosis::Observe => DIM,
    }
}

/// What there is to say about a lane beyond its row: only what is not at rest, and what a limit on trial would do.
fn notes(snapshot: &Snapshot, lane: &LaneSnapshot) -> Vec<(Style, String)> {
    let mut notes = Vec::new();
    match lane.diagnosis {
        // The row says it.
        Diagnosis::Ok | Diagnosis::Observe => {
            notes.extend(words::reason(lane).map(|reason| (NOTABLE, reason)));
        }
        Diagnosis::LocalQueue | Diagnosis::Paused | Diagnosis::GatewayDegraded => {
            let said = words::diagnosis(lane, snapshot.generated_at);
            notes.push((state_style(lane.diagnosis), said));
        }
    }
    if lane.mode == Mode::Enforce && lane.effective_limit < lane.limit {
        notes.push((
            NOTABLE,
            format!(
                "limit lowered from {} to {}",
                lane.limit, lane.effective_limit
            ),
        ));
    }
    if !lane.overrides.is_empty() {
        let set = lane.overrides.iter();
        let set: Vec<_> = set.map(|(key, value)| format!("{key} = {value}")).collect();
        notes.push((
            NOTABLE,
            format!(
                "set by hand: {} (until a restart, or the file changes)",
                set.join(", ")
            ),
        ));
    }
    if lane.inflight > 0 || lane.idle_connections > 0 {
        let mut parts = by_class(&lane.inflight_by_priority);
        if lane.idle_connections > 0 {
            parts.push(counted(lane.idle_connections, "idle connection"));
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
    let recent = listed([
        ("queue timeouts", lane.queue_timeouts_5m),
        ("refusals", lane.refusals_5m),
        ("left the queue", lane.left_queue_5m.into()),
        ("left before an answer", lane.clients_gone_5m.into()),
    ]);
    notes.extend(recent.map(|recent| (NOTABLE, format!("last 5 min: {recent}"))));
    let errors = lane
        .gateway_errors_5m
        .iter()
        .map(|(kind, count)| (kind.as_str(), u64::from(*count)));
    notes.extend(
        listed(errors).map(|errors| (NOTABLE, format!("gateway errors in 5 min: {errors}"))),
    );
    notes.extend(would_have(lane).map(|note| (NOTABLE, note)));
    if lane.h2_connections > 0 {
        let count = counted(lane.h2_connections, "connection");
        notes.push((
            NOTABLE,
            format!("{count} with HTTP/2: parallel requests on one count as one"),
        ));
    }
    if lane.preexisting_connections > 0 {
        let count = counted(lane.preexisting_connections, "connection");
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

/// Those of these counts that are not zero; `None`: all are.
fn listed<'a>(counts: impl IntoIterator<Item = (&'a str, u64)>) -> Option<String> {
    let some: Vec<String> = counts
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(what, count)| format!("{what} {count}"))
        .collect();
    (!some.is_empty()).then(|| some.join(", "))
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
        notes.push(format!("and {}", counted(hidden, "other account")));
    }
    notes.into_iter()
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
        strip_str(&table(snapshot, Notes::Wrapped)).to_string()
    }

    #[test]
    fn a_busy_lane_says_who_uses_it_and_who_waits() {
        assert_eq!(
            plain(&samples::busy()),
            r"shaper 0.1.0 · 2026-01-02T03:04:05Z · 1 lane

LANE                 STATE            IN FLIGHT QUEUED  OLDEST     P50     P90
reasoning            local_queue            6/6      9   3m32s     38s   2m51s
  9 wait on purpose: 6 of 6 slots in use.
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
                paused_by: Some("operator".into()),
                paused_until: Some("2026-01-02T03:04:35.25Z".parse().unwrap()),
                left_queue_5m: 3,
                clients_gone_5m: 1,
                gateway_errors_5m: [("refused".into(), 4), ("throttled_under_limit".into(), 2)]
                    .into(),
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
reasoning            paused                 0/4      0      0s      0s      0s
  Paused by an operator: nothing starts for 30s more, until
    2026-01-02T03:04:35Z; what is in flight goes on.
  last 5 min: left the queue 3, left before an answer 1
  gateway errors in 5 min: refused 4, throttled_under_limit 2
  1 connection with HTTP/2: parallel requests on one count as one
  2 connections from before shaper's start: ungoverned until closed
"
        );
    }

    #[test]
    fn what_was_set_by_hand_is_told() {
        let mut snapshot = samples::busy();
        let overrides = [("max_inflight", "4"), ("pace.per_second", "default")];
        snapshot.lanes[0].overrides = overrides
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let table = plain(&snapshot);
        assert!(
            table
                .contains("\n  set by hand: max_inflight = 4, pace.per_second = default (until a "),
            "{table}"
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
        lane.waiting_for =
            Some("account of-some-length has 9999 of its 9999 slots in use ".repeat(3));
        lane.gateway_errors_5m = [
            "throttled_under_limit",
            "connect_timeout",
            "unreachable",
            "unanswered",
        ]
        .map(|kind| (kind.to_owned(), u32::MAX))
        .into();
        let shown = plain(&snapshot);
        assert!(shown.contains("and 4 other accounts"), "{shown}");
        for line in shown.lines() {
            assert!(line.chars().count() <= WIDTH, "{line}");
        }
        // Who looks for something in it finds it in one line.
        let whole = strip_str(&table(&snapshot, Notes::Whole)).to_string();
        let why = snapshot.lanes[0].waiting_for.as_deref().unwrap();
        let note = format!("  65536 wait on purpose: {why}.\n");
        assert!(whole.contains(&note), "{whole}");
    }

    #[test]
    fn an_account_cannot_send_escapes_to_the_terminal() {
        let mut snapshot = samples::busy();
        snapshot.lanes[0].accounts[0].account = "\x1b]0;pwned\x07".into();
        assert!(plain(&snapshot).contains("?]0;pwned?"));
        assert!(!table(&snapshot, Notes::Whole).contains("\x1b]"));
    }
}
