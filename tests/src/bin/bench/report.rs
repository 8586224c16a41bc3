//! Tables of figures, for the terminal and for the page: the same text.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::spread::Spread;

/// What one benchmark found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub tables: Vec<Table>,
    pub goals: Vec<Goal>,
}

/// A promise with a number, and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Goal {
    pub promise: String,
    /// What was promised, in words: `at most 3 µs`.
    pub wanted: String,
    pub measured: Cell,
    pub met: bool,
}

/// Figures in rows and columns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Table {
    pub caption: String,
    /// Over the cells; the first is over the names of the rows.
    pub head: Vec<String>,
    pub rows: Vec<Row>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub name: String,
    pub cells: Vec<Cell>,
}

/// One figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cell {
    Value(f64, Unit),
    Spread(Spread, Unit),
    /// There is no such figure.
    Absent,
}

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    Nanoseconds,
    BytesPerSecond,
    PerSecond,
    Bytes,
    /// Dimensionless, relative to the first row.
    Ratio,
    /// Of a whole, such as one CPU's time.
    Share,
    Count,
}

impl Table {
    pub fn new(caption: impl Into<String>, head: &[&str]) -> Self {
        Self {
            caption: caption.into(),
            head: head.iter().map(|&title| title.to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    pub fn push(&mut self, name: impl Into<String>, cells: impl Into<Vec<Cell>>) {
        self.rows.push(Row {
            name: name.into(),
            cells: cells.into(),
        });
    }
}

impl fmt::Display for Table {
    /// As a Markdown table whose columns line up.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = self.rows.iter().map(|row| {
            let cells = row.cells.iter().map(Cell::to_string);
            std::iter::once(row.name.clone()).chain(cells).collect()
        });
        writeln!(f, "{}\n", self.caption)?;
        write_lines(f, &self.head, &body.collect::<Vec<_>>())
    }
}

/// The goals of all reports as one Markdown table.
pub fn goals_table<'a>(goals: impl IntoIterator<Item = &'a Goal>) -> String {
    struct Goals(Vec<Vec<String>>);
    impl fmt::Display for Goals {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let head = ["promise", "goal", "measured", ""].map(str::to_owned);
            write_lines(f, &head, &self.0)
        }
    }
    let verdict = |met| if met { "met" } else { "**missed**" };
    let rows = goals.into_iter().map(|goal| {
        vec![
            goal.promise.clone(),
            goal.wanted.clone(),
            goal.measured.to_string(),
            verdict(goal.met).to_owned(),
        ]
    });
    Goals(rows.collect()).to_string()
}

fn write_lines(f: &mut fmt::Formatter<'_>, head: &[String], body: &[Vec<String>]) -> fmt::Result {
    let width = |column: usize| {
        let lines = body.iter().map(Vec::as_slice).chain([head]);
        let widths = lines.filter_map(|line| Some(line.get(column)?.chars().count()));
        widths.max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    let mut line = |cells: &[String]| {
        for (cell, &width) in cells.iter().zip(&widths) {
            write!(f, "| {cell:<width$} ")?;
        }
        writeln!(f, "|")
    };
    line(head)?;
    let rule: Vec<String> = widths.iter().map(|&width| "-".repeat(width)).collect();
    line(&rule)?;
    body.iter().try_for_each(|cells| line(cells))
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Value(value, unit) => f.write_str(&unit.show(value)),
            Self::Spread(spread, unit) => {
                let Spread { median, low, high } = spread;
                let [median, low, high] = [median, low, high].map(|value| unit.show(value));
                write!(f, "{median} ({low} – {high})")
            }
            Self::Absent => f.write_str("–"),
        }
    }
}

impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            Self::Nanoseconds => {
                scaled(value, &[(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")])
            }
            Self::BytesPerSecond => scaled(
                value,
                &[(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "B/s")],
            ),
            Self::PerSecond => scaled(value, &[(1e6, "M/s"), (1e3, "k/s"), (1.0, "/s")]),
            Self::Bytes => scaled(value, &[(1e6, "MB"), (1e3, "kB"), (1.0, "B")]),
            Self::Ratio => format!("{value:.3}×"),
            Self::Share => format!("{:.2} %", value * 100.0),
            Self::Count => format!("{value:.0}"),
        }
    }
}

/// With the first unit that the value reaches, and three digits.
fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    let fits = |(scale, _): &&(f64, &str)| value.abs() >= *scale;
    let smallest = units.last().expect("there are units");
    let (scale, name) = units.iter().find(fits).unwrap_or(smallest);
    let value = value / scale;
    let digits = match value.abs() {
        ..10.0 if *scale > 1.0 => 2,
        ..100.0 if *scale > 1.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_shown_with_three_digits_and_the_fitting_unit() {
        for (value, unit, shown) in [
            (135.4, Unit::Nanoseconds, "135 ns"),
            (-2_345.0, Unit::Nanoseconds, "-2.35 µs"),
            (26_345.0, Unit::Nanoseconds, "26.3 µs"),
            (1_234_567_890.0, Unit::Nanoseconds, "1.23 s"),
            (21_500_000.0, Unit::Bytes, "21.5 MB"),
            (38_000.0, Unit::PerSecond, "38.0 k/s"),
            (1.0424, Unit::Ratio, "1.042×"),
            (0.0, Unit::Bytes, "0 B"),
            (0.00123, Unit::Share, "0.12 %"),
        ] {
            assert_eq!(Cell::Value(value, unit).to_string(), shown);
        }
    }

    #[test]
    fn the_columns_of_a_table_line_up() {
        let mut table = Table::new("Widths", &["what", "µs"]);
        table.push("a long name", [Cell::Value(1.0, Unit::Count)]);
        table.push("b", [Cell::Absent]);
        let lines = "Widths\n\n\
                     | what        | µs |\n\
                     | ----------- | -- |\n\
                     | a long name | 1  |\n\
                     | b           | –  |\n";
        assert_eq!(table.to_string(), lines);
    }
}
