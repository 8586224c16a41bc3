//! The question at the foot of the screen before a change.

use ratatui::crossterm::event::KeyCode;

use super::model::Change;
use crate::{
    pause,
    snapshot::{LaneSnapshot, Mode},
};

/// Characters of an answer: more than any duration or limit has.
const LONGEST: usize = 16;

/// A question about one lane, and what has been typed so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    lane: String,
    kind: Kind,
    /// The text is a proposal still: what is typed takes its place.
    proposed: bool,
    /// Why the last answer was none.
    error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Pause { text: String },
    Limit { now: u32, text: String },
    Resume,
}

/// What a key has led to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    NotYet(Prompt),
    /// Called off.
    No,
    Change(Change),
}

impl Prompt {
    /// # Errors
    /// In words, when the lane cannot be paused.
    pub fn pause(lane: &LaneSnapshot) -> Result<Self, String> {
        if lane.mode == Mode::Observe {
            return Err(format!(
                "{} only observes: there is nothing to pause",
                lane.lane
            ));
        }
        let text = "30s".to_owned();
        Ok(Self::new(lane, Kind::Pause { text }))
    }

    /// # Errors
    /// In words, when the lane is not paused.
    pub fn resume(lane: &LaneSnapshot) -> Result<Self, String> {
        match lane.paused_until {
            Some(_) => Ok(Self::new(lane, Kind::Resume)),
            None => Err(format!("{} is not paused", lane.lane)),
        }
    }

    /// # Errors
    /// None: any lane may be given a limit.
    pub fn limit(lane: &LaneSnapshot) -> Result<Self, String> {
        let (now, text) = (lane.limit, lane.limit.to_string());
        Ok(Self::new(lane, Kind::Limit { now, text }))
    }

    fn new(lane: &LaneSnapshot, kind: Kind) -> Self {
        Self {
            lane: lane.lane.clone(),
            kind,
            proposed: true,
            error: None,
        }
    }

    /// The question.
    pub fn question(&self) -> String {
        let lane = &self.lane;
        match &self.kind {
            Kind::Pause { .. } => format!("pause {lane} for:"),
            Kind::Limit { now, .. } => format!("max_inflight of {lane} (now {now}):"),
            Kind::Resume => format!("resume {lane}? y/n"),
        }
    }

    /// What has been typed, or is proposed.
    pub fn text(&self) -> Option<&str> {
        match &self.kind {
            Kind::Pause { text } | Kind::Limit { text, .. } => Some(text),
            Kind::Resume => None,
        }
    }

    /// Whether the text is one that the first character typed takes the place of.
    pub fn is_proposed(&self) -> bool {
        self.proposed
    }

    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    pub fn key(mut self, code: KeyCode) -> Answer {
        self.error = None;
        let was_proposed = std::mem::take(&mut self.proposed);
        match (&mut self.kind, code) {
            (_, KeyCode::Esc) => return Answer::No,
            (Kind::Resume, KeyCode::Char('y' | 'Y') | KeyCode::Enter) => {
                return Answer::Change(Change::Resume { lane: self.lane });
            }
            (Kind::Resume, _) => return Answer::No,
            (Kind::Pause { text }, KeyCode::Enter) => match pause::length(text) {
                Ok(length) => {
                    let lane = self.lane;
                    return Answer::Change(Change::Pause { lane, length });
                }
                Err(error) => self.error = Some(error),
            },
            (Kind::Limit { text, .. }, KeyCode::Enter) => match text.parse() {
                Ok(limit) => {
                    let lane = self.lane;
                    return Answer::Change(Change::Limit { lane, limit });
                }
                Err(_) => self.error = Some("a whole number, as in 4".to_owned()),
            },
            (Kind::Pause { text } | Kind::Limit { text, .. }, KeyCode::Backspace) => {
                text.pop();
            }
            (Kind::Pause { text } | Kind::Limit { text, .. }, KeyCode::Char(typed))
                if typed.is_ascii_alphanumeric() =>
            {
                if was_proposed {
                    text.clear();
                }
                if text.len() < LONGEST {
                    text.push(typed);
                }
            }
            // Keeps what is proposed, to be edited.
            _ => {}
        }
        Answer::NotYet(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Diagnosis, samples};

    fn typed(mut prompt: Prompt, text: &str) -> Prompt {
        for key in text.chars() {
            let code = if key == '\n' {
                KeyCode::Enter
            } else {
                KeyCode::Char(key)
            };
            match prompt.key(code) {
                Answer::NotYet(next) => prompt = next,
                answer => panic!("{answer:?} after {key:?}"),
            }
        }
        prompt
    }

    /// E9: what is no answer is told, and can be mended.
    #[test]
    fn a_bad_answer_says_what_would_be_right() {
        let lane = samples::lane("reasoning");
        let prompt = typed(Prompt::pause(&lane).unwrap(), "x\n");
        assert_eq!(prompt.text(), Some("x"));
        assert!(prompt.error().unwrap().contains("1h30m"));
        let prompt = typed(Prompt::limit(&lane).unwrap(), "many\n");
        assert!(prompt.error().unwrap().contains("whole number"));
        assert_eq!(typed(prompt, "1").error(), None);
    }

    #[test]
    fn what_is_typed_takes_the_place_of_what_is_proposed() {
        let prompt = || Prompt::pause(&samples::lane("reasoning")).unwrap();
        assert!(prompt().is_proposed());
        let typed_over = typed(prompt(), "5m");
        assert_eq!(typed_over.text(), Some("5m"));
        assert!(!typed_over.is_proposed());
        for (key, kept) in [
            (KeyCode::Backspace, "30"),
            (KeyCode::Left, "30s"),
            (KeyCode::Up, "30s"),
        ] {
            let Answer::NotYet(edited) = prompt().key(key) else {
                panic!("{key:?} answers");
            };
            assert_eq!(edited.text(), Some(kept));
            let edited = typed(edited, "5");
            assert_eq!(edited.text(), Some(&*format!("{kept}5")));
        }
    }

    #[test]
    fn an_answer_has_an_end() {
        let lane = samples::lane("reasoning");
        let prompt = typed(Prompt::limit(&lane).unwrap(), &"1".repeat(99));
        assert_eq!(prompt.text().unwrap().len(), LONGEST);
    }

    #[test]
    fn an_observing_lane_is_not_paused() {
        let lane = LaneSnapshot {
            mode: Mode::Observe,
            diagnosis: Diagnosis::Observe,
            ..samples::lane("watched")
        };
        assert!(Prompt::pause(&lane).unwrap_err().contains("observes"));
    }
}
