//! `shaper doctor` finds what the host allows by doing it, and leaves nothing behind.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use serde::Deserialize;
use shaper_tests::cgroup::cgroup2_mount;
use shaper_tests::client::{CurlOutcome, curl};
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway};
use shaper_tests::kernel_state::LoadedPrograms;
use shaper_tests::lane_file::LaneFile;
use shaper_tests::process::{Finished, Process};
use shaper_tests::stage::Stage;
use shaper_tests::tools;

/// Two holds outlast TCP's own retry after a second; the rest is a matter of milliseconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// `shaper doctor --json`.
#[derive(Debug, Deserialize)]
struct Report {
    verdict: String,
    probes: Vec<Finding>,
}

#[derive(Debug, Deserialize)]
struct Finding {
    probe: String,
    group: String,
    verdict: String,
    remedy: Option<String>,
}

impl Report {
    fn of(finished: &Finished) -> Result<Self> {
        serde_json::from_str(&finished.stdout)
            .with_context(|| format!("no report: {}{}", finished.stdout, finished.stderr))
    }

    /// The names of the probes that ended like this.
    fn with(&self, verdict: &str) -> Vec<&str> {
        self.probes
            .iter()
            .filter(|finding| finding.verdict == verdict)
            .map(|finding| finding.probe.as_str())
            .collect()
    }
}

fn doctor() -> Result<Command> {
    let mut command = Command::new(tools::shaper()?);
    command.args(["doctor", "--json"]);
    Ok(command)
}

fn examine(command: &mut Command) -> Result<Finished> {
    Process::spawn("the doctor", command)?.finish(PATIENCE)
}

/// The cgroups that examinations have made and not removed.
fn scratch_cgroups() -> Result<Vec<String>> {
    let mut left = Vec::new();
    for entry in fs::read_dir(cgroup2_mount()?).context("cannot list the cgroups")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.starts_with("shaper-doctor-") {
            left.push(name);
        }
    }
    Ok(left)
}

fn ensure_nothing_left(before: &LoadedPrograms) -> Result<()> {
    assert_eq!(scratch_cgroups()?, [""; 0], "cgroups left behind");
    before.ensure_nothing_more()
}

#[test]
fn a_host_that_can_run_the_scenarios_is_found_able_and_left_as_it_was() -> Result<()> {
    let _stage = Stage::set()?;
    let before = LoadedPrograms::now()?;
    let finished = examine(&mut doctor()?)?;
    let report = Report::of(&finished)?;
    assert_eq!(finished.exit_code()?, 0, "{report:#?}");
    assert_eq!(report.with("missing"), [""; 0], "{report:#?}");
    for group in ["programs", "deeds"] {
        let mut findings = report
            .probes
            .iter()
            .filter(|finding| finding.group == group)
            .peekable();
        assert!(findings.peek().is_some(), "nothing tried of {group}");
        for finding in findings {
            assert_eq!(finding.verdict, "ok", "{finding:?}");
        }
    }
    ensure_nothing_left(&before)
}

#[test]
fn a_user_without_privileges_is_told_which_are_missing_and_what_they_would_show() -> Result<()> {
    const NOBODY: u32 = 65534;
    let _stage = Stage::set()?;
    // A copy, because the build directory may lie where nobody may go.
    let directory = tempfile::tempdir()?;
    fs::set_permissions(directory.path(), Permissions::from_mode(0o755))?;
    let binary = directory.path().join("shaper");
    fs::copy(tools::shaper()?, &binary)?;
    fs::set_permissions(&binary, Permissions::from_mode(0o755))?;

    let mut command = Command::new(&binary);
    command
        .args(["doctor", "--json"])
        .uid(NOBODY)
        .gid(NOBODY)
        .current_dir("/");
    let finished = examine(&mut command)?;
    let report = Report::of(&finished)?;
    assert_eq!(finished.exit_code()?, 1, "{report:#?}");
    assert_eq!(report.verdict, "missing");
    let missing = report.with("missing");
    for capability in ["CAP_BPF", "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_SYS_ADMIN"] {
        assert!(missing.contains(&capability), "{report:#?}");
    }
    assert!(report.with("ok").contains(&"kernel"), "{report:#?}");
    for untried in ["attach", "hold_ipv4", "destroy"] {
        assert!(report.with("untried").contains(&untried), "{report:#?}");
    }
    for finding in &report.probes {
        let needs_remedy = ["missing", "degraded"].contains(&finding.verdict.as_str());
        assert_eq!(finding.remedy.is_some(), needs_remedy, "{finding:?}");
    }
    Ok(())
}

#[test]
fn an_interrupted_examination_takes_everything_away_before_it_ends() -> Result<()> {
    let _stage = Stage::set()?;
    let before = LoadedPrograms::now()?;
    let doctor = Process::spawn("the doctor", &mut doctor()?)?;
    let there = shaper_tests::clock::poll_until(PATIENCE, || {
        scratch_cgroups().ok().filter(|made| !made.is_empty())
    });
    assert!(there.is_some(), "it makes a cgroup");
    // Not SIGINT, which what a shell runs in the background ignores.
    doctor.signal(Signal::SIGTERM)?;
    let finished = doctor.finish(PATIENCE)?;
    assert!(finished.exit_code().is_err(), "it ended by the signal");
    ensure_nothing_left(&before)
}

#[test]
fn a_running_controller_does_not_notice_the_examination() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::builder()
        .listen_v4()?
        .answer(Answer::at_once())
        .start()?;
    let controller = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(gateway.addresses()).limit(1))?
        .start()?;
    let before = LoadedPrograms::now()?;
    let finished = examine(&mut doctor()?)?;
    assert_eq!(finished.exit_code()?, 0, "{:#?}", Report::of(&finished)?);
    ensure_nothing_left(&before)?;

    let served = curl(&gateway.url(), "after")
        .spawn_in(&stage.bulk)?
        .finish(PATIENCE)?;
    assert_eq!(served.outcome, CurlOutcome::answered());
    let metrics = controller.metrics()?;
    assert_eq!(
        metrics.sum("shaper_requests_total", &[]),
        1.0,
        "only the one after"
    );
    controller.stop().map(drop)
}
