//! What is wrong with a configuration, and what would be right.

use std::{
    fmt,
    ops::Range,
    path::{Path, PathBuf},
};

/// A place in a file. Both numbers count from 1; the column counts characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

impl Position {
    /// Where what concerns a file as a whole is reported: a missing key has no place of its own.
    pub const START: Self = Self { line: 1, column: 1 };

    /// The position of a byte offset. An offset behind the end is the end, one inside a character that character's.
    pub fn of(source: &str, span: &Range<usize>) -> Self {
        let is_boundary = |at: &usize| source.is_char_boundary(*at);
        let start = (0..=span.start.min(source.len())).rev().find(is_boundary);
        let before = &source[..start.unwrap_or(0)];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Self {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The configuration is not used.
    Error,
    /// The configuration is used, and may not do what its author meant.
    Warning,
}

/// One problem. Prints as two lines without a newline at the end.
///
/// No excerpt of the file and no string value from it is ever part of it: an endpoint may hold a credential (E7).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    pub severity: Severity,
    pub file: PathBuf,
    /// `None`: the file or directory could not be read.
    pub at: Option<Position>,
    /// The dotted path of the key, where a key is at fault.
    pub key: Option<String>,
    /// What is wrong.
    pub what: String,
    /// What would be right.
    pub help: String,
}

impl Diagnostic {
    /// An error about a file or directory as such.
    pub(super) fn of_file(file: &Path, what: impl fmt::Display, help: &str) -> Self {
        Self {
            severity: Severity::Error,
            file: file.to_owned(),
            at: None,
            key: None,
            what: what.to_string(),
            help: help.to_owned(),
        }
    }

    pub fn is_error(&self) -> bool {
        self.severity == Severity::Error
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.severity {
            Severity::Error => "error: ",
            Severity::Warning => "warning: ",
        })?;
        write!(f, "{}", self.file.display())?;
        if let Some(at) = self.at {
            write!(f, ":{at}")?;
        }
        if let Some(key) = &self.key {
            write!(f, ": `{key}`")?;
        }
        write!(f, ": {}\n  help: {}", self.what, self.help)
    }
}

/// Why a configuration was not taken: every problem found, in the order of the files.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    /// At least one error, and the warnings beside it.
    diagnostics: Vec<Diagnostic>,
}

impl ConfigErrors {
    pub(super) fn new(diagnostics: Vec<Diagnostic>) -> Self {
        Self { diagnostics }
    }

    /// One error about a file or directory as such.
    pub(super) fn of_file(file: &Path, what: impl fmt::Display, help: &str) -> Self {
        Self::new(vec![Diagnostic::of_file(file, what, help)])
    }

    pub(super) fn into_diagnostics(self) -> Vec<Diagnostic> {
        self.diagnostics
    }

    pub fn diagnostics(&self) -> &[Diagnostic] {
        &self.diagnostics
    }

    pub fn error_count(&self) -> usize {
        self.diagnostics.iter().filter(|d| d.is_error()).count()
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for diagnostic in &self.diagnostics {
            writeln!(f, "{diagnostic}")?;
        }
        match self.error_count() {
            1 => write!(f, "1 error in the configuration"),
            count => write!(f, "{count} errors in the configuration"),
        }
    }
}

impl std::error::Error for ConfigErrors {}

/// A name from a file as it may be shown. One that is long or looks like a URL may be a misplaced credential (E7).
pub(super) fn quotable(name: &str) -> String {
    let is_plain = name.len() <= 64
        && !name.contains(|c: char| c.is_control() || matches!(c, '@' | '/' | '?'));
    if is_plain {
        name.to_owned()
    } else {
        "…".to_owned()
    }
}

/// Puts the errors and warnings of one file in the order in which a reader meets them.
pub(super) fn sort(diagnostics: &mut [Diagnostic]) {
    diagnostics.sort_by_key(|d| d.at);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_lines_and_characters_from_one() {
        let source = "a\nüü = 1\n";
        let position = |start| Position::of(source, &(start..start));
        assert_eq!(position(0), Position::START);
        assert_eq!(position(2), Position { line: 2, column: 1 });
        assert_eq!(position(7), Position { line: 2, column: 4 });
        assert_eq!(
            position(3),
            Position { line: 2, column: 1 },
            "inside a character"
        );
        assert_eq!(
            position(99),
            Position { line: 3, column: 1 },
            "behind the end"
        );
    }
}
