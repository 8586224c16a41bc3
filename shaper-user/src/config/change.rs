//! Changing keys of a lane without its file: `shaper set`.
//!
//! What the file says is kept key by key. A change makes a text of it and reads that, so that values are judged, and
//! mistakes explained, exactly as if they stood in the file.

use std::{
    collections::BTreeMap,
    fmt::{self, Write as _},
    path::{Path, PathBuf},
    str::FromStr,
};

use serde::{Deserialize, Serialize};
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

/// A key of a lane's file and its new value, both as an operator writes them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Dotted, from the top of the file.
    pub key: String,
    /// TOML, where a string needs no quotes; `default` means: as if the key were not there.
    pub value: String,
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.key, self.value)
    }
}

/// Several settings in a line of a log.
pub fn listed(settings: &[Setting]) -> String {
    let settings: Vec<_> = settings.iter().map(Setting::to_string).collect();
    settings.join(", ")
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not of the form KEY=VALUE, as in max_inflight=4")]
pub struct InvalidSetting(String);

impl FromStr for Setting {
    type Err = InvalidSetting;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() && !value.trim().is_empty() => Ok(Self {
                key: key.trim().into(),
                value: value.trim().into(),
            }),
            _ => Err(InvalidSetting(text.into())),
        }
    }
}

/// What a lane's file says, without its comments and its endpoints as written: those may hold a credential (E7).
#[derive(Clone, Debug)]
pub(super) struct Said {
    file: PathBuf,
    /// Each value in force as TOML.
    values: BTreeMap<KeyPath, String>,
    /// The same as the file has it.
    written: BTreeMap<KeyPath, String>,
}

/// Why a lane was not changed: everything that is wrong, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct InvalidChange(Vec<Remark>);

/// What is wrong with a setting, or doubtful: as a [`Diagnostic`] that stands in no file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    key: String,
    what: String,
    help: String,
}

impl fmt::Display for Remark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}\n  help: {}", self.key, self.what, self.help)
    }
}

impl fmt::Display for InvalidChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mistakes: Vec<_> = self.0.iter().map(Remark::to_string).collect();
        f.write_str(&mistakes.join("\n"))
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
            written: values.clone(),
            values,
        }
    }

    /// Puts a setting in the place of what stands at its path and below.
    fn set(&mut self, path: KeyPath, setting: &Setting) -> Result<(), InvalidChange> {
        if self.values.keys().any(|known| is_above(known, &path)) {
            return Err(invalid(
                &setting.key,
                "is below a key that is not a table",
                "the dotted path of a key of the lane's file",
            ));
        }
        self.values
            .retain(|known, _| *known != path && !is_above(&path, known));
        if setting.value != DEFAULT {
            self.values.insert(path, as_toml(&setting.value));
        }
        Ok(())
    }
}

/// The file of a lane that says this.
fn to_file(
    path: &Path,
    endpoints: &[EndpointSpec],
    values: &BTreeMap<KeyPath, String>,
) -> TextFile {
    let endpoints: Vec<_> = endpoints
        .iter()
        .map(|spec| quoted(&spec.to_string()))
        .collect();
    let mut text = format!("{} = [{}]\n", ENDPOINTS.path, endpoints.join(", "));
    for (path, value) in values {
        let path: Vec<_> = path.iter().map(|part| quoted(part)).collect();
        // Writing to a String does not fail.
        let _ = writeln!(text, "{} = {value}", path.join("."));
    }
    TextFile {
        path: path.to_owned(),
        text,
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

    /// What was set and is not as the file has it: each key with its value, or `default` for one that was taken out.
    pub fn overrides(&self) -> BTreeMap<String, String> {
        let Said {
            values, written, ..
        } = &self.said;
        let paths = values.keys().chain(written.keys());
        let changed = paths.filter(|path| values.get(*path) != written.get(*path));
        let shown = changed.map(|path| {
            let value = values.get(path).map(|value| as_set(value));
            (dotted(path), value.unwrap_or_else(|| DEFAULT.to_owned()))
        });
        shown.collect()
    }

    /// The lane with other values for keys of its file, all of them or none, and what is then worth a warning that the file
    /// is not. The order of the settings does not matter: a table comes before its keys.
    ///
    /// # Errors
    /// [`InvalidChange`] for an unknown key, one that is set twice, a wrong value, one that does not go with the others, and
    /// the endpoints.
    pub fn with(&self, settings: &[Setting]) -> Result<(Self, Vec<Remark>), InvalidChange> {
        let mut wanted = BTreeMap::new();
        for setting in settings {
            if wanted.insert(settable(&setting.key)?, setting).is_some() {
                return Err(invalid(&setting.key, "is set twice", "once"));
            }
        }
        let mut said = self.said.clone();
        for (path, setting) in wanted {
            said.set(path, setting)?;
        }
        let (_, known) = self.judge(&said.written);
        let (changed, diagnostics) = self.judge(&said.values);
        let remark = |diagnostic: &Diagnostic| Remark {
            key: diagnostic.key.clone().unwrap_or_else(|| {
                let keys: Vec<_> = settings.iter().map(|set| quotable(&set.key)).collect();
                keys.join("`, `")
            }),
            what: diagnostic.what.clone(),
            help: diagnostic.help.clone(),
        };
        let (errors, warnings): (Vec<_>, Vec<_>) =
            diagnostics.iter().partition(|found| found.is_error());
        match changed {
            Some(mut changed) if errors.is_empty() => {
                changed.said.written = said.written;
                let new = warnings.into_iter().filter(|found| !known.contains(found));
                Ok((changed, new.map(remark).collect()))
            }
            _ => Err(InvalidChange(errors.into_iter().map(remark).collect())),
        }
    }

    /// Reads a file in which the keys have these values. `None`: it would be no TOML, which is among what is wrong.
    fn judge(&self, values: &BTreeMap<KeyPath, String>) -> (Option<Self>, Vec<Diagnostic>) {
        let file = to_file(&self.said.file, &self.endpoints, values);
        let mut diagnostics = Vec::new();
        let lane = lane::parse(&file, &mut diagnostics).map(|parsed| parsed.lane);
        // Places are those of a text that nobody has seen.
        for diagnostic in &mut diagnostics {
            diagnostic.at = None;
        }
        (lane, diagnostics)
    }
}

/// One mistake, about a key as an operator wrote it.
fn invalid(key: &str, what: &str, help: &str) -> InvalidChange {
    InvalidChange(vec![Remark {
        key: quotable(key),
        what: what.to_owned(),
        help: help.to_owned(),
    }])
}

/// The path of a key that may be set.
fn settable(key: &str) -> Result<KeyPath, InvalidChange> {
    let path = key_path(key).ok_or_else(|| {
        invalid(
            key,
            "is not a key",
            "the dotted path of a key of the lane's file, such as max_inflight or class.bulk.max_inflight",
        )
    })?;
    if path[0] == ENDPOINTS.path {
        return Err(invalid(
            key,
            "cannot be set while the controller runs",
            "change the lane's file: it is read again when it changes, and on SIGHUP",
        ));
    }
    Ok(path)
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

/// The key that leads there, as [`key_path`] reads it.
fn dotted(path: &[String]) -> String {
    let is_bare = |part: &str| {
        let mut bytes = part.bytes();
        !part.is_empty() && bytes.all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
    };
    let parts = path.iter().map(|part| match is_bare(part) {
        true => part.clone(),
        false => quoted(part),
    });
    parts.collect::<Vec<_>>().join(".")
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

/// The reverse of [`as_toml`].
fn as_set(toml: &str) -> String {
    match DeValue::parse(toml).map(Spanned::into_inner) {
        Ok(DeValue::String(text)) => text.into_owned(),
        _ => toml.to_owned(),
    }
}

/// A JSON string is a TOML string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_a_key_and_a_value() {
        assert_eq!(
            "max_inflight=4".parse(),
            Ok(Setting {
                key: "max_inflight".into(),
                value: "4".into()
            })
        );
        for text in ["max_inflight", "=4", "max_inflight=", ""] {
            assert!(text.parse::<Setting>().is_err(), "{text:?}");
        }
    }
}
