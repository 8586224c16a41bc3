//! The loop: events from the kernel into the policy, the policy's actions back into the kernel.
//!
//! The only place that knows both. It is single-threaded and owns all state; everything else reaches it through the
//! [`Handle`](crate::handle::Handle).

mod accounts;
mod carry_out;
mod census;
mod classes;
mod commands;
mod drift;
mod glimpse;
mod history;
mod lanes;
mod lingering;
mod memory;
mod message;
mod names;
mod nudge;
mod parking;
mod picture;
mod preexisting;
mod quota;
mod reason;
mod record;
mod reload;
mod report;
mod schedule;
mod translate;
mod turned_away;
mod vanished;

use std::{collections::HashSet, io, sync::Arc, time::Duration};

use shaper_common::{ABI_VERSION, Endpoint, OnLoss};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{mpsc, watch},
    time,
};
use tracing::{info, warn};

pub use classes::ClassCgroups;
pub use lanes::LaneError;
pub use record::Recorder;
pub use reload::{Reloaded, Reloads};

use self::{
    accounts::Accounts, drift::Drift, history::History, lanes::Lanes, lingering::Lingering,
    names::Names, nudge::Nudges, parking::Parking, preexisting::Preexisting, vanished::Vanished,
};
use crate::{
    config::{Config, LaneConfig, Settings},
    handle::Command,
    kernel::{
        self, CgroupRoot, Events, KernelError, Loaded, Message, Namespaces, Programs, Tables,
    },
    metrics::Metrics,
    policy::{Action, Ns, Policy},
    state::StateKeeper,
    systemd::notify::Watchdog,
};

/// Time between two signs of life. The design's `fail_after` is at least twice this.
const HEARTBEAT: Duration = Duration::from_millis(500);

/// Time between two comparisons of the policy's picture with the maps.
const RECONCILE: Duration = Duration::from_secs(5);

/// Messages handled before anything else gets a turn: some milliseconds' worth.
const TURN: usize = 1024;

/// Why the controller could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Kernel(#[from] KernelError),
    #[error(transparent)]
    Lane(#[from] LaneError),
    #[error("cannot wait for kernel events: {0}")]
    Poll(io::Error),
}

/// The controller of one instance.
pub struct Controller {
    programs: Programs,
    tables: Tables,
    events: Events,
    namespaces: Namespaces,
    classes: ClassCgroups,
    accounts: Accounts,
    lanes: Lanes,
    policy: Policy,
    nudges: Nudges,
    parking: Parking,
    lingering: Lingering,
    preexisting: Preexisting,
    drift: Drift,
    vanished: Vanished,
    /// The ring holds more than one turn's worth.
    backlog: bool,
    metrics: Arc<Metrics>,
    actions: Vec<Action>,
    /// For [`Names`].
    configured: watch::Sender<Vec<LaneConfig>>,
    in_use: watch::Sender<HashSet<Endpoint>>,
    names: Option<Names>,
    reconciled: Ns,
    /// As last read from the files. A lane in force may differ from it by what `shaper set` changed.
    loaded: Config,
    /// As read at the start: some settings hold until a restart.
    started: Settings,
    last_reload_error: Option<String>,
    recorder: Option<Recorder>,
    history: History,
    state: StateKeeper,
    watchdog: Watchdog,
}

impl Controller {
    /// Sets the lanes up and attaches the programs. From then on the classes are governed.
    ///
    /// # Errors
    /// [`StartError`]; nothing stays attached and no cgroup made here stays.
    pub async fn start(
        loaded: Loaded,
        config: &Config,
        metrics: Arc<Metrics>,
        state: StateKeeper,
    ) -> Result<Self, StartError> {
        let root = CgroupRoot::find()?;
        let Loaded {
            programs,
            mut tables,
            events,
        } = loaded;
        for index in (0..tables.conns.len()).rev() {
            tables.offer_record(index)?;
        }
        let (configured, lanes_watch) = watch::channel(config.lanes.clone());
        let (in_use, in_use_watch) = watch::channel(HashSet::new());
        let mut names = Names::new(lanes_watch, in_use_watch);
        let endpoints = names.look_up().await;
        let classes = ClassCgroups::new(
            root.clone(),
            config.settings.scope,
            &config.settings.classes,
        );
        let mut controller = Self {
            programs,
            tables,
            events,
            namespaces: Namespaces::default(),
            accounts: Accounts::new(root),
            classes,
            lanes: Lanes::default(),
            policy: Policy::new(),
            nudges: Nudges::default(),
            parking: Parking::default(),
            lingering: Lingering::default(),
            preexisting: Preexisting::default(),
            drift: Drift::default(),
            vanished: Vanished::default(),
            backlog: false,
            metrics,
            actions: Vec::new(),
            configured,
            in_use,
            names: Some(names),
            reconciled: kernel::now(),
            loaded: config.clone(),
            started: config.settings.clone(),
            last_reload_error: None,
            recorder: None,
            history: History::new(),
            state,
            watchdog: Watchdog::from_environment(),
        };
        controller.set_globals(config);
        for lane in &config.lanes {
            controller.set_lane(lane.clone())?;
        }
        controller.remember();
        controller
            .lanes
            .set_endpoints(endpoints, &mut controller.tables);
        controller.heartbeat();
        if let Err(error) = controller.govern() {
            controller.classes.remove_created();
            return Err(error.into());
        }
        controller.preexisting =
            Preexisting::find(&controller.classes, &controller.lanes, &controller.tables);
        Ok(controller)
    }

    fn govern(&mut self) -> Result<(), KernelError> {
        self.classes.create()?;
        self.classes.refresh(&mut self.tables, &mut self.programs)
    }

    /// Runs until `stop` is done, then lets every held connection go and detaches.
    ///
    /// # Errors
    /// When kernel events cannot be waited for.
    pub async fn run(
        mut self,
        mut commands: mpsc::Receiver<Command>,
        reloads: Reloads,
        stop: impl Future<Output = ()>,
    ) -> Result<(), StartError> {
        let attention = self.events.attention().map_err(StartError::Poll)?;
        let ring = {
            // SAFETY: an owned descriptor keeps its number until it is dropped, and the loop owns it.
            unsafe { AsyncFd::register_with_interest(attention, Interest::READABLE) }
                .map_err(|error| StartError::Poll(error.into_parts().1))?
        };
        let mut heartbeat = time::interval(HEARTBEAT);
        heartbeat.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
        let (names, mut resolved) = mpsc::channel(1);
        let follow = self
            .names
            .take()
            .map(|names_of| tokio::spawn(names_of.follow(names)));
        let (reloaded, mut configurations) = mpsc::channel(1);
        let reloads = tokio::spawn(reloads.follow(reloaded));
        tokio::pin!(stop);
        loop {
            let deadline = self.deadline();
            // What keeps time comes first: a busy ring must not put it off.
            tokio::select! {
                biased;
                () = &mut stop => break,
                _ = heartbeat.tick() => self.on_heartbeat(),
                () = time::sleep(deadline.since(kernel::now())) => self.on_time(),
                ready = ring.readable() => {
                    ready.map_err(StartError::Poll)?.clear_ready();
                    self.drain();
                }
                Some(command) = commands.recv() => self.command(command),
                Some(endpoints) = resolved.recv() => {
                    self.lanes.set_endpoints(endpoints, &mut self.tables);
                }
                Some(reloaded) = configurations.recv() => self.reload(reloaded),
            }
        }
        reloads.abort();
        if let Some(follow) = follow {
            follow.abort();
        }
        self.finish();
        if let Some(recorder) = self.recorder.take() {
            recorder.finish();
        }
        self.finish_history();
        self.detach();
        Ok(())
    }

    /// Handles what the kernel has told, a turn's worth at most.
    fn drain(&mut self) {
        for _ in 0..TURN {
            let Some(message) = self.events.next() else {
                self.backlog = false;
                return;
            };
            self.kernel_message(&message);
            if let Message::Event(event) = &message {
                self.record_event(event);
            }
        }
        self.backlog = true;
    }

    fn on_time(&mut self) {
        if self.backlog {
            self.drain();
        }
        let now = kernel::now();
        self.policy.tick(now, &mut self.actions);
        self.carry_out(now);
        let given_up = self.nudges.tick(now, &self.tables, &mut self.namespaces);
        for id in given_up {
            self.end_socket(id);
        }
        self.park_idle(now);
    }

    fn on_heartbeat(&mut self) {
        self.heartbeat();
        self.drain();
        self.on_time();
        let now = kernel::now();
        self.watchdog.feed(now);
        self.hand_history_over(now);
        self.tell_left_out(now);
        if now.since(self.reconciled) >= RECONCILE {
            self.reconciled = now;
            self.count_lost_news();
            let doubtful = self.reconcile(now);
            self.drift.doubt(doubtful);
            self.mend_counts();
            self.free_vanished(now);
            self.bury_lanes(now);
            self.refresh_classes();
            self.preexisting.refresh(&self.classes);
        }
    }

    fn refresh_classes(&mut self) {
        if let Err(error) = self.classes.refresh(&mut self.tables, &mut self.programs) {
            warn!(%error, "a class cgroup is not governed");
        }
    }

    fn heartbeat(&self) {
        self.tables.globals().heartbeat_ns.store(kernel::now().0);
    }

    fn deadline(&self) -> Ns {
        if self.backlog {
            return Ns(0);
        }
        let deadlines = [
            self.policy.next_deadline(),
            self.nudges.next_deadline(),
            self.parking.next_deadline(),
            self.lingering.next_deadline(),
        ];
        deadlines
            .into_iter()
            .flatten()
            .min()
            .unwrap_or(kernel::now() + HEARTBEAT)
    }

    fn set_globals(&self, config: &Config) {
        let globals = self.tables.globals();
        globals.abi_version.store(ABI_VERSION);
        globals
            .fail_after_ns
            .store(config.settings.fail_after.as_nanos() as u64);
        globals
            .on_loss
            .store(config.settings.on_controller_loss as u32);
    }

    fn set_lane(&mut self, config: LaneConfig) -> Result<(), LaneError> {
        let now = kernel::now();
        let (name, rules) = (config.name.clone(), config.rules.clone());
        let id = self.lanes.set(config, &self.tables, &self.metrics)?;
        self.policy
            .set_lane(now, id, &name, rules, &mut self.actions);
        self.accounts.recap(id, &self.policy, &self.tables);
        self.carry_out(now);
        Ok(())
    }

    /// Lets everything that waits go, in the kernel's order of trust: first the programs stop holding, then each held
    /// SYN is sent.
    fn finish(&mut self) {
        let globals = self.tables.globals();
        globals.on_loss.store(OnLoss::Open as u32);
        globals.heartbeat_ns.store(0);
        let now = kernel::now();
        let waiting: Vec<_> = self
            .tables
            .views()
            .filter(|view| view.gate().waits())
            .map(|view| view.id)
            .collect();
        for id in &waiting {
            self.let_go(now, *id);
        }
        info!(
            let_go = waiting.len(),
            "stopped: nothing is governed any more"
        );
    }

    /// Detaches all programs and removes the class cgroups made at the start that are empty.
    pub fn detach(self) {
        let Self {
            programs, classes, ..
        } = self;
        drop(programs);
        classes.remove_created();
    }
}
