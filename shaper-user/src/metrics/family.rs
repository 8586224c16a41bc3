//! What is registered, in words: the metrics reference is written from it.

use super::labels::Label;

/// A metric with all its series.
#[derive(Clone, Debug)]
pub struct Family {
    pub name: &'static str,
    pub kind: Kind,
    /// One sentence.
    pub help: &'static str,
    pub labels: Vec<LabelSet>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// It only grows, until the controller starts again.
    Counter,
    /// It is as it is now.
    Gauge,
    /// What was observed, counted by upper bounds.
    Histogram { buckets: &'static [f64] },
}

/// A label and what its values are.
#[derive(Clone, Copy, Debug)]
pub struct LabelSet {
    pub name: &'static str,
    pub values: Values,
}

#[derive(Clone, Copy, Debug)]
pub enum Values {
    /// One value for each of what these words name, which the operator decides.
    Named(&'static str),
    /// These and no others.
    Closed(fn() -> Vec<Value>),
}

/// A value of a closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    pub text: &'static str,
    /// A sentence.
    pub meaning: &'static str,
}

impl LabelSet {
    pub(super) const LANE: Self = Self {
        name: "lane",
        values: Values::Named("the name of the lane"),
    };

    /// A label with the values of `L`.
    pub(super) const fn of<L: Label>(name: &'static str) -> Self {
        Self {
            name,
            values: Values::Closed(values_of::<L>),
        }
    }
}

fn values_of<L: Label>() -> Vec<Value> {
    let value = |label: &L| Value {
        text: label.text(),
        meaning: label.meaning(),
    };
    L::ALL.iter().map(value).collect()
}
