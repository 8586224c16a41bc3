//! What `shaper top` knows, and how keys and news change it: no terminal, no socket, no clock.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use jiff::Timestamp;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::prompt::{Answer, Prompt};
use crate::snapshot::{LaneSnapshot, Snapshot, Waiter, Waiters};

/// Looks kept for the sparklines: five minutes, at one a second.
const KEPT: usize = 300;

/// One look at the controller.
#[derive(Clone, Debug)]
pub struct Look {
    pub snapshot: Snapshot,
    pub waiters: Waiters,
}

/// What an operator wants changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Pause { lane: String, length: Duration },
    Resume { lane: String },
    Limit { lane: String, limit: u32 },
}

/// What has happened.
#[derive(Debug)]
pub enum Input {
    Key(KeyEvent),
    /// A look, or why there is none.
    Looked(Result<Box<Look>, String>),
    /// A change is in force, or why it is not; in words.
    Changed(Result<String, String>),
}

/// What is to be done about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    Quit,
    Change(Change),
}

/// Whether the controller answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Link {
    Up,
    Down { why: String },
}

/// The last thing told to the operator, until the next key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    Done(String),
    Failed(String),
}

/// What the screen is in the middle of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    #[default]
    Browse,
    Help,
    Ask(Prompt),
}

/// A lane's recent past, oldest first.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub in_flight: VecDeque<u32>,
    pub queued: VecDeque<u32>,
}

impl History {
    fn push(&mut self, lane: &LaneSnapshot) {
        for (series, value) in [
            (&mut self.in_flight, lane.inflight),
            (&mut self.queued, lane.queued),
        ] {
            if series.len() == KEPT {
                series.pop_front();
            }
            series.push_back(value);
        }
    }
}

#[derive(Clone, Debug)]
pub struct Model {
    pub link: Link,
    pub look: Look,
    pub mode: Mode,
    pub notice: Option<Notice>,
    /// Waiters of the selected lane scrolled past.
    pub scroll: usize,
    history: HashMap<String, History>,
    /// By name, so that it survives a reload that adds or removes lanes.
    selected: String,
}

impl Model {
    pub fn new(look: Look) -> Self {
        let mut model = Self {
            link: Link::Up,
            mode: Mode::default(),
            notice: None,
            scroll: 0,
            history: HashMap::new(),
            selected: String::new(),
            look: look.clone(),
        };
        model.take(look);
        model
    }

    /// The lane that the lower part of the screen is about, and its place in the list.
    pub fn selected(&self) -> Option<(usize, &LaneSnapshot)> {
        let lanes = &self.look.snapshot.lanes;
        let index = lanes.iter().position(|lane| lane.lane == self.selected)?;
        Some((index, &lanes[index]))
    }

    /// The selected lane's waiters that are not scrolled past, the next to go first.
    pub fn waiters(&self) -> impl Iterator<Item = &Waiter> {
        self.of_selected().skip(self.scroll)
    }

    /// The selected lane's past.
    pub fn history(&self) -> Option<&History> {
        self.history.get(&self.selected)
    }

    /// When the controller last answered.
    pub fn seen(&self) -> Timestamp {
        self.look.snapshot.generated_at
    }

    pub fn update(&mut self, input: Input) -> Option<Effect> {
        match input {
            Input::Key(key) => return self.key(key),
            Input::Looked(Ok(look)) => self.take(*look),
            Input::Looked(Err(why)) => self.link = Link::Down { why },
            Input::Changed(Ok(done)) => self.notice = Some(Notice::Done(done)),
            Input::Changed(Err(why)) => self.notice = Some(Notice::Failed(why)),
        }
        None
    }

    fn take(&mut self, look: Look) {
        self.link = Link::Up;
        let lanes = &look.snapshot.lanes;
        self.history
            .retain(|name, _| lanes.iter().any(|lane| lane.lane == *name));
        for lane in lanes {
            self.history
                .entry(lane.lane.clone())
                .or_default()
                .push(lane);
        }
        if !lanes.iter().any(|lane| lane.lane == self.selected) {
            let first = lanes.first().map(|lane| lane.lane.clone());
            self.selected = first.unwrap_or_default();
            self.scroll = 0;
        }
        self.look = look;
        self.scroll = self
            .scroll
            .min(self.of_selected().count().saturating_sub(1));
    }

    fn of_selected(&self) -> impl Iterator<Item = &Waiter> {
        let waiters = self.look.waiters.waiters.iter();
        waiters.filter(|waiter| waiter.lane == self.selected)
    }

    fn key(&mut self, key: KeyEvent) -> Option<Effect> {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return (key.code == KeyCode::Char('c')).then_some(Effect::Quit);
        }
        self.notice = None;
        match std::mem::take(&mut self.mode) {
            Mode::Browse => self.browse(key.code),
            // Any key leads back.
            Mode::Help => None,
            Mode::Ask(prompt) => match prompt.key(key.code) {
                Answer::NotYet(prompt) => {
                    self.mode = Mode::Ask(prompt);
                    None
                }
                Answer::No => None,
                Answer::Change(change) => Some(Effect::Change(change)),
            },
        }
    }

    fn browse(&mut self, code: KeyCode) -> Option<Effect> {
        match code {
            KeyCode::Char('q') | KeyCode::Esc => return Some(Effect::Quit),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.mode = Mode::Help,
            KeyCode::Down | KeyCode::Char('j') => self.select(1),
            KeyCode::Up | KeyCode::Char('k') => self.select(-1),
            KeyCode::PageDown | KeyCode::Char(' ') => self.scroll_by(10),
            KeyCode::PageUp => self.scroll_by(-10),
            KeyCode::Home => self.scroll = 0,
            KeyCode::Char('p') => self.ask(Prompt::pause),
            KeyCode::Char('r') => self.ask(Prompt::resume),
            KeyCode::Char('l') => self.ask(Prompt::limit),
            _ => {}
        }
        None
    }

    /// Asks about the selected lane, if that makes sense for it.
    fn ask(&mut self, prompt: impl FnOnce(&LaneSnapshot) -> Result<Prompt, String>) {
        let Some((_, lane)) = self.selected() else {
            return;
        };
        match prompt(lane) {
            Ok(prompt) => self.mode = Mode::Ask(prompt),
            Err(why) => self.notice = Some(Notice::Failed(why)),
        }
    }

    fn select(&mut self, step: isize) {
        let lanes = &self.look.snapshot.lanes;
        if let Some((index, _)) = self.selected()
            && let Some(lane) = index
                .checked_add_signed(step)
                .and_then(|index| lanes.get(index))
        {
            self.selected = lane.lane.clone();
            self.scroll = 0;
        }
    }

    fn scroll_by(&mut self, step: isize) {
        let last = self.of_selected().count().saturating_sub(1);
        self.scroll = self.scroll.saturating_add_signed(step).min(last);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::snapshot::{Diagnosis, samples};

    /// The sample lane with its nine waiters, and two lanes beside it.
    pub(in crate::cli::top) fn model() -> Model {
        Model::new(look())
    }

    fn look() -> Look {
        let mut snapshot = samples::busy();
        snapshot.lanes.push(samples::lane("completions"));
        snapshot.lanes.push(samples::lane("embeddings"));
        let mut waiters = samples::waiters();
        let first = waiters.waiters.remove(0);
        waiters.waiters = (1..=9)
            .map(|position| Waiter {
                position,
                pid: 4200 + position,
                command: Some(format!("agent-{position}")),
                ..first.clone()
            })
            .collect();
        Look { snapshot, waiters }
    }

    pub(in crate::cli::top) fn press(model: &mut Model, keys: &str) -> Option<Effect> {
        let mut effect = None;
        for key in keys.chars() {
            let code = match key {
                '\n' => KeyCode::Enter,
                '\x1b' => KeyCode::Esc,
                '\x08' => KeyCode::Backspace,
                '↓' => KeyCode::Down,
                '↑' => KeyCode::Up,
                '⇟' => KeyCode::PageDown,
                '⇞' => KeyCode::PageUp,
                key => KeyCode::Char(key),
            };
            effect = model.update(Input::Key(code.into()));
        }
        effect
    }

    fn selected(model: &Model) -> &str {
        &model.selected().unwrap().1.lane
    }

    #[test]
    fn the_selection_stays_inside_the_list_and_survives_a_reload() {
        let mut model = model();
        press(&mut model, "↑");
        assert_eq!(selected(&model), "reasoning");
        press(&mut model, "↓j↓↓");
        assert_eq!(selected(&model), "embeddings");
        let mut without_first = look();
        without_first.snapshot.lanes.remove(0);
        model.update(Input::Looked(Ok(Box::new(without_first.clone()))));
        assert_eq!(selected(&model), "embeddings");
        without_first.snapshot.lanes.truncate(1);
        model.update(Input::Looked(Ok(Box::new(without_first))));
        assert_eq!(selected(&model), "completions");
    }

    #[test]
    fn scrolling_ends_with_the_last_waiter() {
        let mut model = model();
        assert_eq!(model.waiters().count(), 9);
        press(&mut model, "⇟⇟");
        assert_eq!(model.waiters().count(), 1);
        let mut shorter = look();
        shorter.waiters.waiters.truncate(2);
        model.update(Input::Looked(Ok(Box::new(shorter))));
        assert_eq!(model.waiters().next().unwrap().position, 2);
        press(&mut model, "⇞");
        assert_eq!(model.waiters().count(), 2);
    }

    #[test]
    fn a_change_is_asked_for_and_told_back() {
        let mut model = model();
        assert_eq!(press(&mut model, "p"), None);
        let change = press(&mut model, "\x08\x08\x0890s\n");
        let lane = "reasoning".to_owned();
        let paused_for = |length| {
            let lane = lane.clone();
            let length = Duration::from_secs(length);
            Some(Effect::Change(Change::Pause { lane, length }))
        };
        assert_eq!(change, paused_for(90));
        assert_eq!(press(&mut model, "p5m\n"), paused_for(300));
        assert_eq!(press(&mut model, "p\n"), paused_for(30));
        assert_eq!(model.mode, Mode::Browse);
        for keys in ["l4\n", "l\x084\n"] {
            let lane = lane.clone();
            assert_eq!(
                press(&mut model, keys),
                Some(Effect::Change(Change::Limit { lane, limit: 4 })),
                "{keys:?}"
            );
        }
        model.update(Input::Changed(Ok("done".into())));
        assert_eq!(model.notice, Some(Notice::Done("done".into())));
        press(&mut model, "↓");
        assert_eq!(model.notice, None);
    }

    #[test]
    fn a_change_can_be_called_off() {
        let mut model = model();
        for keys in ["p\x1b", "l\x1b", "l\x08\n\x1b"] {
            assert_eq!(press(&mut model, keys), None, "{keys:?}");
            assert_eq!(model.mode, Mode::Browse, "{keys:?}");
        }
    }

    #[test]
    fn only_a_paused_lane_is_resumed() {
        let mut model = model();
        press(&mut model, "r");
        assert!(matches!(&model.notice, Some(Notice::Failed(why)) if why.contains("not paused")));
        let mut paused = look();
        paused.snapshot.lanes[0].diagnosis = Diagnosis::Paused;
        paused.snapshot.lanes[0].paused_until = Some("2026-01-02T03:05:05Z".parse().unwrap());
        model.update(Input::Looked(Ok(Box::new(paused))));
        assert_eq!(press(&mut model, "rn"), None);
        let lane = "reasoning".to_owned();
        assert_eq!(
            press(&mut model, "ry"),
            Some(Effect::Change(Change::Resume { lane }))
        );
    }

    #[test]
    fn every_way_out_works_everywhere() {
        let control_c = || Input::Key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL));
        for keys in ["", "?", "p", "l"] {
            let mut model = model();
            press(&mut model, keys);
            assert_eq!(model.update(control_c()), Some(Effect::Quit), "{keys}");
        }
        assert_eq!(press(&mut model(), "q"), Some(Effect::Quit));
        assert_eq!(press(&mut model(), "?q"), None, "help ends first");
    }

    #[test]
    fn what_was_seen_stays_while_the_controller_is_away() {
        let mut model = model();
        model.update(Input::Looked(Err("gone".into())));
        assert_eq!(model.link, Link::Down { why: "gone".into() });
        assert_eq!(model.waiters().count(), 9);
        model.update(Input::Looked(Ok(Box::new(look()))));
        assert_eq!(model.link, Link::Up);
        assert_eq!(model.history().unwrap().queued, [9, 9]);
    }
}
