//! The real binary under test: started on a configuration of its own, asked through its outer interfaces,
//! and stopped or killed.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::cgroup::{Cgroup, cgroup2_mounts};
use crate::clock::poll_until;
use crate::metrics::Metrics;
use crate::name_server::NameServer;
use crate::process::{Finished, Process};
use crate::snapshot::{Lane, Snapshot, Waiter, Waiters};
use crate::stage::Stage;
use crate::tools;

const START_PATIENCE: Duration = Duration::from_secs(20);
/// The user without privileges.
const NOBODY: u32 = 65534;
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// A running `shaper run`; killed when dropped.
#[derive(Debug)]
pub struct Controller {
    process: Process,
    http: SocketAddr,
    setup: Setup,
}

/// A controller in the making.
#[derive(Debug)]
pub struct ControllerBuilder {
    setup: Setup,
    command: Command,
    http: SocketAddr,
    settings: String,
    classes: BTreeMap<&'static str, Vec<String>>,
}

/// The files and names of one controller instance. Shared with a second controller of the same instance.
#[derive(Debug)]
struct Setup {
    directory: TempDir,
    config: PathBuf,
    state: PathBuf,
    control: PathBuf,
    instance: String,
    stays_attached: bool,
}

impl Setup {
    /// A copy of the program, because the build directory may lie where nobody may go.
    fn binary_for_all(&self) -> Result<PathBuf> {
        let binary = self.directory.path().join("shaper");
        fs::copy(tools::shaper()?, &binary).context("cannot copy the controller's binary")?;
        fs::set_permissions(&binary, Permissions::from_mode(0o755))
            .context("cannot make the copy executable")?;
        Ok(binary)
    }

    /// `shaper detach`.
    fn detach(&self) -> Result<Finished> {
        let mut shaper = Command::new(tools::shaper()?);
        shaper.args(["detach", "--instance", &self.instance]);
        Process::spawn("shaper detach", &mut shaper)?.finish(STOP_PATIENCE)
    }

    /// `shaper run` with everything it needs but the privileges.
    fn command(&self, binary: &Path, http: SocketAddr) -> Command {
        let mut command = Command::new(binary);
        command
            .arg("run")
            .arg("--config")
            .arg(&self.config)
            .arg("--listen")
            .arg(http.to_string())
            .arg("--control")
            .arg(&self.control)
            .arg("--instance")
            .arg(&self.instance)
            .arg("--state")
            .arg(&self.state)
            .arg(if self.stays_attached {
                "--detach-on-exit=false"
            } else {
                "--detach-on-exit"
            });
        command
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        if !self.stays_attached {
            // What goes with its controller leaves only this behind when it is killed.
            let _ = fs::remove_file(format!("/run/shaper/{}.lock", self.instance));
        } else if let Err(error) = self.detach() {
            eprintln!("instance {} is left behind: {error:#}", self.instance);
        }
    }
}

impl Controller {
    /// A controller whose classes are the stage's cgroups.
    pub fn builder(stage: &Stage) -> Result<ControllerBuilder> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let directory = tempfile::tempdir().context("cannot make a directory")?;
        // Readable by the unprivileged user of `as_nobody`.
        fs::set_permissions(directory.path(), Permissions::from_mode(0o755))
            .context("cannot open the directory to others")?;
        let setup = Setup {
            config: directory.path().join("config"),
            state: directory.path().join("state"),
            control: directory.path().join("control.sock"),
            instance: format!(
                "test-{}-{}",
                process::id(),
                COUNT.fetch_add(1, Ordering::Relaxed)
            ),
            stays_attached: false,
            directory,
        };
        fs::create_dir_all(setup.config.join("lanes.d")).context("cannot make lanes.d")?;
        let http = free_port()?;
        let builder = ControllerBuilder {
            command: setup.command(&tools::shaper()?, http),
            setup,
            http,
            settings: String::new(),
            classes: BTreeMap::new(),
        };
        builder
            .class("interactive", &stage.interactive)?
            .class("default", &stage.default)?
            .class("bulk", &stage.bulk)
    }

    pub fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// The control socket, for `--control`.
    pub fn control(&self) -> PathBuf {
        self.setup.control.clone()
    }

    /// Where HTTP is served.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// The URL of a path on the HTTP server.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.http)
    }

    /// The configuration directory, for reloads.
    pub fn config(&self) -> &Path {
        &self.setup.config
    }

    /// Puts a lane file in place of the one there is, or beside the others, in one step as configuration management
    /// does.
    pub fn write_lane(&self, name: &str, toml: impl Into<String>) -> Result<()> {
        let lanes = self.setup.config.join("lanes.d");
        let beside = lanes.join(format!(".{name}.toml.new"));
        fs::write(&beside, toml.into())
            .and_then(|()| fs::rename(&beside, lanes.join(format!("{name}.toml"))))
            .with_context(|| format!("cannot replace the file of lane {name}"))
    }

    /// Runs `shaper COMMAND ARGUMENT...` against this controller.
    pub fn command(&self, command: &str, arguments: &[&str]) -> Result<Finished> {
        let mut shaper = Command::new(tools::shaper()?);
        shaper
            .arg(command)
            .arg("--control")
            .arg(self.control())
            .args(arguments);
        Process::spawn(format!("shaper {command}"), &mut shaper)?.finish(STOP_PATIENCE)
    }

    /// As [`Controller::command`], but as the user `nobody`.
    pub fn command_as_nobody(&self, command: &str, arguments: &[&str]) -> Result<Finished> {
        let mut shaper = Command::new(self.setup.binary_for_all()?);
        shaper
            .uid(NOBODY)
            .gid(NOBODY)
            .current_dir("/")
            .arg(command)
            .arg("--control")
            .arg(self.control())
            .args(arguments);
        Process::spawn(format!("shaper {command}"), &mut shaper)?.finish(STOP_PATIENCE)
    }

    /// What the controller has logged until now.
    pub fn log(&self) -> String {
        self.process.said()
    }

    /// A second controller of the same instance: same configuration, same names, another HTTP port.
    pub fn run_second(&self) -> Result<Finished> {
        let mut command = self.setup.command(&tools::shaper()?, free_port()?);
        Process::spawn("the second controller", &mut command)?.finish(START_PATIENCE)
    }

    /// `GET /api/lanes`.
    pub fn snapshot(&self) -> Result<Snapshot> {
        let text = self.get("/api/lanes")?;
        serde_json::from_str(&text).with_context(|| format!("unexpected /api/lanes: {text}"))
    }

    /// `GET /api/waiters`.
    pub fn waiters(&self) -> Result<Vec<Waiter>> {
        let text = self.get("/api/waiters")?;
        let waiters: Waiters = serde_json::from_str(&text)
            .with_context(|| format!("unexpected /api/waiters: {text}"))?;
        Ok(waiters.waiters)
    }

    /// One lane of [`Controller::snapshot`].
    pub fn lane(&self, name: &str) -> Result<Lane> {
        let snapshot = self.snapshot()?;
        snapshot
            .lanes
            .into_iter()
            .find(|lane| lane.lane == name)
            .with_context(|| format!("/api/lanes has no lane {name:?}"))
    }

    /// `GET /metrics`.
    pub fn metrics(&self) -> Result<Metrics> {
        Ok(Metrics::parse(&self.get("/metrics")?))
    }

    /// Polls a lane until it is as wanted.
    ///
    /// # Errors
    /// If it is not within ten seconds; the message shows the lane and the controller's log.
    pub fn wait_until(&self, name: &str, wanted: impl Fn(&Lane) -> bool) -> Result<Lane> {
        const PATIENCE: Duration = Duration::from_secs(10);
        self.wait_until_within(name, PATIENCE, wanted)
    }

    /// As [`Controller::wait_until`], with another patience.
    pub fn wait_until_within(
        &self,
        name: &str,
        patience: Duration,
        wanted: impl Fn(&Lane) -> bool,
    ) -> Result<Lane> {
        let mut last = None;
        poll_until(patience, || match self.lane(name) {
            Ok(lane) if wanted(&lane) => Some(Ok(lane)),
            Ok(lane) => {
                last = Some(lane);
                None
            }
            Err(error) => Some(Err(error)),
        })
        .unwrap_or_else(|| {
            Err(anyhow!(
                "lane {name:?} did not get there within {patience:?}; it is {last:#?}; the log:\n{}",
                self.log()
            ))
        })
    }

    /// Polls the log until it has `text`.
    ///
    /// # Errors
    /// If that is not within ten seconds; the message shows the log.
    pub fn wait_for_log(&self, text: &str) -> Result<()> {
        const PATIENCE: Duration = Duration::from_secs(10);
        poll_until(PATIENCE, || self.log().contains(text).then_some(()))
            .with_context(|| format!("{text:?} is not in the log:\n{}", self.log()))
    }

    /// Polls until the lane has `inflight` in flight and `queued` waiting.
    pub fn wait_for(&self, name: &str, inflight: usize, queued: usize) -> Result<Lane> {
        self.wait_until(name, |lane| {
            lane.inflight == inflight && lane.queued == queued
        })
        .with_context(|| format!("waiting for {inflight} in flight and {queued} queued"))
    }

    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.process.signal(signal)
    }

    /// SIGKILL: no chance to clean up.
    pub fn kill9(self) -> Result<()> {
        self.process.kill9()
    }

    /// SIGKILL to one that [stays attached](ControllerBuilder::stays_attached).
    pub fn killed(self) -> Result<Departed> {
        self.process.kill9()?;
        Ok(Departed {
            setup: self.setup,
            http: self.http,
        })
    }

    /// SIGTERM to one that [stays attached](ControllerBuilder::stays_attached).
    ///
    /// # Errors
    /// If the end does not come in time or the exit code is not 0.
    pub fn terminated(self) -> Result<Departed> {
        self.process.signal(Signal::SIGTERM)?;
        let finished = self.process.finish(STOP_PATIENCE)?;
        ensure!(finished.exit_code()? == 0, "{}", finished.stderr);
        Ok(Departed {
            setup: self.setup,
            http: self.http,
        })
    }

    /// The name of the instance.
    pub fn instance(&self) -> &str {
        &self.setup.instance
    }

    /// `shaper detach` while it runs, and its end.
    pub fn detach(self) -> Result<Finished> {
        let detached = self.setup.detach()?;
        self.process.finish(STOP_PATIENCE)?;
        Ok(detached)
    }

    /// A clean stop by SIGTERM; see [`Controller::stop_by`].
    pub fn stop(self) -> Result<String> {
        self.stop_by(Signal::SIGTERM)
    }

    /// Sends SIGTERM or SIGINT, waits for the end, and returns the log.
    ///
    /// # Errors
    /// If the end does not come in time or the exit code is not 0.
    pub fn stop_by(self, signal: Signal) -> Result<String> {
        self.process.signal(signal)?;
        let finished = self.process.finish(STOP_PATIENCE)?;
        ensure!(
            finished.exit_code()? == 0,
            "the controller ended with {}; the log:\n{}{}",
            finished.status,
            finished.stdout,
            finished.stderr
        );
        Ok(finished.stdout + &finished.stderr)
    }

    fn get(&self, path: &str) -> Result<String> {
        get(self.http, path).with_context(|| format!("the controller's log:\n{}", self.log()))
    }
}

/// What a controller that stays attached has left: a configuration, and programs without a controller.
#[derive(Debug)]
pub struct Departed {
    setup: Setup,
    http: SocketAddr,
}

impl Departed {
    /// The next controller of the instance, in the making: same configuration, same address.
    pub fn successor(self) -> Result<ControllerBuilder> {
        Ok(ControllerBuilder {
            command: self.setup.command(&tools::shaper()?, self.http),
            setup: self.setup,
            http: self.http,
            settings: String::new(),
            classes: BTreeMap::new(),
        })
    }

    /// The next controller of the instance.
    pub fn restart(self) -> Result<Controller> {
        self.successor()?.start()
    }

    /// Begins the next controller, and kills it after `moment`, wherever it is then.
    ///
    /// # Errors
    /// If it cannot be started or killed.
    pub fn killed_while_starting(self, moment: Duration) -> Result<Self> {
        let mut command = self.setup.command(&tools::shaper()?, self.http);
        let next = Process::spawn("the next controller", &mut command)?;
        sleep(moment);
        next.kill9()?;
        Ok(self)
    }

    /// Where the next one serves HTTP.
    pub fn http(&self) -> SocketAddr {
        self.http
    }

    /// The name of the instance.
    pub fn instance(&self) -> &str {
        &self.setup.instance
    }

    /// Runs a further controller of the instance to the end that it is expected to find by itself.
    pub fn run_to_its_end(&self) -> Result<Finished> {
        let mut command = self.setup.command(&tools::shaper()?, self.http);
        Process::spawn("the next controller", &mut command)?.finish(START_PATIENCE)
    }

    /// `shaper detach`.
    pub fn detach(self) -> Result<Finished> {
        self.setup.detach()
    }
}

impl ControllerBuilder {
    /// The configuration directory.
    pub fn config(&self) -> &Path {
        &self.setup.config
    }

    /// The text of `lanes.d/NAME.toml`.
    pub fn lane(self, name: &str, toml: impl Into<String>) -> Result<Self> {
        let path = self.setup.config.join(format!("lanes.d/{name}.toml"));
        fs::write(&path, toml.into())
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(self)
    }

    /// More of `shaper.toml`, put before what is there: bare keys go to the top of a TOML file.
    pub fn settings(mut self, toml: &str) -> Result<Self> {
        self.settings = format!("{toml}\n{}", self.settings);
        self.write_settings()
    }

    /// One more cgroup that stands for a class.
    pub fn class(self, class: &'static str, cgroup: &Cgroup) -> Result<Self> {
        self.class_pattern(class, cgroup.relative())
    }

    /// One more pattern of cgroups that stand for a class.
    pub fn class_pattern(mut self, class: &'static str, pattern: &str) -> Result<Self> {
        let cgroups = self.classes.entry(class).or_default();
        cgroups.push(pattern.to_owned());
        self.write_settings()
    }

    fn write_settings(self) -> Result<Self> {
        let path = self.setup.config.join("shaper.toml");
        let mut text = self.settings.clone();
        for (class, cgroups) in &self.classes {
            text += &format!("[classes.{class}]\ncgroups = {cgroups:?}\n");
        }
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(self)
    }

    /// A directory that goes with the controller.
    pub fn directory(&self) -> &Path {
        self.setup.directory.path()
    }

    /// HTTP where a controller before this one served it.
    pub fn http_at(mut self, http: SocketAddr) -> Result<Self> {
        self.http = http;
        self.command = self.setup.command(&tools::shaper()?, http);
        Ok(self)
    }

    /// A control socket at a path that outlives this controller.
    pub fn control_at(mut self, path: &Path) -> Result<Self> {
        self.setup.control = path.to_owned();
        self.command = self.setup.command(&tools::shaper()?, self.http);
        Ok(self)
    }

    /// The control socket where it is unless told otherwise.
    pub fn default_control(self) -> Result<Self> {
        let path = format!("/run/shaper/{}.sock", self.setup.instance);
        self.control_at(Path::new(&path))
    }

    /// Another configuration directory, for one that is not there.
    pub fn config_at(mut self, path: &Path) -> Result<Self> {
        self.setup.config = path.to_owned();
        self.command = self.setup.command(&tools::shaper()?, self.http);
        Ok(self)
    }

    /// Another state directory, which may outlive the controller, under a name that may be used again.
    pub fn state_at(mut self, path: &Path, instance: &str) -> Result<Self> {
        self.setup.state = path.to_owned();
        self.setup.instance = instance.to_owned();
        self.command = self.setup.command(&tools::shaper()?, self.http);
        Ok(self)
    }

    /// As under a service manager: what it has attached stays when it ends, for the next one. The next one is started with
    /// [`Controller::restart`]; whatever happens, `shaper detach` comes last.
    pub fn stays_attached(mut self) -> Result<Self> {
        self.setup.stays_attached = true;
        self.command = self.setup.command(&tools::shaper()?, self.http);
        Ok(self)
    }

    /// As at a terminal: everything goes with the controller.
    pub fn goes_with_its_end(mut self) -> Result<Self> {
        self.setup.stays_attached = false;
        self.command = self.setup.command(&tools::shaper()?, self.http);
        Ok(self)
    }

    /// Loses and repeats kernel events: the text of `SHAPER_FAULTS`, which builds with debug assertions know.
    #[must_use]
    pub fn faults(self, faults: &str) -> Self {
        self.environment("SHAPER_FAULTS", faults)
    }

    /// One more environment variable.
    #[must_use]
    pub fn environment(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Appends a trace to a file.
    #[must_use]
    pub fn record_to(mut self, file: &Path) -> Self {
        self.command.arg("--record").arg(file);
        self
    }

    /// Runs as the user `nobody`, without capabilities.
    pub fn as_nobody(mut self) -> Result<Self> {
        let binary = self.setup.binary_for_all()?;
        self.command = self.setup.command(&binary, self.http);
        self.command.uid(NOBODY).gid(NOBODY).current_dir("/");
        Ok(self)
    }

    /// Runs in a mount namespace in which cgroup v2 is not mounted.
    pub fn without_cgroup2(mut self) -> Result<Self> {
        let table =
            fs::read_to_string("/proc/self/mounts").context("cannot read the mount table")?;
        let mounts: Vec<PathBuf> = cgroup2_mounts(&table).collect();
        let none: Option<&str> = None;
        // SAFETY: between fork and exec the closure makes plain system calls. nix turns the paths into C strings on
        // the stack (they are shorter than its 1024 bytes), so nothing is allocated.
        unsafe {
            self.command.pre_exec(move || {
                unshare(CloneFlags::CLONE_NEWNS)?;
                mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)?;
                for mount in &mounts {
                    umount2(mount, MntFlags::MNT_DETACH)?;
                }
                Ok(())
            });
        }
        Ok(self)
    }

    /// Has the controller ask this name server, as the host's.
    #[must_use]
    pub fn asking(mut self, server: &NameServer) -> Self {
        server.contain(&mut self.command);
        self
    }

    /// Starts the controller and waits until it is healthy.
    ///
    /// # Errors
    /// If it ends or is not healthy in time; the message shows its log.
    pub fn start(mut self) -> Result<Controller> {
        let mut process = Process::spawn("the controller", &mut self.command)?;
        let healthy = poll_until(START_PATIENCE, || match process.ended() {
            Ok(None) => get(self.http, "/healthz").ok().map(|_| Ok(())),
            Ok(Some(status)) => Some(Err(anyhow!("the controller ended at once with {status}"))),
            Err(error) => Some(Err(error)),
        });
        match healthy {
            Some(Ok(())) => Ok(Controller {
                process,
                http: self.http,
                setup: self.setup,
            }),
            Some(Err(error)) => {
                let finished = process.finish(STOP_PATIENCE)?;
                Err(error.context(format!("its log:\n{}{}", finished.stdout, finished.stderr)))
            }
            None => {
                bail!(
                    "the controller is not healthy after {START_PATIENCE:?}; its log:\n{}",
                    process.said()
                )
            }
        }
    }

    /// Runs the controller to the end that it is expected to find by itself.
    ///
    /// # Errors
    /// If it is still running after a while, which means that it took what it should have refused.
    pub fn run_to_its_end(mut self) -> Result<Finished> {
        Process::spawn("the controller", &mut self.command)?.finish(START_PATIENCE)
    }
}

/// The body of a 200 answer.
fn get(http: SocketAddr, path: &str) -> Result<String> {
    const TIMEOUT: Duration = Duration::from_secs(5);
    let url = format!("http://{http}{path}");
    ureq::get(&url)
        .config()
        .proxy(None)
        .timeout_global(Some(TIMEOUT))
        .build()
        .call()
        .and_then(|mut answer| answer.body_mut().read_to_string())
        .with_context(|| format!("GET {url} failed"))
}

/// A port that was free a moment ago.
fn free_port() -> Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .context("cannot find a free port")
}
