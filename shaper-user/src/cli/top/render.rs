//! Draws a [`Model`].

use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Style, Stylize},
    text::{Line, Span},
    widgets::{
        Block, Cell, Clear, Paragraph, RenderDirection, Row, Sparkline, Table, TableState, Wrap,
    },
};
use shaper_common::Class;

use super::{
    model::{History, Link, Mode, Model, Notice},
    slots::{Slot, cells},
    theme::Theme,
};
use crate::{
    format,
    snapshot::{self, LaneSnapshot, Stage, Waiter},
    words,
};

/// Columns of the bar of slots.
const BAR: u16 = 12;
/// Lanes shown at once; the list scrolls.
const LANES: usize = 6;
/// Columns of a process's name: the kernel's TASK_COMM_LEN less its end.
const COMMAND: u16 = 15;
/// Rows of a sparkline, its title left out.
const GRAPH: u16 = 2;

const HELP: &[(&str, &str)] = &[
    ("↑ ↓  k j", "choose a lane"),
    ("PgUp PgDn", "scroll its waiters"),
    ("p", "pause it for a while: nothing starts"),
    ("r", "resume it"),
    ("l", "change its limit (max_inflight)"),
    ("q  Esc", "quit; Ctrl-C works everywhere"),
    ("", ""),
    ("I D B", "a slot in use: interactive, default, bulk"),
    ("·  r", "a free slot; one reserved for interactive"),
    ("bulk→default", "waits as if one class higher: it has aged"),
    ("OF", "the wait at which it is ended"),
    ("HELD", "what is held: its connect or its request"),
];

pub fn draw(frame: &mut Frame<'_>, model: &Model, theme: &Theme) {
    let lanes = model.look.snapshot.lanes.len().min(LANES) as u16;
    let alerts = alerts(model, theme);
    let [head, alert, list, lane, foot] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(alerts.len() as u16),
        Constraint::Length(lanes + 1),
        Constraint::Min(0),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    header(frame, head, model, theme);
    frame.render_widget(Paragraph::new(alerts), alert);
    lane_list(frame, list, model, theme);
    if let Some((_, selected)) = model.selected() {
        lane_detail(frame, lane, model, selected, theme);
    }
    footer(frame, foot, model, theme);
    if model.mode == Mode::Help {
        help(frame, theme);
    }
}

fn header(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: &Theme) {
    let seen = model.seen().strftime("%H:%M:%S UTC");
    let line = match &model.link {
        Link::Up => Line::from(vec![
            Span::from(format!("shaper {}", model.look.snapshot.version)).bold(),
            Span::styled(format!(" · {seen}"), theme.dim),
        ]),
        Link::Down { .. } => Line::styled(
            format!("controller not reachable · this is what was at {seen}"),
            theme.bad,
        ),
    };
    frame.render_widget(line, area);
    frame.render_widget(Line::styled("? help", theme.dim).right_aligned(), area);
}

/// What concerns the whole host, a line each.
fn alerts(model: &Model, theme: &Theme) -> Vec<Line<'static>> {
    let snapshot = &model.look.snapshot;
    let mut alerts = Vec::new();
    if let Link::Down { why } = &model.link {
        alerts.push(Line::styled(format::printable(why).into_owned(), theme.bad));
    }
    if let Some(first) = snapshot
        .last_reload_error
        .as_deref()
        .and_then(|error| error.lines().next())
    {
        let first = format::printable(first);
        alerts.push(Line::styled(format!("reload rejected: {first}"), theme.bad));
    }
    for ungoverned in &snapshot.ungoverned {
        alerts.push(Line::styled(
            format!(
                "passed ungoverned: {} ({})",
                ungoverned.total, ungoverned.reason
            ),
            theme.notable,
        ));
    }
    if !snapshot.enabled {
        alerts.push(Line::styled(
            "no lane enforces its limit: nothing is held",
            theme.notable,
        ));
    }
    alerts
}

fn lane_list(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: &Theme) {
    let header = Row::new([
        "LANE", "STATE", "SLOTS", "IN USE", "QUEUED", "OLDEST", "P90",
    ]);
    let rows = model.look.snapshot.lanes.iter().map(|lane| {
        let in_use = match lane.mode {
            snapshot::Mode::Enforce => format!("{}/{}", lane.inflight, lane.effective_limit),
            snapshot::Mode::Observe => lane.inflight.to_string(),
        };
        Row::new([
            Cell::from(format::printable(&lane.lane).into_owned()),
            Cell::from(Span::styled(
                lane.diagnosis.name(),
                theme.state(lane.diagnosis),
            )),
            Cell::from(bar(lane, theme)),
            right(in_use),
            right(lane.queued.to_string()),
            right(format::duration(lane.oldest_wait)),
            right(format::duration(lane.wait_p90_5m)),
        ])
    });
    let widths = [
        Constraint::Min(8),
        Constraint::Length(16),
        Constraint::Length(BAR),
        Constraint::Length(9),
        Constraint::Length(6),
        Constraint::Length(6),
        Constraint::Length(6),
    ];
    let table = Table::new(rows, widths)
        .header(header.style(theme.title))
        .row_highlight_style(theme.selected)
        .highlight_symbol("▸ ");
    let selected = model.selected().map(|(index, _)| index);
    let mut state = TableState::new().with_selected(selected);
    frame.render_stateful_widget(table, area, &mut state);
}

fn right(text: String) -> Cell<'static> {
    Cell::from(Line::from(text).right_aligned())
}

fn bar(lane: &LaneSnapshot, theme: &Theme) -> Line<'static> {
    let cells = cells(lane, usize::from(BAR)).into_iter();
    Line::from_iter(cells.map(|slot| match slot {
        Slot::InUse(class) => Span::styled(letter(class), theme.class(class).reversed()),
        Slot::Free => Span::styled("·", theme.dim),
        Slot::Reserved => Span::styled("r", theme.class(Class::Interactive)),
    }))
}

fn letter(class: Class) -> &'static str {
    match class {
        Class::Interactive => "I",
        Class::Default => "D",
        Class::Bulk => "B",
    }
}

fn lane_detail(
    frame: &mut Frame<'_>,
    area: Rect,
    model: &Model,
    lane: &LaneSnapshot,
    theme: &Theme,
) {
    let name = format::clip(&lane.lane, usize::from(area.width.saturating_sub(6)));
    let block = Block::new()
        .borders(ratatui::widgets::Borders::TOP)
        .border_style(theme.dim)
        .title(Line::styled(format!(" {name} "), theme.title));
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let facts = facts(model, lane, usize::from(inner.width), theme);
    let [about, graphs, waiters] = Layout::vertical([
        Constraint::Length(facts.len() as u16),
        Constraint::Length(GRAPH + 1),
        Constraint::Min(0),
    ])
    .areas(inner);
    frame.render_widget(Paragraph::new(facts), about);
    let [in_flight, queued] = Layout::horizontal([Constraint::Fill(1); 2])
        .spacing(2)
        .areas(graphs);
    if let Some(History {
        in_flight: used,
        queued: waiting,
    }) = model.history()
    {
        let limit = u64::from(lane.effective_limit);
        graph(frame, in_flight, "in flight", used, limit, theme);
        graph(frame, queued, "queued", waiting, 1, theme);
    }
    waiter_list(frame, waiters, model, lane, theme);
}

/// What the lane is doing, what there is to add, and its last five minutes, in lines of this `width`.
fn facts(model: &Model, lane: &LaneSnapshot, width: usize, theme: &Theme) -> Vec<Line<'static>> {
    let mut recent = format!(
        "5 min: half waited {} or less, p90 {}",
        format::duration(lane.wait_p50_5m),
        format::duration(lane.wait_p90_5m)
    );
    for (count, what) in [
        (lane.queue_timeouts_5m, "timed out"),
        (lane.refusals_5m, "refused"),
    ] {
        if count > 0 {
            recent += &format!(", {count} {what}");
        }
    }
    let said = [Some(words::doing(lane, model.seen())), words::reason(lane)];
    let said = said.into_iter().flatten();
    let mut lines: Vec<_> = said
        .flat_map(|said| format::wrap(&said, width, 2))
        .map(|said| Line::styled(said, theme.state(lane.diagnosis)))
        .collect();
    lines.push(Line::styled(recent, theme.dim));
    lines
}

/// The newest value at the right. The scale is at least `scale`, so that a full lane looks full.
fn graph<'a>(
    frame: &mut Frame<'_>,
    area: Rect,
    what: &str,
    values: impl IntoIterator<Item = &'a u32, IntoIter: DoubleEndedIterator>,
    scale: u64,
    theme: &Theme,
) {
    let shown = usize::from(area.width);
    let newest_first = values.into_iter().rev().copied().map(u64::from).take(shown);
    let newest_first: Vec<u64> = newest_first.collect();
    let peak = newest_first.iter().copied().max().unwrap_or(0);
    let now = newest_first.first().copied().unwrap_or(0);
    let [title, line] = Layout::vertical([Constraint::Length(1), Constraint::Min(0)]).areas(area);
    frame.render_widget(
        Line::styled(format!("{what} {now}, peak {peak}"), theme.dim),
        title,
    );
    let sparkline = Sparkline::default()
        .data(newest_first)
        .max(peak.max(scale).max(1))
        .direction(RenderDirection::RightToLeft)
        .style(theme.graph);
    frame.render_widget(sparkline, line);
}

fn waiter_list(
    frame: &mut Frame<'_>,
    area: Rect,
    model: &Model,
    lane: &LaneSnapshot,
    theme: &Theme,
) {
    if lane.queued == 0 {
        frame.render_widget(Line::styled("nobody waits", theme.dim), area);
        return;
    }
    let header = Row::new([
        Cell::from("#"),
        Cell::from("CLASS"),
        Cell::from("ACCOUNT"),
        Cell::from("COMMAND"),
        right("PID".into()),
        right("WAIT".into()),
        right("OF".into()),
        Cell::from("HELD"),
    ]);
    let widths = [
        Constraint::Length(4),
        Constraint::Length(16),
        Constraint::Min(8),
        Constraint::Length(COMMAND),
        Constraint::Length(7),
        Constraint::Length(6),
        Constraint::Length(6),
        Constraint::Length(7),
    ];
    let rows = model.waiters().take(usize::from(area.height));
    let table = Table::new(rows.map(|waiter| waiter_row(waiter, theme)), widths)
        .header(header.style(theme.title));
    frame.render_widget(table, area);
}

fn waiter_row(waiter: &Waiter, theme: &Theme) -> Row<'static> {
    let (class, as_if) = (waiter.priority, waiter.effective_priority);
    let standing = if class == as_if {
        class.to_string()
    } else {
        format!("{class}→{as_if}")
    };
    let name = |name: &Option<String>| match name {
        Some(name) => Cell::from(format::printable(name).into_owned()),
        None => Cell::from(Span::styled("-", theme.dim)),
    };
    Row::new([
        Cell::from(waiter.position.to_string()),
        Cell::from(Span::styled(standing, theme.class(class))),
        name(&waiter.account),
        name(&waiter.command),
        right(waiter.pid.to_string()),
        right(format::duration(waiter.wait)),
        right(format::duration(waiter.queue_timeout)),
        Cell::from(match waiter.stage {
            Stage::Connect => "connect",
            Stage::Request => "request",
        }),
    ])
}

fn footer(frame: &mut Frame<'_>, area: Rect, model: &Model, theme: &Theme) {
    let line = match (&model.mode, &model.notice) {
        (Mode::Ask(prompt), _) => {
            let mut line = Line::from(Span::styled(
                format::printable(&prompt.question()).into_owned(),
                theme.title,
            ));
            if let Some(text) = prompt.text() {
                let style = match prompt.is_proposed() {
                    true => theme.proposed,
                    false => Style::new(),
                };
                line.push_span(" ");
                line.push_span(Span::styled(text.to_owned(), style));
                line.push_span("▏");
                line.push_span(match prompt.error() {
                    Some(error) => Span::styled(format!("  {error}"), theme.bad),
                    None => Span::styled("  Enter does it, Esc does not", theme.dim),
                });
            }
            line
        }
        (_, Some(Notice::Done(done))) => {
            Line::styled(format::printable(done).into_owned(), theme.good)
        }
        (_, Some(Notice::Failed(why))) => {
            Line::styled(format::printable(why).into_owned(), theme.bad)
        }
        (_, None) => Line::styled(
            "↑↓ lane  PgUp PgDn waiters  p pause  r resume  l limit  ? help  q quit",
            theme.dim,
        ),
    };
    frame.render_widget(line, area);
}

fn help(frame: &mut Frame<'_>, theme: &Theme) {
    let lines: Vec<Line<'_>> = HELP
        .iter()
        .map(|(key, meaning)| {
            Line::from(vec![
                Span::from(format!("{key:>13}")).bold(),
                Span::from(format!("  {meaning}")),
            ])
        })
        .collect();
    let area = frame
        .area()
        .centered(Constraint::Max(62), Constraint::Max(lines.len() as u16 + 2));
    frame.render_widget(Clear, area);
    let block = Block::bordered()
        .border_style(theme.dim)
        .title(Line::styled(" help ", theme.title))
        .title_bottom(Line::styled(" any key leads back ", theme.dim).right_aligned());
    frame.render_widget(
        Paragraph::new(lines)
            .block(block)
            .wrap(Wrap { trim: false }),
        area,
    );
}

#[cfg(test)]
mod tests {
    use ratatui::{Terminal, backend::TestBackend, buffer::Buffer, style::Modifier};

    use super::*;
    use crate::{
        cli::top::model::{
            Input,
            tests::{model, press},
        },
        snapshot::Ungoverned,
    };

    fn drawn(model: &Model, width: u16, height: u16) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal
            .draw(|frame| draw(frame, model, &Theme::colours()))
            .unwrap();
        terminal.backend().buffer().clone()
    }

    fn text(buffer: &Buffer) -> String {
        let width = usize::from(buffer.area.width);
        let symbols: Vec<&str> = buffer.content.iter().map(|cell| cell.symbol()).collect();
        let lines = symbols.chunks(width).map(|line| line.concat());
        lines
            .map(|line| line.trim_end().to_owned() + "\n")
            .collect()
    }

    #[test]
    fn everything_is_on_a_terminal_of_80_by_24() {
        let mut model = model();
        model.update(Input::Looked(Ok(Box::new(model.look.clone()))));
        assert_eq!(
            text(&drawn(&model, 80, 24)),
            "\
shaper 0.1.0 · 03:04:05 UTC                                               ? help
  LANE              STATE            SLOTS        IN USE    QUEUED OLDEST P90
▸ reasoning         local_queue      IDDBBB             6/6      9  3m32s  2m51s
  completions       ok               ····               0/4      0     0s     0s
  embeddings        ok               ····               0/4      0     0s     0s
 reasoning ─────────────────────────────────────────────────────────────────────
9 wait on purpose: 6 of 6 slots in use.
5 min: half waited 38s or less, p90 2m51s, 2 timed out
in flight 6, peak 6                      queued 9, peak 9
                                     ██                                       ██
                                     ██                                       ██
#    CLASS            ACCOUNT      COMMAND             PID   WAIT     OF HELD
1    bulk→default     acme         agent-1            4201  1m12s  5m00s request
2    bulk→default     acme         agent-2            4202  1m12s  5m00s request
3    bulk→default     acme         agent-3            4203  1m12s  5m00s request
4    bulk→default     acme         agent-4            4204  1m12s  5m00s request
5    bulk→default     acme         agent-5            4205  1m12s  5m00s request
6    bulk→default     acme         agent-6            4206  1m12s  5m00s request
7    bulk→default     acme         agent-7            4207  1m12s  5m00s request
8    bulk→default     acme         agent-8            4208  1m12s  5m00s request
9    bulk→default     acme         agent-9            4209  1m12s  5m00s request


↑↓ lane  PgUp PgDn waiters  p pause  r resume  l limit  ? help  q quit
"
        );
    }

    #[test]
    fn any_size_can_be_drawn() {
        let mut model = model();
        for keys in ["", "?", "xp", "\x1bl"] {
            press(&mut model, keys);
            for (width, height) in [(1, 1), (3, 40), (20, 5), (79, 23), (200, 60), (500, 2)] {
                drawn(&model, width, height);
            }
        }
    }

    #[test]
    fn a_controller_that_is_away_is_told_with_the_reason() {
        let mut model = model();
        model.update(Input::Looked(Err("no controller is listening".into())));
        let screen = text(&drawn(&model, 80, 24));
        assert!(screen.starts_with("controller not reachable"), "{screen}");
        assert!(screen.contains("no controller is listening"), "{screen}");
        assert!(screen.contains("▸ reasoning"), "{screen}");
    }

    #[test]
    fn help_names_every_key() {
        let mut model = model();
        press(&mut model, "?");
        let screen = text(&drawn(&model, 80, 24));
        for (key, meaning) in HELP {
            assert!(
                screen.contains(key) && screen.contains(meaning),
                "{key}: {screen}"
            );
        }
    }

    #[test]
    fn a_question_shows_what_is_typed_and_what_is_wrong() {
        let mut model = model();
        press(&mut model, "px\n");
        let screen = text(&drawn(&model, 100, 24));
        assert!(screen.contains("pause reasoning for: x▏"), "{screen}");
        assert!(screen.contains("1h30m"), "{screen}");
    }

    /// As a field whose text is selected: it goes when something is typed.
    #[test]
    fn what_is_proposed_is_seen_to_be() {
        let mut model = model();
        for (keys, is_reversed) in [("p", true), ("5", false)] {
            press(&mut model, keys);
            let screen = drawn(&model, 80, 24);
            let cell = &screen[("pause reasoning for: ".len() as u16, 23)];
            let style = cell.style().add_modifier;
            assert_eq!(style.contains(Modifier::REVERSED), is_reversed, "{keys}");
        }
    }

    #[test]
    fn trouble_is_on_top() {
        let mut model = model();
        let snapshot = &mut model.look.snapshot;
        snapshot.last_reload_error = Some("lanes.d/a.toml:2: max_inflight is missing".into());
        snapshot.ungoverned = vec![Ungoverned {
            reason: "table_full".into(),
            total: 7,
        }];
        let screen = text(&drawn(&model, 80, 24));
        let top: Vec<&str> = screen.lines().skip(1).take(2).collect();
        assert_eq!(
            top,
            [
                "reload rejected: lanes.d/a.toml:2: max_inflight is missing",
                "passed ungoverned: 7 (table_full)"
            ]
        );
    }

    /// E7 and terminals: names come from processes, which may put escapes in them.
    #[test]
    fn a_name_cannot_send_escapes_to_the_terminal() {
        let mut model = model();
        let waiter = &mut model.look.waiters.waiters[0];
        waiter.command = Some("\x1b]0;pwned\x07".into());
        waiter.account = Some("\x1b[2J".into());
        model.look.snapshot.lanes[1].lane = "\x1b[31m".into();
        model.update(Input::Changed(Ok("\x1b[2J".into())));
        let screen = text(&drawn(&model, 80, 24));
        assert!(!screen.contains('\x1b'), "{screen:?}");
        assert!(screen.contains("?]0;pwned?"), "{screen}");
    }

    /// NO_COLOR: the letters say what the colours say.
    #[test]
    fn without_colours_nothing_is_lost() {
        let model = model();
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal
            .draw(|frame| draw(frame, &model, &Theme::plain()))
            .unwrap();
        let plain = terminal.backend().buffer();
        assert_eq!(text(plain), text(&drawn(&model, 80, 24)));
        let reset = ratatui::style::Color::Reset;
        assert!(
            plain
                .content
                .iter()
                .all(|cell| (cell.fg, cell.bg) == (reset, reset))
        );
    }
}
