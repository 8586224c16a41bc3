//! The colours of the screen. Whatever one says, a letter or word says too.

use std::env;

use ratatui::style::{Color, Modifier, Style};
use shaper_common::Class;

use crate::snapshot::Diagnosis;

#[derive(Clone, Copy, Debug)]
pub struct Theme {
    pub title: Style,
    pub dim: Style,
    pub selected: Style,
    /// What the first key replaces.
    pub proposed: Style,
    pub good: Style,
    pub notable: Style,
    pub bad: Style,
    pub graph: Style,
    classes: [Style; Class::ALL.len()],
}

impl Theme {
    /// What the environment asks for (<https://no-color.org>).
    pub fn from_environment() -> Self {
        match env::var_os("NO_COLOR") {
            Some(value) if !value.is_empty() => Self::plain(),
            _ => Self::colours(),
        }
    }

    /// The terminal's own sixteen, which suit its background.
    pub fn colours() -> Self {
        let colour = |colour: Color| Style::new().fg(colour);
        Self {
            good: colour(Color::Green),
            notable: colour(Color::Yellow),
            bad: colour(Color::Red).add_modifier(Modifier::BOLD),
            graph: colour(Color::Cyan),
            classes: [Color::Cyan, Color::Blue, Color::Magenta].map(colour),
            ..Self::plain()
        }
    }

    /// Bold and dim alone.
    pub fn plain() -> Self {
        let bold = Style::new().add_modifier(Modifier::BOLD);
        Self {
            title: bold,
            dim: Style::new().add_modifier(Modifier::DIM),
            selected: bold,
            proposed: Style::new().add_modifier(Modifier::REVERSED),
            good: Style::new(),
            notable: Style::new(),
            bad: bold,
            graph: Style::new(),
            classes: [Style::new(); Class::ALL.len()],
        }
    }

    pub fn class(&self, class: Class) -> Style {
        self.classes[class.index()]
    }

    pub fn state(&self, diagnosis: Diagnosis) -> Style {
        match diagnosis {
            Diagnosis::Ok => self.good,
            Diagnosis::LocalQueue | Diagnosis::Paused => self.notable,
            Diagnosis::GatewayDegraded => self.bad,
            Diagnosis::Observe => self.dim,
        }
    }
}
