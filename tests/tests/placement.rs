//! `shaper assign` and `shaper exec`: what they say of whether anybody governs where they put processes, and what they do
//! whoever listens.

use std::fs::{self, File};
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use shaper_tests::cgroup::Cgroup;
use shaper_tests::clock::poll_until;
use shaper_tests::controller::{Controller, ControllerBuilder};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::process::{Finished, Process};
use shaper_tests::stage::Stage;
use shaper_tests::tools;

const PATIENCE: Duration = Duration::from_secs(10);

fn builder(stage: &Stage) -> Result<ControllerBuilder> {
    let nobody = ([127, 0, 0, 1], 4000).into();
    Controller::builder(stage)?.lane("gateway", LaneFile::over(&[nobody]).limit(5))
}

/// A process that does nothing, to be moved.
fn idle() -> Result<Process> {
    Process::spawn("sleep", Command::new("sleep").arg("60"))
}

fn is_in(process: &Process, cgroup: &Cgroup) -> Result<bool> {
    let path = format!("/proc/{}/cgroup", process.pid());
    let own = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    Ok(own.lines().any(|line| line.ends_with(cgroup.relative())))
}

fn assign(config: &Path, processes: &[Process]) -> Result<Command> {
    let mut command = Command::new(tools::shaper()?);
    let pids = processes.iter().map(|process| process.pid().to_string());
    command
        .args(["assign", "--class", "bulk", "--config"])
        .arg(config)
        .args(pids);
    Ok(command)
}

/// A command that ends with the code 7, in class bulk.
fn exec(config: &Path, instance: &str) -> Result<Finished> {
    let mut command = Command::new(tools::shaper()?);
    command
        .args([
            "exec",
            "--class",
            "bulk",
            "--instance",
            instance,
            "--config",
        ])
        .arg(config)
        .args(["--", "sh", "-c", "cat /proc/self/cgroup; exit 7"]);
    Process::spawn("shaper exec", &mut command)?.finish(PATIENCE)
}

/// Both place the process and say that nobody governs it, with the reason.
fn say_that_nobody_governs(
    stage: &Stage,
    config: &Path,
    instance: &str,
    words: &[&str],
) -> Result<()> {
    let process = [idle()?];
    let mut command = assign(config, &process)?;
    command.args(["--instance", instance]);
    let assigned = Process::spawn("shaper assign", &mut command)?.finish(PATIENCE)?;
    assert_eq!(assigned.exit_code()?, 0, "{}", assigned.stderr);
    assert!(is_in(&process[0], &stage.bulk)?);
    let executed = exec(config, instance)?;
    assert_eq!(executed.exit_code()?, 7, "{}", executed.stderr);
    assert!(
        executed.stdout.contains(stage.bulk.relative()),
        "{}",
        executed.stdout
    );
    let place = format!("nothing governs {}", stage.bulk.path().display());
    for said in [assigned.stderr, executed.stderr] {
        assert!(said.contains(&place), "{said}");
        for word in words {
            assert!(said.contains(word), "{word}: {said}");
        }
        assert!(!said.contains("are governed"), "{said}");
    }
    Ok(())
}

#[test]
fn a_place_that_no_controller_governs_is_told() -> Result<()> {
    let stage = Stage::set()?;
    let files = builder(&stage)?;
    say_that_nobody_governs(
        &stage,
        files.config(),
        "nobody",
        &["no controller", "shaper run"],
    )
}

/// C1: what a dead controller has noted governs nothing, whether its programs are left or not.
#[test]
fn a_place_whose_controller_is_gone_is_told() -> Result<()> {
    let stage = Stage::set()?;
    let controller = builder(&stage)?.start()?;
    controller.signal(Signal::SIGKILL)?;
    let gone = || {
        UnixStream::connect(controller.control())
            .is_err()
            .then_some(())
    };
    poll_until(PATIENCE, gone).context("it does not end")?;
    let lock = format!("/run/shaper/{}.lock", controller.instance());
    assert!(Path::new(&lock).exists());
    say_that_nobody_governs(
        &stage,
        controller.config(),
        controller.instance(),
        &["no controller"],
    )?;
    drop(controller);

    let controller = builder(&stage)?.stays_attached()?.start()?;
    let (config, instance) = (
        controller.config().to_owned(),
        controller.instance().to_owned(),
    );
    let departed = controller.killed()?;
    say_that_nobody_governs(
        &stage,
        &config,
        &instance,
        &["is gone", "on_controller_loss"],
    )?;
    drop(departed);
    Ok(())
}

/// The configuration that a command reads is not the controller's: its class cgroups are others.
#[test]
fn a_place_that_only_another_configuration_has_is_told() -> Result<()> {
    let stage = Stage::set()?;
    let elsewhere = builder(&stage)?;
    let controller = Controller::builder(&stage)?;
    let text = format!(
        "[classes.bulk]\ncgroups = [{:?}]\n",
        stage.outside.relative()
    );
    fs::write(controller.config().join("shaper.toml"), text)?;
    let nobody = ([127, 0, 0, 1], 4000).into();
    let controller = controller
        .lane("gateway", LaneFile::over(&[nobody]).limit(5))?
        .start()?;
    let own = controller.config().display().to_string();
    let words = [controller.instance(), &own, "governs other cgroups"];
    say_that_nobody_governs(&stage, elsewhere.config(), controller.instance(), &words)?;
    controller.stop()?;
    Ok(())
}

#[test]
fn a_governed_place_is_told_and_a_command_says_nothing() -> Result<()> {
    let stage = Stage::set()?;
    let controller = builder(&stage)?.start()?;
    let process = [idle()?];
    let mut command = assign(controller.config(), &process)?;
    command.args(["--instance", controller.instance(), "--account", "acme"]);
    let finished = Process::spawn("shaper assign", &mut command)?.finish(PATIENCE)?;
    assert_eq!(finished.exit_code()?, 0, "{}", finished.stderr);
    assert!(finished.stdout.contains("/acme\n"), "{}", finished.stdout);
    assert!(
        finished.stderr.ends_with("new sockets are governed.\n"),
        "{}",
        finished.stderr
    );
    // One that does not say which controller is meant learns which it is.
    let finished = Process::spawn("shaper assign", &mut assign(controller.config(), &process)?)?
        .finish(PATIENCE)?;
    let by = format!("are governed, by instance {}", controller.instance());
    assert!(finished.stderr.contains(&by), "{}", finished.stderr);
    let executed = exec(controller.config(), controller.instance())?;
    assert_eq!((executed.exit_code()?, &*executed.stderr), (7, ""));
    // What looks at who governs must not take the instance's lock away.
    let second = controller.run_second()?;
    assert_eq!(second.exit_code()?, 1, "{}", second.stderr);
    Ok(())
}

/// Runs it with a standard output, and error if asked for, whose reader is gone.
fn unheard(command: &mut Command, error: bool) -> Result<Output> {
    let (reader, writer) = io::pipe()?;
    drop(reader);
    if error {
        command.stderr(writer.try_clone()?);
    } else {
        command.stderr(Stdio::piped());
    }
    command.stdout(writer).output().context("cannot run shaper")
}

/// A reader that has seen enough takes nothing away from what a command does, nor from its exit code.
#[test]
fn a_command_does_its_work_whoever_reads() -> Result<()> {
    let stage = Stage::set()?;
    let controller = builder(&stage)?.start()?;
    let trace = controller.config().join("trace.jsonl");
    let request = r#"{"arrival_s": 1, "lane": "gateway", "priority": "bulk", "service_s": 1}"#;
    fs::write(&trace, request)?;
    let trace = trace.to_str().context("it is text")?;
    for error in [false, true] {
        let processes = [idle()?, idle()?, idle()?];
        let output = unheard(&mut assign(controller.config(), &processes)?, error)?;
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        for process in &processes {
            assert!(is_in(process, &stage.bulk)?);
        }
        for (command, arguments) in [
            (
                "set",
                &["gateway", "max_inflight=3", "interactive_reserve=9"][..],
            ),
            ("pause", &["gateway", "--for", "10m"]),
            ("resume", &["gateway"]),
            ("status", &[]),
            ("status", &["--json"]),
            ("stats", &["--json"]),
        ] {
            let mut shaper = Command::new(tools::shaper()?);
            let shaper = shaper
                .arg(command)
                .arg("--control")
                .arg(controller.control());
            let output = unheard(shaper.args(arguments), error)?;
            assert_eq!(output.status.code(), Some(0), "{command}: {output:?}");
        }
        assert_eq!(controller.lane("gateway")?.limit, 3);
        for command in [&["check", "--offline"][..], &["simulate", trace]] {
            let mut shaper = Command::new(tools::shaper()?);
            let shaper = shaper
                .args(command)
                .arg("--config")
                .arg(controller.config());
            let output = unheard(shaper, error)?;
            assert_eq!(output.status.code(), Some(0), "{command:?}: {output:?}");
        }
        let mut shaper = Command::new(tools::shaper()?);
        let shaper = shaper.args(["resume", "nowhere", "--control"]);
        let output = unheard(shaper.arg(controller.control()), error)?;
        assert_eq!(output.status.code(), Some(1), "{output:?}");
    }
    let mut shaper = Command::new(tools::shaper()?);
    let shaper = shaper.args(["detach", "--instance", controller.instance()]);
    let output = unheard(shaper, true)?;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    Ok(())
}

/// E9: what cannot be written is an error, told after the work is done.
#[test]
fn a_full_disk_is_told_after_the_work_is_done() -> Result<()> {
    let stage = Stage::set()?;
    let controller = builder(&stage)?.start()?;
    let processes = [idle()?, idle()?];
    let mut set = Command::new(tools::shaper()?);
    set.args(["set", "gateway", "max_inflight=3", "--control"])
        .arg(controller.control());
    let mut check = Command::new(tools::shaper()?);
    check
        .args(["check", "--offline", "--config"])
        .arg(controller.config());
    for mut command in [set, check, assign(controller.config(), &processes)?] {
        let full = File::options().write(true).open("/dev/full")?;
        let output = command.stdout(full).stderr(Stdio::piped()).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("standard output"), "{said}");
    }
    assert_eq!(controller.lane("gateway")?.limit, 3);
    for process in &processes {
        assert!(is_in(process, &stage.bulk)?);
    }
    Ok(())
}
