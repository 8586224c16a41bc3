//! The controller gives up what only its start needs, and does its work with what is left.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::unistd::Pid;
use shaper_tests::cgroup::cgroup2_mount;
use shaper_tests::client::{CurlOutcome, curl};
use shaper_tests::clock::poll_until;
use shaper_tests::controller::Controller;
use shaper_tests::gateway::{Answer, Gateway, Latch};
use shaper_tests::lane_file::LaneFile;
use shaper_tests::netns::VethPair;
use shaper_tests::stage::Stage;

const PATIENCE: Duration = Duration::from_secs(30);

/// CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_PTRACE, CAP_SYS_ADMIN, CAP_BPF by their numbers in linux/capability.h.
const NEEDED: u64 = 1 << 12 | 1 << 13 | 1 << 19 | 1 << 21 | 1 << 39;
/// CAP_DAC_READ_SEARCH.
const READ_ANYTHING: u64 = 1 << 2;
/// CAP_DAC_OVERRIDE.
const WRITE_ANYTHING: u64 = 1 << 1;

const NOBODY: u32 = 65534;

/// What a thread may, as `/proc/PID/task/TID/status` shows it.
#[derive(Debug)]
struct Privileges {
    permitted: u64,
    effective: u64,
    bounding: u64,
    inheritable: u64,
    ambient: u64,
    no_new: bool,
    filtered: bool,
}

impl Privileges {
    /// Of the threads that work. The one that gives signs of life until they do has given everything up before, and ends.
    fn of_every_thread(process: Pid) -> Result<Vec<Self>> {
        // An error: one ended meanwhile.
        let settled = poll_until(PATIENCE, || Self::of_the_threads(process).ok().flatten());
        settled.context("the threads of the start do not end")
    }

    /// `None` while one of the start is left.
    fn of_the_threads(process: Pid) -> Result<Option<Vec<Self>>> {
        let mut all = Vec::new();
        for thread in fs::read_dir(format!("/proc/{process}/task"))? {
            let path = thread?.path().join("status");
            let status = fs::read_to_string(&path)?;
            if status.starts_with("Name:\theart\n") {
                return Ok(None);
            }
            all.push(Self::read(&status).with_context(|| format!("{}: {status}", path.display()))?);
        }
        Ok(Some(all))
    }

    fn read(status: &str) -> Option<Self> {
        let value = |key: &str| {
            let mut lines = status.lines();
            Some(lines.find_map(|line| line.strip_prefix(key))?.trim())
        };
        let set = |key| u64::from_str_radix(value(key)?, 16).ok();
        Some(Self {
            permitted: set("CapPrm:")?,
            effective: set("CapEff:")?,
            bounding: set("CapBnd:")?,
            inheritable: set("CapInh:")?,
            ambient: set("CapAmb:")?,
            no_new: value("NoNewPrivs:")? == "1",
            // SECCOMP_MODE_FILTER.
            filtered: value("Seccomp:")? == "2",
        })
    }
}

/// After the start no thread has more than the work needs, nor could get it back.
#[test]
fn after_the_start_no_thread_has_more_than_it_needs() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::at_once())?;
    let controller = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(gateway.addresses()))?
        .start()?;
    let threads = Privileges::of_every_thread(controller.pid())?;
    ensure!(threads.len() > 1, "one thread serves HTTP: {threads:?}");
    for thread in &threads {
        for set in [thread.permitted, thread.effective, thread.bounding] {
            assert_eq!(set, NEEDED, "{thread:#x?}");
        }
        assert_eq!((thread.inheritable, thread.ambient), (0, 0), "{thread:#x?}");
        assert!(thread.no_new && thread.filtered, "{thread:#x?}");
    }
    Ok(())
}

/// A configuration that only its owner may read can still be reloaded, at the price of one capability.
#[test]
fn the_configuration_of_another_user_is_read_again() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::at_once())?;
    let lane = || LaneFile::over(gateway.addresses());
    let builder = Controller::builder(&stage)?.lane("gateway", lane())?;
    let config = builder.config().to_owned();
    let closed = fs::Permissions::from_mode(0o700);
    fs::set_permissions(&config, closed)?;
    chown(&config, Some(NOBODY), Some(NOBODY))?;
    let controller = builder.start()?;
    for thread in Privileges::of_every_thread(controller.pid())? {
        assert_eq!(thread.effective, NEEDED | READ_ANYTHING, "{thread:#x?}");
    }
    controller.write_lane("gateway", lane().limit(7))?;
    controller.wait_until("gateway", |lane| lane.limit == 7)?;
    Ok(())
}

/// The token is read once, at the start, by one who may read what another user keeps to himself; it costs nothing later.
#[test]
fn the_token_of_another_user_is_read() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::at_once())?;
    let lane = LaneFile::over(gateway.addresses());
    let builder = Controller::builder(&stage)?.lane("gateway", lane)?;
    let own = builder.directory().join("own");
    fs::create_dir(&own)?;
    let token = own.join("token");
    fs::write(&token, "0123456789abcdef")?;
    for (path, mode) in [(&token, 0o600), (&own, 0o700)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        chown(path, Some(NOBODY), Some(NOBODY))?;
    }
    let controller = builder
        .settings(&format!("token_file = {token:?}"))?
        .start()?;
    for thread in Privileges::of_every_thread(controller.pid())? {
        assert_eq!(thread.effective, NEEDED, "{thread:#x?}");
    }
    Ok(())
}

/// A cgroup at the top of the tree; gone with this, if it is empty.
struct AtTheTop(PathBuf);

impl Drop for AtTheTop {
    fn drop(&mut self) {
        // The controller has removed it if all is well.
        let _ = fs::remove_dir(&self.0);
    }
}

/// Class cgroups that are absent are made after the start has given its privileges up. The top of the tree, where the
/// default classes lie, has mode 0555: that takes one capability more.
#[test]
fn class_cgroups_are_made_at_the_top_of_the_tree() -> Result<()> {
    let stage = Stage::set()?;
    let name = format!("shaper-test-{}-top", std::process::id());
    let top = AtTheTop(cgroup2_mount()?.join(&name));
    let gateway = Gateway::answering(Answer::at_once())?;
    let controller = Controller::builder(&stage)?
        .class_pattern("bulk", &name)?
        .lane("gateway", LaneFile::over(gateway.addresses()))?
        .start()?;
    assert!(top.0.is_dir(), "{} is not made", top.0.display());
    for thread in Privileges::of_every_thread(controller.pid())? {
        assert_eq!(thread.effective, NEEDED | WRITE_ANYTHING, "{thread:#x?}");
    }
    controller.stop()?;
    assert!(!top.0.exists(), "{} is left behind", top.0.display());
    Ok(())
}

/// A10: a client of another user in a network namespace of its own is woken; a waiter there is ended; a cgroup that
/// comes later is governed. Each takes a capability that must not have been given up.
#[test]
fn what_is_left_is_enough_for_strangers_namespaces_and_later_cgroups() -> Result<()> {
    // Not when TCP would try again by itself: that is a second after the start, or more.
    const HELD: Duration = Duration::from_millis(300);
    let stage = Stage::set()?;
    let net = VethPair::create()?;
    let release = Latch::shut();
    let gateway = Gateway::builder()
        .listen_in(&net.gateway, (net.gateway.v4, 0).into())?
        .answer(Answer::once_open(&release))
        .start()?;
    let later = format!("{}-later-*", stage.bulk.relative());
    let controller = Controller::builder(&stage)?
        .class_pattern("bulk", &later)?
        .lane(
            "gateway",
            LaneFile::over(gateway.addresses())
                .limit(1)
                .line("[class.interactive]\nqueue_timeout = \"500ms\""),
        )?
        .start()?;

    let call = |label| {
        curl(&gateway.url(), label)
            .as_nobody()
            .in_netns(&net.client)
    };
    let holder = call("holder")?.spawn_in(&stage.bulk)?;
    controller.wait_for("gateway", 1, 0)?;
    // Attached to within the five seconds between two looks.
    let late = stage.cgroups().group("bulk-later-1")?;
    controller.wait_for_log(late.relative())?;
    let waiter = call("waiter")?.spawn_in(&late)?;
    controller.wait_for("gateway", 1, 1)?;

    let ended = call("ended")?.spawn_in(&stage.interactive)?;
    assert_eq!(
        ended.finish(PATIENCE)?.outcome,
        CurlOutcome::ConnectFailed {
            reason: "Software caused connection abort".to_owned()
        }
    );

    sleep(HELD);
    release.open();
    assert_eq!(holder.finish(PATIENCE)?.outcome, CurlOutcome::answered());
    assert_eq!(waiter.finish(PATIENCE)?.outcome, CurlOutcome::answered());
    controller.wait_for("gateway", 0, 0)?;
    let log = controller.log();
    for failure in ["cannot send", "cannot end", "not governed"] {
        assert!(!log.contains(failure), "{log}");
    }
    Ok(())
}

/// Who may only look is told so, and looks.
#[test]
fn a_stranger_who_reaches_the_control_socket_may_look_and_change_nothing() -> Result<()> {
    let stage = Stage::set()?;
    let gateway = Gateway::answering(Answer::at_once())?;
    let controller = Controller::builder(&stage)?
        .lane("gateway", LaneFile::over(gateway.addresses()).limit(3))?
        .start()?;
    // As an operator opens it to a group.
    let open = fs::Permissions::from_mode(0o666);
    fs::set_permissions(controller.control(), open)?;

    let status = controller.command_as_nobody("status", &["--json"])?;
    assert_eq!(status.exit_code()?, 0, "{}", status.stderr);
    let set = controller.command_as_nobody("set", &["gateway", "max_inflight=1"])?;
    assert_eq!(set.exit_code()?, 1);
    assert!(
        set.stderr.contains("only root may change"),
        "{}",
        set.stderr
    );
    assert_eq!(controller.lane("gateway")?.limit, 3);
    Ok(())
}
