//! Reads one TOML file against a [`Schema`] and collects what is wrong with it.

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use shaper_common::Class;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    change::Said,
    diagnostic::{Diagnostic, Position, Severity, quotable},
    keys::{ANY_CLASS, Documented, Key, LANE, Presence, SETTINGS, Schema},
    kind::{Help, Kind, with_article},
    suggest::nearest,
};

/// Lines of one file whose syntax errors are reported. One bracket too few makes an error of every line after it.
const MAX_SYNTAX_ERRORS: usize = 3;

/// A value and where it stands.
#[derive(Clone, Copy, Debug)]
pub struct Found<T> {
    pub value: T,
    pub at: Position,
}

/// A file being read.
#[derive(Debug)]
pub struct Reader<'a> {
    file: &'a Path,
    source: &'a str,
    root: DeTable<'a>,
    diagnostics: Vec<Diagnostic>,
}

impl<'a> Reader<'a> {
    /// Parses the file and reports every key that the schema does not know.
    ///
    /// # Errors
    /// Syntax errors: the first of each line, and not many. A file that has any is looked at no further, for what
    /// follows would be guesses.
    pub fn new(
        file: &'a Path,
        source: &'a str,
        schema: &'static Schema,
    ) -> Result<Self, Vec<Diagnostic>> {
        let (root, errors) = DeTable::parse_recoverable(source);
        let mut reader = Self {
            file,
            source,
            root: root.into_inner(),
            diagnostics: Vec::new(),
        };
        let mut lines = Vec::new();
        for error in &errors {
            let at = reader.position(&error.span().unwrap_or(source.len()..source.len()));
            if lines.contains(&at.line) || lines.len() == MAX_SYNTAX_ERRORS {
                continue;
            }
            lines.push(at.line);
            reader.report(
                Severity::Error,
                at,
                None,
                format!("not valid TOML: {}", one_line(error.message())),
                "KEY = VALUE lines and [TABLE] headers; strings and durations in double quotes"
                    .to_owned(),
            );
        }
        if !errors.is_empty() {
            return Err(reader.diagnostics);
        }
        for unknown in unknown_keys(&reader.root, schema) {
            reader.report(
                Severity::Error,
                reader.position(&unknown.span),
                Some(unknown.path),
                unknown.what,
                unknown.help,
            );
        }
        Ok(reader)
    }

    pub fn position(&self, span: &Range<usize>) -> Position {
        Position::of(self.source, span)
    }

    /// The value of a key, if it is there and right. What is wrong with it is reported.
    pub fn find<K: Kind>(&mut self, key: &Key<K>) -> Option<Found<K::Value>> {
        self.find_at(key, key.path)
    }

    /// The same for a key that each class can have.
    pub fn find_for<K: Kind>(&mut self, key: &Key<K>, class: Class) -> Option<Found<K::Value>> {
        self.find_at(key, &key.path_for(class))
    }

    fn find_at<K: Kind>(&mut self, key: &Key<K>, path: &str) -> Option<Found<K::Value>> {
        let value = lookup(&self.root, path)?;
        let at = self.position(&value.span());
        match key.kind.parse(value) {
            Ok(value) => Some(Found { value, at }),
            Err(faults) => {
                for fault in faults {
                    let at = self.position(&fault.span);
                    let help = match fault.help {
                        Help::Expected => key.kind.expected(),
                        Help::First(first) => format!("{first}; {}", key.kind.expected()),
                        Help::Only(help) => help,
                    };
                    self.report(Severity::Error, at, Some(path.to_owned()), fault.what, help);
                }
                None
            }
        }
    }

    /// The value of a key that has a default. A wrong value is reported, and the default stands in for it.
    ///
    /// # Panics
    /// If the key has no default, or one that is not a value of its kind: a fault of the table, which a test checks.
    pub fn value<K: Kind>(&mut self, key: &Key<K>) -> K::Value {
        self.find(key)
            .map_or_else(|| default_of(key), |found| found.value)
    }

    /// Everything that the file says, right or wrong.
    pub fn said(&self) -> Said {
        Said::by(self.file, self.source, &self.root)
    }

    /// Where a table stands.
    pub fn table(&self, path: &str) -> Option<Position> {
        let table = lookup(&self.root, path).filter(|value| value.get_ref().is_table())?;
        Some(self.position(&table.span()))
    }

    /// Whether a key is there, right or wrong.
    pub fn has<K>(&self, key: &Key<K>) -> bool {
        lookup(&self.root, key.path).is_some()
    }

    /// Reports a key that has to be there and is not; one that is there but wrong has been reported.
    pub fn require<K: Kind>(&mut self, key: &Key<K>, at: Position, why: &str) {
        if !self.has(key) {
            self.error(
                at,
                key.path,
                format!("is missing{why}"),
                format!("add `{}`: {}", key.path, key.kind.expected()),
            );
        }
    }

    pub fn error(&mut self, at: Position, path: &str, what: String, help: String) {
        self.report(Severity::Error, at, Some(path.to_owned()), what, help);
    }

    pub fn warn(&mut self, at: Position, path: &str, what: String, help: String) {
        self.report(Severity::Warning, at, Some(path.to_owned()), what, help);
    }

    fn report(
        &mut self,
        severity: Severity,
        at: Position,
        key: Option<String>,
        what: String,
        help: String,
    ) {
        self.diagnostics.push(Diagnostic {
            severity,
            file: PathBuf::from(self.file),
            at: Some(at),
            key,
            what,
            help,
        });
    }

    pub fn into_diagnostics(self) -> Vec<Diagnostic> {
        self.diagnostics
    }
}

/// Parses the default of a key.
pub(super) fn default_of<K: Kind>(key: &Key<K>) -> K::Value {
    let Presence::Default(toml) = key.presence else {
        panic!("`{}` has no default", key.path);
    };
    DeValue::parse(toml)
        .ok()
        .and_then(|value| key.kind.parse(&value).ok())
        .unwrap_or_else(|| panic!("the default of `{}` is not a value of its kind", key.path))
}

fn lookup<'t, 'a>(root: &'t DeTable<'a>, path: &str) -> Option<&'t Spanned<DeValue<'a>>> {
    let mut segments = path.split('.');
    let mut value = root.get(segments.next()?)?;
    for segment in segments {
        value = value.get_ref().as_table()?.get(segment)?;
    }
    Some(value)
}

/// The parser's messages are one line today; a listing needs them to stay so.
fn one_line(message: &str) -> String {
    message.lines().collect::<Vec<_>>().join(", ")
}

/// A key that does not belong where it stands.
struct Unknown {
    span: Range<usize>,
    path: String,
    what: String,
    help: String,
}

fn unknown_keys(root: &DeTable<'_>, schema: &'static Schema) -> Vec<Unknown> {
    let mut unknown = Vec::new();
    visit(root, &[], schema, &mut unknown);
    unknown
}

fn visit(table: &DeTable<'_>, above: &[&str], schema: &'static Schema, unknown: &mut Vec<Unknown>) {
    for (key, value) in table {
        let name: &str = key.get_ref();
        let path: Vec<_> = above.iter().copied().chain([name]).collect();
        let mut report = |what: String, help: String| {
            unknown.push(Unknown {
                span: key.span(),
                path: quotable(&path.join(".")),
                what,
                help,
            });
        };
        if schema.keys.iter().any(|key| is_at(*key, &path)) {
            continue;
        }
        if names_below(&path, schema).is_empty() {
            let (what, help) = explain_unknown(name, above, schema);
            report(what, help);
        } else if let DeValue::Table(inner) = value.get_ref() {
            visit(inner, &path, schema, unknown);
        } else {
            report(
                format!("is {}", with_article(value.get_ref())),
                format!("a table with {}", listed(&names_below(&path, schema))),
            );
        }
    }
}

/// Whether a key is the one at this path.
fn is_at(key: &dyn Documented, path: &[&str]) -> bool {
    key.path().split('.').count() == path.len() && leads_to(key, path)
}

/// Whether a key is at this path or below it.
fn leads_to(key: &dyn Documented, path: &[&str]) -> bool {
    let mut pattern = key.path().split('.');
    path.iter().all(|name| match pattern.next() {
        Some(ANY_CLASS) => Class::ALL.iter().any(|class| class.name() == *name),
        segment => segment == Some(*name),
    })
}

/// The names that may stand directly below a path, in the order of the schema.
fn names_below(path: &[&str], schema: &'static Schema) -> Vec<&'static str> {
    let mut names = Vec::new();
    for key in schema.keys.iter().filter(|key| leads_to(**key, path)) {
        let found: &[&str] = match key.path().split('.').nth(path.len()) {
            Some(ANY_CLASS) => &Class::ALL.map(Class::name),
            Some(name) => &[name],
            None => &[],
        };
        names.extend(
            found
                .iter()
                .filter(|name| !names.contains(*name))
                .copied()
                .collect::<Vec<_>>(),
        );
    }
    names
}

/// What is wrong with a key that is not known where it stands, and what its author may have meant.
fn explain_unknown(name: &str, above: &[&str], schema: &'static Schema) -> (String, String) {
    let siblings = names_below(above, schema);
    let is_class = Class::ALL
        .iter()
        .all(|class| siblings.contains(&class.name()));
    let what = if is_class {
        "is not a class"
    } else {
        "is not a known key"
    };
    let help = if let Some(close) = nearest(name, &siblings) {
        format!("did you mean `{close}`?")
    } else if let Some(path) = home_of(name, schema) {
        match path.rsplit_once('.') {
            Some((table, _)) => format!("it belongs under [{table}]"),
            None => "it belongs at the top of the file, above the first [table]".to_owned(),
        }
    } else if mentions(name, &SETTINGS) {
        "it belongs in shaper.toml".to_owned()
    } else if mentions(name, &LANE) {
        "it belongs in a lane's file, lanes.d/NAME.toml".to_owned()
    } else {
        format!("remove it, or use one of {}", listed(&siblings))
    };
    (what.to_owned(), help)
}

/// The path of the key that has this name.
fn home_of(name: &str, schema: &'static Schema) -> Option<&'static str> {
    let mut paths = schema.keys.iter().map(|key| key.path());
    paths.find(|path| path.rsplit('.').next() == Some(name))
}

/// Whether a key or table of the schema has this name.
fn mentions(name: &str, schema: &'static Schema) -> bool {
    schema
        .keys
        .iter()
        .any(|key| key.path().split('.').any(|segment| segment == name))
}

fn listed(names: &[&str]) -> String {
    names
        .iter()
        .map(|name| format!("`{name}`"))
        .collect::<Vec<_>>()
        .join(", ")
}
