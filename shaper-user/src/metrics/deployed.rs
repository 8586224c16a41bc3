//! What `deploy/` names of the metrics, and whether it is there.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::Value;

use super::Metrics;
use crate::snapshot::samples;

/// Labels that Prometheus adds to every series.
const ADDED: [&str; 2] = ["instance", "job"];

/// Each label of a metric with its values.
type Labels = BTreeMap<String, Vec<String>>;

/// The metrics as they are scraped. Histograms have three names.
fn registered() -> BTreeMap<String, Labels> {
    let metrics = Metrics::new("0.1.0");
    metrics.lane("reasoning");
    metrics.gauges.set(&samples::busy());
    let mut found = BTreeMap::new();
    for family in metrics.registry.gather() {
        let mut labels = Labels::new();
        for series in family.get_metric() {
            for label in series.get_label() {
                let values = labels.entry(label.name().to_owned()).or_default();
                values.push(label.value().to_owned());
            }
        }
        if family.get_metric()[0]
            .get_histogram()
            .get_bucket()
            .is_empty()
        {
            found.insert(family.name().to_owned(), labels);
            continue;
        }
        for part in ["sum", "count"] {
            found.insert(format!("{}_{part}", family.name()), labels.clone());
        }
        labels.insert("le".to_owned(), Vec::new());
        found.insert(format!("{}_bucket", family.name()), labels);
    }
    found
}

fn deployed(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy")
        .join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Expressions with the texts that show their labels.
fn expressions() -> Vec<(String, Vec<String>)> {
    let rules = deployed("prometheus/shaper.rules.yml");
    let rules = rules.split("- alert: ").skip(1).map(|rule| {
        let expr = rule
            .lines()
            .find_map(|line| line.trim().strip_prefix("expr: "));
        (
            expr.expect(rule).to_owned(),
            vec![rule.replace("$labels.", "")],
        )
    });
    let dashboard: Value = serde_json::from_str(&deployed("grafana/shaper.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let targets = targets
        .flatten()
        .map(|target| (text(&target["expr"]), vec![text(&target["legendFormat"])]));
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let variables = variables
        .iter()
        .filter_map(|variable| Some((variable["definition"].as_str()?.to_owned(), vec![])));
    rules.chain(targets).chain(variables).collect()
}

/// The parts of `text` between two marks.
fn between<'a>(text: &'a str, open: &'a str, close: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(open)
        .skip(1)
        .map(move |rest| rest.split(close).next().unwrap_or_default())
}

/// A15: every metric of the dashboard and of the alert rules exists, with the labels and the values that they select and
/// show.
#[test]
fn what_dashboard_and_alerts_name_exists() {
    let registered = registered();
    let mut named = 0;
    for (expr, shown) in expressions() {
        let mut known = ADDED.map(str::to_owned).to_vec();
        for (start, _) in expr.match_indices("shaper_") {
            let rest = &expr[start..];
            let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let (name, after) = rest.split_at(end.unwrap_or(rest.len()));
            let labels = registered
                .get(name)
                .unwrap_or_else(|| panic!("there is no {name}: {expr}"));
            named += 1;
            known.extend(labels.keys().cloned());
            let Some(selector) = after.strip_prefix('{') else {
                continue;
            };
            for matcher in selector.split('}').next().unwrap().split(',') {
                let (label, value) = matcher.split_once('=').expect(matcher);
                if ADDED.contains(&label) {
                    continue;
                }
                let values = labels
                    .get(label)
                    .unwrap_or_else(|| panic!("{name} has no label {label}: {expr}"));
                let value = value.trim_matches('"');
                assert!(
                    value.starts_with('~') || values.iter().any(|known| known == value),
                    "{name} never has {label}={value}: {expr}"
                );
            }
        }
        let used = between(&expr, "by (", ")").flat_map(|list| list.split(','));
        let told = shown.iter().flat_map(|text| between(text, "{{", "}}"));
        for label in used.chain(told).map(str::trim) {
            assert!(
                known.iter().any(|known| known == label),
                "nothing has a label {label:?}: {expr}"
            );
        }
    }
    assert!(named > 30, "only {named} were found: is the search wrong?");
}

/// A15: the dashboard shows every metric there is.
#[test]
fn the_dashboard_leaves_no_metric_out() {
    let dashboard = deployed("grafana/shaper.json");
    for name in registered().into_keys() {
        let family = ["_sum", "_count", "_bucket"]
            .iter()
            .find_map(|part| name.strip_suffix(part))
            .unwrap_or(&name);
        assert!(dashboard.contains(family), "{name} is not on the dashboard");
    }
}
