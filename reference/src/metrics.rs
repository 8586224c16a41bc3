//! Every metric.

use std::fmt::Write as _;

use shaper_user::metrics::{Family, Kind, Metrics, Values};

use crate::head;

const INTRODUCTION: &str = "\
What `GET /metrics` serves, in Prometheus's text format. Labels are closed sets: never a process, an address or anything that a client could
make up. A series exists, at zero, as soon as its lane does, and goes when a reload removes the lane. How to use them is in
[Monitoring](../monitoring.md).

";

pub fn page() -> String {
    let metrics = Metrics::new(env!("CARGO_PKG_VERSION"));
    let mut text = head(
        "Metrics reference",
        "what the controller registers, `shaper-user/src/metrics.rs`",
    );
    text += INTRODUCTION;
    text += "| metric | type | labels |\n| --- | --- | --- |\n";
    for family in metrics.families() {
        let labels: Vec<_> = family
            .labels
            .iter()
            .map(|label| format!("`{}`", label.name))
            .collect();
        let name = family.name;
        let kind = kind(family);
        // Writing to a String does not fail.
        let _ = writeln!(
            text,
            "| [`{name}`](#{name}) | {kind} | {} |",
            labels.join(", ")
        );
    }
    for family in metrics.families() {
        describe(&mut text, family);
    }
    text
}

fn kind(family: &Family) -> &'static str {
    match family.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
        Kind::Histogram { .. } => "histogram",
    }
}

fn describe(text: &mut String, family: &Family) {
    // Writing to a String does not fail.
    let _ = write!(
        text,
        "\n### `{}`\n\n{}\n\n- Type: {}\n",
        family.name,
        family.help,
        kind(family)
    );
    if let Kind::Histogram { buckets } = family.kind {
        let bounds: Vec<_> = buckets.iter().map(f64::to_string).collect();
        let _ = writeln!(text, "- Buckets, in seconds: {}", bounds.join(", "));
    }
    for label in &family.labels {
        match label.values {
            Values::Named(what) => {
                let _ = writeln!(text, "- Label `{}`: {what}", label.name);
            }
            Values::Closed(values) => {
                let _ = writeln!(text, "- Label `{}`, one of", label.name);
                for value in values() {
                    let _ = writeln!(text, "  - `{}`: {}", value.text, value.meaning);
                }
            }
        }
    }
}
