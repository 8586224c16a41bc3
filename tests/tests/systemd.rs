//! Where systemd runs the host: the packaged unit, and classes that are slices.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::unistd::Pid;
use serde_json::Value;
use shaper_tests::client::{ProbeReport, Running, probe};
use shaper_tests::clock::poll_until;
use shaper_tests::gateway::{Answer, Gateway, Latch};
use shaper_tests::kernel_state::attached_under;
use shaper_tests::lane_file::LaneFile;
use shaper_tests::process::Process;
use shaper_tests::stage::Stage;
use shaper_tests::systemd::Systemd;

const PATIENCE: Duration = Duration::from_secs(30);

/// No journal runs here, and no targets of this system.
const DROP_IN: &str =
    "[Unit]\nDefaultDependencies=no\n[Service]\nStandardError=append:/run/out/shaper.log\n";

/// A systemd with the packaged unit and one lane.
struct Host {
    systemd: Systemd,
    gateway: Gateway,
    stage: Stage,
}

impl Host {
    fn boot(answer: Answer, lane: impl FnOnce(LaneFile) -> LaneFile) -> Result<Self> {
        Self::boot_with("", answer, lane)
    }

    /// With further lines for the unit's `[Service]`.
    fn boot_with(
        settings: &str,
        answer: Answer,
        lane: impl FnOnce(LaneFile) -> LaneFile,
    ) -> Result<Self> {
        let stage = Stage::set()?;
        let gateway = Gateway::answering(answer)?;
        let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/shaper.service");
        let unit = fs::read_to_string(&unit).with_context(|| unit.display().to_string())?;
        let units = "etc/systemd/system/shaper.service";
        let files = [
            (units, unit),
            (
                &format!("{units}.d/test.conf"),
                format!("{DROP_IN}{settings}"),
            ),
            // Whatever port is free.
            (
                "etc/shaper/shaper.toml",
                "listen = \"127.0.0.1:0\"".to_owned(),
            ),
            (
                "etc/shaper/lanes.d/gateway.toml",
                lane(LaneFile::over(gateway.addresses())).toml(),
            ),
        ];
        let systemd = Systemd::boot(&stage.cgroups().group("systemd")?, &files)?;
        Ok(Self {
            systemd,
            gateway,
            stage,
        })
    }

    fn start(&self) -> Result<()> {
        let started = self.systemd.done(["systemctl", "start", "shaper"]);
        started
            .map(drop)
            .with_context(|| format!("the log:\n{}", self.log()))
    }

    fn log(&self) -> String {
        self.systemd.out("shaper.log")
    }

    /// A client in a class, and perhaps an account, by `shaper exec`.
    fn exec(&self, place: &[&str], label: &str) -> Result<Running<ProbeReport>> {
        let words = [&["shaper", "exec"], place, &["--"]].concat();
        let client = probe(self.gateway.address(), label)?;
        client.under(self.systemd.inside(words)).spawn()
    }

    /// The lane, as soon as it is as wanted.
    fn wait_for(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
        let mut last = String::new();
        poll_until(PATIENCE, || {
            last = self.systemd.done(["shaper", "status", "--json"]).ok()?;
            let mut snapshot: Value = serde_json::from_str(&last).ok()?;
            let lane = snapshot["lanes"][0].take();
            wanted(&lane).then_some(lane)
        })
        .with_context(|| format!("{what} did not come; last {last}; the log:\n{}", self.log()))
    }

    /// Of shaper: systemd has programs of its own for devices and firewalls.
    fn ensure_nothing_is_attached(&self) -> Result<()> {
        let attached = attached_under(self.stage.cgroups().path())?;
        let left: Vec<_> = attached
            .iter()
            .filter(|program| !program.starts_with("sd_"))
            .collect();
        ensure!(left.is_empty(), "still attached: {left:?}");
        Ok(())
    }

    fn wait_for_counts(&self, inflight: u64, queued: u64) -> Result<Value> {
        let what = format!("{inflight} in flight and {queued} queued");
        self.wait_for(&what, |lane| {
            lane["inflight"] == inflight && lane["queued"] == queued
        })
    }
}

/// What a process that systemd has started is in, as it is seen from outside.
fn cgroup_of(pid: Pid) -> Result<String> {
    let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let unified = cgroups.lines().find_map(|line| line.strip_prefix("0::"));
    Ok(unified.context("no cgroup v2")?.to_owned())
}

/// E5: a start that fails for a while, as when its port is taken, is tried until it works, not five times.
#[test]
fn the_unit_goes_on_trying_to_start() -> Result<()> {
    // systemd's default gives up at the fifth start within ten seconds.
    const TRIES: usize = 7;
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let listen = taken.local_addr()?;
    let settings = format!("ExecStart=\nExecStart=/usr/bin/shaper run --listen {listen}\n");
    let host = Host::boot_with(&settings, Answer::at_once(), |lane| lane.limit(1))?;
    host.systemd
        .done(["systemctl", "start", "--no-block", "shaper"])?;
    let tries = || host.log().matches(&listen.to_string()).count();
    poll_until(PATIENCE, || (tries() >= TRIES).then_some(()))
        .with_context(|| format!("{} tries; the log:\n{}", tries(), host.log()))?;
    drop(taken);
    host.wait_for_counts(0, 0)?;
    Ok(())
}

/// The unit as it is packaged, with all its hardening, under a systemd that really runs: started means governed, reload and
/// watchdog work, a stop lets everything go and leaves nothing.
#[test]
fn the_unit_starts_governs_reloads_and_stops() -> Result<()> {
    let release = Latch::shut();
    // Held connects that clients bear: nothing to warn of.
    let host = Host::boot(Answer::once_open(&release), |lane| {
        lane.limit(1).connect_hold(Duration::from_secs(4))
    })?;
    host.start()?;
    let status = host
        .systemd
        .done(["systemctl", "status", "--no-pager", "shaper"])?;
    ensure!(status.contains("lanes: 1, enforced: 1"), "{status}");

    let holder = host.exec(&["--class", "bulk"], "holder")?;
    host.wait_for_counts(1, 0)?;
    let waiter = host.exec(&["--class", "bulk"], "waiter")?;
    host.wait_for_counts(1, 1)?;
    host.systemd.done(["systemctl", "reload", "shaper"])?;
    host.systemd
        .done(["shaper", "set", "gateway", "max_inflight=2"])?;
    host.wait_for_counts(2, 0)?;
    let last = host.exec(&["--class", "bulk"], "last")?;
    host.wait_for_counts(2, 1)?;

    // E5: the next controller takes over. `set` is forgotten, and slots in use are not revoked.
    host.systemd.done(["systemctl", "restart", "shaper"])?;
    host.wait_for_counts(2, 1)?;

    host.systemd.done(["systemctl", "stop", "shaper"])?;
    release.open();
    for client in [holder, waiter, last] {
        client.finish(PATIENCE)?.answered()?;
    }
    let log = host.log();
    ensure!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
    host.ensure_nothing_is_attached()
}

/// The instance that a drop-in names is the one that runs, and the one that the stop detaches.
#[test]
fn a_stop_detaches_the_instance_that_a_drop_in_names() -> Result<()> {
    let settings = "Environment=SHAPER_INSTANCE=gpu\n";
    let host = Host::boot_with(settings, Answer::never(), |lane| lane.limit(1))?;
    host.start()?;
    host.systemd
        .done(["shaper", "status", "--instance", "gpu"])?;
    host.systemd.done(["systemctl", "stop", "shaper"])?;
    host.ensure_nothing_is_attached()
}

/// A class is a slice, and each command a scope in it that systemd made: nobody else writes into its tree. An account is a
/// slice inside; a scope is none, so caps on accounts leave the class's own commands alone.
#[test]
fn a_class_is_a_slice_and_an_account_one_inside_it() -> Result<()> {
    let host = Host::boot(Answer::never(), |lane| {
        lane.limit(10)
            .line("abort_hold = \"0s\"\n[account]\nmax_inflight = 1")
    })?;
    host.start()?;
    let plain: Vec<_> = (0..3)
        .map(|_| host.exec(&["--class", "bulk"], "plain"))
        .collect::<Result<_>>()?;
    let lane = host.wait_for_counts(3, 0)?;
    assert_eq!(lane["inflight_by_priority"]["bulk"], 3, "{lane:#}");
    assert_eq!(lane["accounts"], Value::Array(vec![]), "{lane:#}");

    let place = ["--class", "bulk", "--account", "my-team"];
    let tenants = [host.exec(&place, "first")?, host.exec(&place, "second")?];
    let lane = host.wait_for_counts(4, 1)?;
    assert_eq!(lane["accounts"][0]["account"], "my-team", "{lane:#}");
    assert_eq!(lane["accounts"][0]["inflight"], 1, "{lane:#}");
    assert_eq!(lane["accounts"][0]["queued"], 1, "{lane:#}");

    let top = format!(
        "/{}/shaper.slice/shaper-bulk.slice",
        host.systemd.cgroup().relative()
    );
    let scopes = host.systemd.done([
        "systemctl",
        "list-units",
        "--plain",
        "--no-legend",
        "shaper-*.scope",
    ])?;
    assert_eq!(scopes.lines().count(), 5, "{scopes}");
    for (client, inside) in plain.iter().map(|client| (client, "")).chain(
        tenants
            .iter()
            .map(|client| (client, "/shaper-bulk-my\\x2dteam.slice")),
    ) {
        // `nsenter` forks: the client itself is its child.
        let pid = shaper_tests::systemd::child_of(client.pid()).context("no client")?;
        let cgroup = cgroup_of(pid)?;
        let scope = cgroup.strip_prefix(&format!("{top}{inside}/"));
        ensure!(
            scope.is_some_and(|scope| scope.starts_with("shaper-") && scope.ends_with(".scope")),
            "{cgroup} is no scope in {top}{inside}"
        );
    }
    host.systemd.done(["systemctl", "stop", "shaper-*.scope"])?;
    host.wait_for_counts(0, 0)?;
    Ok(())
}

/// `assign` has systemd move processes that run, several at once.
#[test]
fn running_processes_are_moved_by_systemd() -> Result<()> {
    let host = Host::boot(Answer::never(), |lane| lane.limit(10))?;
    host.start()?;
    let sleepers: Vec<_> = (0..2)
        .map(|_| {
            let words = host.systemd.inside(["sleep", "600"]);
            Process::spawn(
                "sleep",
                std::process::Command::new(&words[0]).args(&words[1..]),
            )
        })
        .collect::<Result<_>>()?;
    let pids = poll_until(PATIENCE, || {
        let found = host.systemd.done(["pgrep", "--exact", "sleep"]).ok()?;
        let pids: Vec<String> = found.lines().map(str::to_owned).collect();
        (pids.len() == sleepers.len()).then_some(pids)
    })
    .context("the processes do not run")?;
    let words = [
        "shaper",
        "assign",
        "--class",
        "interactive",
        &pids[0],
        &pids[1],
    ];
    let assigned = host.systemd.run(words)?;
    let said = (&assigned.stdout, &assigned.stderr);
    assert!(
        said.0.contains("is in shaper-interactive.slice"),
        "{said:?}"
    );
    assert!(said.1.contains("new sockets are governed."), "{said:?}");
    for sleeper in &sleepers {
        let pid = shaper_tests::systemd::child_of(sleeper.pid()).context("no sleeper")?;
        let cgroup = cgroup_of(pid)?;
        ensure!(
            cgroup.contains("/shaper-interactive.slice/shaper-"),
            "{cgroup}"
        );
    }
    Ok(())
}
