//! The kinds of value a key can have: how each is read, and how it is described to an operator.

use std::{fmt, net::SocketAddr, ops::Range, path::PathBuf, time::Duration};

use toml::{Spanned, de::DeValue};

use super::{
    diagnostic::quotable,
    endpoint::{EndpointNote, EndpointSpec},
    suggest::nearest,
};
use crate::policy::ConnectHold;

/// A value, or a part of one, that is not as it should be.
#[derive(Debug)]
pub struct Fault {
    /// Bytes of the source.
    pub span: Range<usize>,
    pub what: String,
    pub help: Help,
}

/// What would be right.
#[derive(Debug)]
pub enum Help {
    /// What [`Kind::expected`] says.
    Expected,
    /// This, then what [`Kind::expected`] says.
    First(String),
    /// This alone.
    Only(String),
}

impl Fault {
    fn new(value: &Spanned<DeValue<'_>>, what: impl Into<String>) -> Self {
        Self {
            span: value.span(),
            what: what.into(),
            help: Help::Expected,
        }
    }

    fn wrong_type(value: &Spanned<DeValue<'_>>) -> Self {
        Self::new(value, format!("is {}", with_article(value.get_ref())))
    }

    /// A number where a duration should be.
    fn no_unit(value: &Spanned<DeValue<'_>>, shown: &str, number: &str) -> Self {
        let mut fault = Self::new(value, format!("{shown} has no unit"));
        fault.help = Help::First(format!("say \"{number}s\" for seconds"));
        fault
    }

    fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help = Help::Only(help.into());
        self
    }
}

/// A type of TOML value in a sentence.
pub fn with_article(value: &DeValue<'_>) -> String {
    let name = value.type_str();
    let article = if name.starts_with(['a', 'i']) {
        "an"
    } else {
        "a"
    };
    format!("{article} {name}")
}

/// What an operator writes as a value, in a few words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    /// The type of the value.
    pub kind: &'static str,
    /// What it counts or measures, where that is not said by `kind`.
    pub unit: Option<&'static str>,
    /// The values that it may have, as a phrase.
    pub range: String,
}

/// Reads one kind of value.
pub trait Kind: fmt::Debug + Sync {
    type Value;

    fn form(&self) -> Form;

    /// # Errors
    /// Every fault found in the value, at least one.
    fn parse(&self, value: &Spanned<DeValue<'_>>) -> Result<Self::Value, Vec<Fault>>;

    /// What a right value is, as the end of a sentence.
    fn expected(&self) -> String;
}

/// A whole number.
#[derive(Debug)]
pub struct Count {
    pub min: u32,
    pub max: u32,
    /// What is counted, in the plural.
    pub unit: &'static str,
}

impl Count {
    fn parse_one(&self, value: &Spanned<DeValue<'_>>) -> Result<u32, Fault> {
        let DeValue::Integer(integer) = value.get_ref() else {
            return Err(Fault::wrong_type(value));
        };
        let fault = |what: &str| Fault::new(value, format!("{integer} is {what}"));
        if integer.as_str().starts_with('-') {
            return Err(fault("negative"));
        }
        match u32::from_str_radix(integer.as_str(), integer.radix()) {
            Ok(number) if number < self.min => Err(fault("too small")),
            Ok(number) if number <= self.max => Ok(number),
            _ => Err(fault("too large")),
        }
    }
}

impl Kind for Count {
    type Value = u32;

    fn form(&self) -> Form {
        Form {
            kind: "whole number",
            unit: Some(self.unit),
            range: format!("{} to {}", self.min, self.max),
        }
    }

    fn parse(&self, value: &Spanned<DeValue<'_>>) -> Result<u32, Vec<Fault>> {
        self.parse_one(value).map_err(|fault| vec![fault])
    }

    fn expected(&self) -> String {
        format!("a whole number from {} to {}", self.min, self.max)
    }
}

/// On or off.
#[derive(Debug)]
pub struct Switch;

impl Kind for Switch {
    type Value = bool;

    fn form(&self) -> Form {
        Form {
            kind: "boolean",
            unit: None,
            range: self.expected(),
        }
    }

    fn parse(&self, value: &Spanned<DeValue<'_>>) -> Result<bool, Vec<Fault>> {
        match value.get_ref() {
            DeValue::Boolean(on) => Ok(*on),
            _ => Err(vec![Fault::wrong_type(value)]),
        }
    }

    fn expected(&self) -> String {
        "true or false".to_owned()
    }
}

/// A table of names and counts.
#[derive(Debug)]
pub struct Counts {
    pub each: Count,
}

impl Kind for Counts {
    type Value = Vec<(String, u32)>;

    fn form(&self) -> Form {
        Form {
            kind: "table",
            range: format!("names, each with {}", self.each.expected()),
            ..self.each.form()
        }
    }

    fn parse(&self, value: &Spanned<DeValue<'_>>) -> Result<Self::Value, Vec<Fault>> {
        let DeValue::Table(table) = value.get_ref() else {
            return Err(vec![Fault::wrong_type(value)]);
        };
        collect(table.iter().map(|(name, count)| {
            let name = name.get_ref();
            let count = self.each.parse_one(count).map_err(|fault| Fault {
                what: format!("of `{}`: {}", quotable(name), fault.what),
                ..fault
            })?;
            Ok((name.to_string(), count))
        }))
    }

    fn expected(&self) -> String {
        format!("a table {{ NAME = N }}, each N {}", self.each.expected())
    }
}

/// A share of a whole, from 0 up to but not including 1.
#[derive(Debug)]
pub struct Share;

impl Kind for Share {
    type Value = f64;

    fn form(&self) -> Form {
        Form {
            kind: "number",
            unit: None,
            range: "0 up to, but less than, 1".to_owned(),
        }
    }

    fn parse(&self, value: &Spanned<DeValue<'_>>) -> Result<f64, Vec<Fault>> {
        let text = number_text(value)?;
        match text.parse::<f64>() {
            // Adding zero makes the negative zero a plain one.
            Ok(share) if (0.0..1.0).contains(&share) => Ok(share + 0.0),
            _ => Err(vec![Fault::new(value, format!("{text} is out of range"))]),
        }
    }

    fn expected(&self) -> String {
        "a number from 0 up to, but less than, 1".to_owned()
    }
}

/// A part of a whole: above 0, and at most all of it.
#[derive(Debug)]
pub struct Part;

impl Kind for Part {
    type Value = f64;

    fn form(&self) -> Form {
        Form {
            kind: "number",
            unit: None,
            range: "above 0, and at most 1".to_owned(),
        }
    }

    fn parse(&self, value: &Spanned<DeValue<'_>>) -> Result<f64, Vec<Fault>> {
        let text = number_text(value)?;
        match text.parse::<f64>() {
            Ok(part) if part > 0.0 && part <= 1.0 => Ok(part),
            _ => Err(vec![Fault::new(value, format!("{text} is out of range"))]),
        }
    }

    fn expected(&self) -> String {
        "a number above 0, and at most 1".to_owned()
    }
}

/// A number of either type as it is written.
fn number_text(value: &Spanned<DeValue<'_>>) -> Result<String, Vec<Fault>> {
    match value.get_ref() {
        DeValue::Integer(integer) => Ok(integer.to_string()),
        DeValue::Float(float) => Ok(float.as_str().to_owned()),
        _ => Err(vec![Fault::wrong_type(value)]),
    }
}

/// A duration with its unit.
#[derive(Debug)]
pub struct Time {
    pub min: Duration,
    pub max: Duration,
}

impl Time {
    fn parse_one(&self, value: &Spanned<DeValue<'_>>) -> Result<Duration, Fault> {
        let text = match value.get_ref() {
            DeValue::String(text) => text,
            DeValue::Integer(number) => {
                let number = number.to_string();
                return Err(Fault::no_unit(value, &number, &number));
            }
            _ => return Err(Fault::wrong_type(value)),
        };
        let number = text.trim();
        if !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
            return Err(Fault::no_unit(value, &format!("\"{number}\""), number));
        }
        if number.starts_with('-') {
            return Err(Fault::new(value, "is negative"));
        }
        match humantime::parse_duration(text) {
            Ok(time) if time < self.min => {
                Err(Fault::new(value, format!("{} is too short", human(time))))
            }
            Ok(time) if time > self.max => {
                Err(Fault::new(value, format!("{} is too long", human(time))))
            }
            Ok(time) => Ok(time),
            Err(_) => Err(Fault::new(value, "is not a duration")),
        }
    }
}

impl Kind for Time {
    type Value = Duration;

    fn form(&self) -> Form {
        Form {
            kind: "duration",
            unit: Some("`ms`, `s`, `m`, `h` or `d`, written with the number, as in `\"90s\"`"),
            range: format!("`\"{}\"` to `\"{}\"`", human(self.min), human(self.max)),
        }
    }

    fn parse(&self, value: &Spanned<DeValue<'_>>) -> Result<Duration, Vec<Fault>> {
        self.parse_one(value).map_err(|fault| vec![fault])
    }

    fn expected(&self) -> String {
        format!(
            "a duration with its unit (ms, s, m, h) from \"{}\" to \"{}\"",
            human(self.min),
            human(self.max)
        )
    }
}

/// A duration as an operator writes it.
pub fn human(time: Duration) -> humantime::FormattedDuration {
    humantime::format_duration(time)
}

/// A duration, or the word for "without end".
#[derive(Debug)]
pub struct Hold {
    pub time: Time,
}

const ALWAYS: &str = "always";

impl Kind for Hold {
    type Value = ConnectHold;

    fn form(&self) -> Form {
        let form = self.time.form();
        Form {
            range: format!("{}, or `\"{ALWAYS}\"`", form.range),
            ..form
        }
    }

    fn parse(&self, value: &Spanned<DeValue<'_>>) -> Result<ConnectHold, Vec<Fault>> {
        if value.get_ref().as_str() == Some(ALWAYS) {
            return Ok(ConnectHold::Always);
        }
        self.time.parse(value).map(ConnectHold::For)
    }

    fn expected(&self) -> String {
        format!("{}, or \"{ALWAYS}\"", self.time.expected())
    }
}

/// One of a few words.
#[derive(Debug)]
pub struct Choice<T: 'static> {
    pub words: &'static [(&'static str, T)],
}

impl<T: Copy + fmt::Debug + Sync> Kind for Choice<T> {
    type Value = T;

    fn form(&self) -> Form {
        let words: Vec<_> = self
            .words
            .iter()
            .map(|(word, _)| format!("`\"{word}\"`"))
            .collect();
        Form {
            kind: "string",
            unit: None,
            range: words.join(" or "),
        }
    }

    fn parse(&self, value: &Spanned<DeValue<'_>>) -> Result<T, Vec<Fault>> {
        let DeValue::String(text) = value.get_ref() else {
            return Err(vec![Fault::wrong_type(value)]);
        };
        match self.words.iter().find(|(word, _)| word == text) {
            Some(&(_, choice)) => Ok(choice),
            None => {
                let words: Vec<_> = self.words.iter().map(|(word, _)| *word).collect();
                let fault = Fault::new(value, "is not one of its words");
                Err(vec![match nearest(text, &words) {
                    Some(close) => fault.with_help(format!(
                        "did you mean \"{close}\"? One of {}",
                        self.expected()
                    )),
                    None => fault,
                }])
            }
        }
    }

    fn expected(&self) -> String {
        let words: Vec<_> = self
            .words
            .iter()
            .map(|(word, _)| format!("\"{word}\""))
            .collect();
        words.join(" or ")
    }
}

/// An address and port to listen on.
#[derive(Debug)]
pub struct Listen;

impl Kind for Listen {
    type Value = SocketAddr;

    fn form(&self) -> Form {
        Form {
            kind: "string",
            unit: None,
            range: self.expected(),
        }
    }

    fn parse(&self, value: &Spanned<DeValue<'_>>) -> Result<SocketAddr, Vec<Fault>> {
        let DeValue::String(text) = value.get_ref() else {
            return Err(vec![Fault::wrong_type(value)]);
        };
        text.parse()
            .map_err(|_| vec![Fault::new(value, "is not an address and port")])
    }

    fn expected(&self) -> String {
        "ADDRESS:PORT, such as \"127.0.0.1:9797\" or \"[::1]:9797\"".to_owned()
    }
}

/// A file, wherever the controller is started from.
#[derive(Debug)]
pub struct FilePath;

impl Kind for FilePath {
    type Value = PathBuf;

    fn form(&self) -> Form {
        Form {
            kind: "string",
            unit: None,
            range: self.expected(),
        }
    }

    fn parse(&self, value: &Spanned<DeValue<'_>>) -> Result<PathBuf, Vec<Fault>> {
        let DeValue::String(text) = value.get_ref() else {
            return Err(vec![Fault::wrong_type(value)]);
        };
        let path = PathBuf::from(text.as_ref());
        if !path.is_absolute() {
            return Err(vec![Fault::new(value, "does not begin with a slash")]);
        }
        Ok(path)
    }

    fn expected(&self) -> String {
        "the absolute path of a file, such as \"/etc/shaper/token\"".to_owned()
    }
}

/// A part of a list, and where it stands.
#[derive(Clone, Debug)]
pub struct Item<T> {
    pub value: T,
    /// Bytes of the source.
    pub span: Range<usize>,
}

/// Paths of cgroups below the cgroup2 mount.
#[derive(Debug)]
pub struct Cgroups;

impl Cgroups {
    fn parse_one(text: &str) -> Result<String, (&'static str, &'static str)> {
        let path = text.strip_suffix('/').unwrap_or(text);
        if path.is_empty() {
            return Err(("is empty", "the path of a cgroup, such as \"shaper/bulk\""));
        }
        if path.starts_with('/') {
            return Err((
                "is absolute",
                "a path relative to the cgroup2 mount, such as \"shaper/bulk\"",
            ));
        }
        if path.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err((
                "has an empty part, `.` or `..`",
                "a plain path below the cgroup2 mount",
            ));
        }
        if path.contains(char::is_control) {
            return Err(("has a control character", "a path that a cgroup can have"));
        }
        if glob::Pattern::new(path).is_err() {
            return Err((
                "is not a valid glob",
                "`*`, `?`, `[…]` within one part, or `**` as a whole part; write `[*]` for a plain star",
            ));
        }
        Ok(path.to_owned())
    }
}

impl Kind for Cgroups {
    type Value = Vec<Item<String>>;

    fn form(&self) -> Form {
        Form {
            kind: "list of strings",
            unit: None,
            range: "cgroup paths relative to the cgroup2 mount, globs allowed".to_owned(),
        }
    }

    fn parse(&self, value: &Spanned<DeValue<'_>>) -> Result<Self::Value, Vec<Fault>> {
        parse_list(value, |text, item| {
            Self::parse_one(text).map_err(|(what, help)| Fault::new(item, what).with_help(help))
        })
    }

    fn expected(&self) -> String {
        "a list of cgroup paths relative to the cgroup2 mount, globs allowed".to_owned()
    }
}

/// Endpoints of gateways.
#[derive(Debug)]
pub struct Endpoints;

impl Kind for Endpoints {
    type Value = Vec<Item<(EndpointSpec, Vec<EndpointNote>)>>;

    fn form(&self) -> Form {
        Form {
            kind: "list of strings",
            unit: None,
            range: "at least one of HOST:PORT, ADDRESS:PORT, ADDRESS/PREFIX:PORT, [IPV6]:PORT, [IPV6/PREFIX]:PORT or an \
                    http(s) URL"
                .to_owned(),
        }
    }

    fn parse(&self, value: &Spanned<DeValue<'_>>) -> Result<Self::Value, Vec<Fault>> {
        let endpoints = parse_list(value, |text, item| {
            EndpointSpec::parse(text)
                .map_err(|error| Fault::new(item, error.to_string()).with_help(error.remedy()))
        })?;
        if endpoints.is_empty() {
            return Err(vec![
                Fault::new(value, "is empty")
                    .with_help("at least one endpoint, such as \"10.1.2.3:8000\""),
            ]);
        }
        Ok(endpoints)
    }

    fn expected(&self) -> String {
        "a list of HOST:PORT, ADDRESS:PORT, ADDRESS/PREFIX:PORT, [IPV6]:PORT, [IPV6/PREFIX]:PORT or http(s) URLs"
            .to_owned()
    }
}

/// Reads each string of a list.
fn parse_list<T>(
    value: &Spanned<DeValue<'_>>,
    parse: impl Fn(&str, &Spanned<DeValue<'_>>) -> Result<T, Fault>,
) -> Result<Vec<Item<T>>, Vec<Fault>> {
    let DeValue::Array(list) = value.get_ref() else {
        let fault = Fault::wrong_type(value);
        return Err(vec![match value.get_ref() {
            DeValue::String(_) => fault.with_help("put it in brackets: [\"…\"]"),
            _ => fault,
        }]);
    };
    collect(list.iter().map(|item| match item.get_ref() {
        DeValue::String(text) => Ok(Item {
            value: parse(text, item)?,
            span: item.span(),
        }),
        other => Err(
            Fault::new(item, format!("holds {}", with_article(other))).with_help("strings only"),
        ),
    }))
}

/// All values, or all faults.
fn collect<T>(results: impl Iterator<Item = Result<T, Fault>>) -> Result<Vec<T>, Vec<Fault>> {
    let mut values = Vec::new();
    let mut faults = Vec::new();
    for result in results {
        match result {
            Ok(value) => values.push(value),
            Err(fault) => faults.push(fault),
        }
    }
    if faults.is_empty() {
        Ok(values)
    } else {
        Err(faults)
    }
}
