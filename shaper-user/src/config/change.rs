//! Changing one key of a lane without its file: `shaper set`.
//!
//! What the file says is kept key by key. A change makes a text of it and reads that, so that a value is judged, and a
//! mistake explained, exactly as if it stood in the file.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    path::{Path, PathBuf},
};

use shaper_common::Class;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    LaneConfig,
    diagnostic::{Diagnostic, quotable},
    endpoint::EndpointSpec,
    files::TextFile,
    keys::lane::{CLASS_QUEUE_TIMEOUT, ENDPOINTS, QUEUE_TIMEOUT},
    lane,
};

/// The value that takes a key out, so that its default holds again.
const DEFAULT: &str = "default";

/// A key from the top of the file, part by part.
type KeyPath = Vec<String>;

/// What a lane's file says, without its comments and its endpoints as written: those may hold a credential (E7).
#[derive(Clone, Debug)]
pub(super) struct Said {
    file: PathBuf,
    /// Each value as TOML.
    values: BTreeMap<KeyPath, String>,
}

/// Why a lane was not changed: what is wrong, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct InvalidChange {
    key: String,
    what: String,
    help: String,
}

impl fmt::Display for InvalidChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}\n  help: {}", self.key, self.what, self.help)
    }
}

impl Said {
    pub(super) fn by(file: &Path, source: &str, root: &DeTable<'_>) -> Self {
        let mut values = BTreeMap::new();
        for (path, value) in leaves(root) {
            if path != [ENDPOINTS.path] {
                let text = source.get(value.span()).unwrap_or_default();
                values.insert(path, text.to_owned());
            }
        }
        Self {
            file: file.to_owned(),
            values,
        }
    }

    /// A file that says the same.
    fn to_file(&self, endpoints: &[EndpointSpec]) -> TextFile {
        let endpoints: Vec<_> = endpoints
            .iter()
            .map(|spec| quoted(&spec.to_string()))
            .collect();
        let mut text = format!("{} = [{}]\n", ENDPOINTS.path, endpoints.join(", "));
        for (path, value) in &self.values {
            let path: Vec<_> = path.iter().map(|part| quoted(part)).collect();
            // Writing to a String does not fail.
            let _ = writeln!(text, "{} = {value}", path.join("."));
        }
        TextFile {
            path: self.file.clone(),
            text,
        }
    }
}

impl LaneConfig {
    /// Where it is configured.
    pub fn file(&self) -> &Path {
        &self.said.file
    }

    /// The key that bounds the waits of a class: its own, or that of all classes.
    pub fn queue_timeout_key(&self, class: Class) -> String {
        let own = CLASS_QUEUE_TIMEOUT.path_for(class);
        match key_path(&own) {
            Some(path) if self.said.values.contains_key(&path) => own,
            _ => QUEUE_TIMEOUT.path.to_owned(),
        }
    }

    /// The lane with another value for a key of its file, and what is then worth a warning. `key` is dotted, from the
    /// top of the file; `value` is TOML, where a string needs no quotes; `default` means: as if the key were not there.
    ///
    /// # Errors
    /// [`InvalidChange`] for an unknown key, a wrong value, one that does not go with the others, and the endpoints.
    pub fn with(&self, key: &str, value: &str) -> Result<(Self, Vec<Diagnostic>), InvalidChange> {
        let invalid = |what: &str, help: &str| InvalidChange {
            key: quotable(key),
            what: what.to_owned(),
            help: help.to_owned(),
        };
        let path = key_path(key).ok_or_else(|| {
            invalid(
                "is not a key",
                "the dotted path of a key of the lane's file, such as max_inflight or class.bulk.max_inflight",
            )
        })?;
        if path[0] == ENDPOINTS.path {
            return Err(invalid(
                "cannot be set while the controller runs",
                "change the lane's file: it is read again when it changes, and on SIGHUP",
            ));
        }
        let mut said = self.said.clone();
        if said.values.keys().any(|known| is_above(known, &path)) {
            return Err(invalid(
                "is below a key that is not a table",
                "the dotted path of a key of the lane's file",
            ));
        }
        said.values
            .retain(|known, _| *known != path && !is_above(&path, known));
        if value != DEFAULT {
            said.values.insert(path, as_toml(value));
        }

        let file = said.to_file(&self.endpoints);
        let mut diagnostics = Vec::new();
        let changed = lane::parse(&file, &mut diagnostics).map(|parsed| parsed.lane);
        // Places are those of a text that nobody has seen.
        for diagnostic in &mut diagnostics {
            diagnostic.at = None;
        }
        match (diagnostics.iter().find(|d| d.is_error()), changed) {
            (None, Some(changed)) => Ok((changed, diagnostics)),
            (Some(error), _) => Err(InvalidChange {
                key: error.key.clone().unwrap_or_else(|| quotable(key)),
                what: error.what.clone(),
                help: error.help.clone(),
            }),
            (None, None) => Err(invalid("is not a value", "a number, a duration or a word")),
        }
    }
}

/// Every value that is not a table, with its path.
fn leaves<'t, 'a>(table: &'t DeTable<'a>) -> Vec<(KeyPath, &'t Spanned<DeValue<'a>>)> {
    let mut found = Vec::new();
    for (key, value) in table {
        let name = key.get_ref().to_string();
        match value.get_ref() {
            DeValue::Table(inner) => {
                found.extend(leaves(inner).into_iter().map(|(below, value)| {
                    let path = [name.clone()].into_iter().chain(below).collect();
                    (path, value)
                }))
            }
            _ => found.push((vec![name], value)),
        }
    }
    found
}

/// Reads a dotted key, whose parts may be quoted.
fn key_path(key: &str) -> Option<KeyPath> {
    if key.contains(['=', '\n', '#']) {
        return None;
    }
    let text = format!("{key} = 0");
    let table = DeTable::parse(&text).ok()?;
    leaves(table.get_ref()).pop().map(|(path, _)| path)
}

/// Whether `path` leads to `above` first.
fn is_above(above: &[String], path: &[String]) -> bool {
    path.len() > above.len() && path.starts_with(above)
}

/// `4`, `0.1` and `"4s"` are values; `30s` and `always` are strings that nobody wants to quote twice in a shell.
fn as_toml(value: &str) -> String {
    if DeValue::parse(value).is_ok() {
        value.to_owned()
    } else {
        quoted(value)
    }
}

/// A JSON string is a TOML string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
