//! What `deploy/` has for Prometheus and Grafana, checked with Prometheus's own tool. Whether the metrics exist is
//! checked beside them, in `shaper-user/src/metrics/deployed.rs`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use shaper_tests::process::Process;
use shaper_tests::tools;

const PATIENCE: Duration = Duration::from_secs(60);

fn deployed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy")
        .join(name)
}

fn promtool(arguments: &[&str], file: &Path) -> Result<()> {
    let mut promtool = Command::new(tools::promtool()?);
    let finished =
        Process::spawn("promtool", promtool.args(arguments).arg(file))?.finish(PATIENCE)?;
    ensure!(
        finished.exit_code()? == 0,
        "promtool dislikes {}:\n{}{}",
        file.display(),
        finished.stdout,
        finished.stderr
    );
    Ok(())
}

fn dashboard() -> Result<Value> {
    let path = deployed("grafana/shaper.json");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).context("the dashboard is no JSON")
}

fn array<'a>(value: &'a Value, what: &str) -> Result<&'a Vec<Value>> {
    value.as_array().with_context(|| format!("no {what}"))
}

#[test]
fn the_alert_rules_are_rules() -> Result<()> {
    promtool(
        &["check", "rules"],
        &deployed("prometheus/shaper.rules.yml"),
    )
}

/// A15, A18: each alert comes when it should, says what it should, and is silent otherwise.
#[test]
fn the_alerts_come_when_they_should() -> Result<()> {
    promtool(&["test", "rules"], &deployed("prometheus/shaper.test.yml"))
}

/// Each expression of the dashboard, as a rule, with Grafana's variables filled in.
#[test]
fn the_dashboards_expressions_are_promql() -> Result<()> {
    let dashboard = dashboard()?;
    let mut rules = "groups:\n  - name: dashboard\n    rules:\n".to_owned();
    for panel in array(&dashboard["panels"], "panels")? {
        let Some(targets) = panel["targets"].as_array() else {
            continue;
        };
        for target in targets {
            let expr = target["expr"].as_str().context("a target has an expr")?;
            let expr = expr.replace("$__rate_interval", "1m");
            let number = rules.lines().count();
            rules += &format!("      - {{record: 'panel:{number}', expr: '{expr}'}}\n");
        }
    }
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("dashboard.yml");
    fs::write(&file, rules)?;
    promtool(&["check", "rules"], &file)
}

/// What Grafana needs to show it: a data source that can be chosen, panels with numbers of their own, none over another.
#[test]
fn the_dashboard_is_one_that_grafana_can_show() -> Result<()> {
    let dashboard = dashboard()?;
    for key in [
        "uid",
        "title",
        "schemaVersion",
        "panels",
        "templating",
        "time",
    ] {
        assert!(!dashboard[key].is_null(), "no {key}");
    }
    let mut names = BTreeSet::new();
    for variable in array(&dashboard["templating"]["list"], "variables")? {
        names.insert(variable["name"].as_str().context("a variable has a name")?);
    }
    assert_eq!(names, BTreeSet::from(["datasource", "instance", "lane"]));
    let mut ids = BTreeSet::new();
    let mut cells = BTreeSet::new();
    for panel in array(&dashboard["panels"], "panels")? {
        let title = panel["title"].as_str().context("a panel has a title")?;
        assert!(ids.insert(panel["id"].as_u64()), "{title} has another's id");
        let place = |side: &str| {
            panel["gridPos"][side]
                .as_u64()
                .with_context(|| format!("{title} has no place"))
        };
        let (x, y) = (place("x")?, place("y")?);
        assert!(x + place("w")? <= 24, "{title} is outside the grid");
        for column in x..x + place("w")? {
            for line in y..y + place("h")? {
                assert!(cells.insert((column, line)), "{title} lies over another");
            }
        }
        if panel["type"] != "row" {
            for target in array(&panel["targets"], "targets")? {
                assert_eq!(target["datasource"]["uid"], "${datasource}", "{title}");
            }
        }
    }
    Ok(())
}
