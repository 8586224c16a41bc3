//! The loop: events from the kernel into the policy, the policy's actions back into the kernel.
//!
//! The only place that knows both. It is single-threaded and owns all state; everything else reaches it through the
//! [`Handle`](crate::handle::Handle).

mod accounts;
mod adopt;
mod carry_out;
mod census;
mod changes;
mod classes;
mod commands;
mod dns;
mod drift;
mod glimpse;
mod hidden;
mod history;
mod lanes;
mod leave;
mod lingering;
mod memory;
pub(crate) mod message;
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
mod stillness;
mod translate;
mod turned_away;
mod vanished;

use std::{collections::HashSet, io, sync::Arc, time::Duration};

use shaper_common::{ABI_VERSION, Endpoint, Event as KernelEvent, OnLoss, RING_BYTES};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{mpsc, watch},
    time,
};
use tracing::warn;

pub use classes::{ClassCgroups, remove_unused};
pub use lanes::LaneError;
pub use leave::{Leave, let_everyone_go};
pub use record::Recorder;
pub use reload::{Reloaded, Reloads};

use self::{
    accounts::Accounts,
    adopt::MOMENT,
    commands::Then,
    dns::{Answers, Following},
    drift::Drift,
    hidden::Hidden,
    history::History,
    lanes::Lanes,
    lingering::Lingering,
    names::{LaneEndpoints, Names},
    nudge::Nudges,
    parking::Parking,
    preexisting::Preexisting,
    stillness::Stillness,
    vanished::Vanished,
};
use crate::{
    authority::Authority,
    config::{Config, LaneConfig, Settings},
    format,
    handle::Command,
    kernel::{
        self, CgroupRoot, Events, HEARTBEAT, Heart, KernelError, Loaded, Message, Namespaces,
        PinnedSet, Programs, Tables,
    },
    metrics::Metrics,
    policy::{Action, Ns, Policy},
    state::StateKeeper,
    systemd::notify::Watchdog,
};

/// Time between two rounds in which the policy's picture, the maps and the sockets are compared.
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

/// What a controller starts from.
pub struct Start {
    pub loaded: Loaded,
    /// Whether the maps are an earlier controller's.
    pub adopted: bool,
    /// Sets of maps and programs that this one replaces.
    pub replaced: Vec<PinnedSet>,
    /// What it does when it is told to end.
    pub leave: Leave,
    pub state: StateKeeper,
    /// Given up last.
    pub authority: Authority,
}

/// Waits for `deadline`, for ever if there is none. What is due is not left to the runtime's timers, which count whole
/// milliseconds and round up: a waiter would wait for that. The runtime looks at everything else in between.
async fn until(deadline: Option<Ns>) {
    let Some(deadline) = deadline else {
        return std::future::pending().await;
    };
    let wait = deadline.since(kernel::now());
    if wait.is_zero() {
        tokio::task::yield_now().await;
    } else {
        time::sleep(wait).await;
    }
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
    stillness: Stillness,
    vanished: Vanished,
    hidden: Hidden,
    /// The ring holds more than one turn's worth.
    backlog: bool,
    metrics: Arc<Metrics>,
    actions: Vec<Action>,
    /// For [`Names`].
    configured: watch::Sender<Vec<LaneConfig>>,
    in_use: watch::Sender<HashSet<Endpoint>>,
    names: Option<Names>,
    following: Following,
    answers: mpsc::Sender<Answers>,
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
    leave: Leave,
    /// Beats until the loop does.
    heart: Option<Heart>,
    /// To be removed once the loop runs.
    replaced: Vec<PinnedSet>,
}

impl Controller {
    /// Attaches the programs and sets the lanes up. From then on the classes are governed.
    ///
    /// # Errors
    /// [`StartError`]; nothing that this start has attached or made stays.
    pub async fn start(
        start: Start,
        config: &Config,
        metrics: Arc<Metrics>,
    ) -> Result<Self, StartError> {
        let root = CgroupRoot::find()?;
        let Start {
            authority,
            loaded,
            adopted,
            replaced,
            leave,
            state,
        } = start;
        let Loaded {
            programs,
            mut tables,
            events,
            heart,
        } = loaded;
        let mut lanes = Lanes::default();
        if adopted {
            // The programs give lanes what they learn from answers. What they added after this look, nobody would ever remove.
            tables.globals().dns_netns.store(0);
            time::sleep(MOMENT).await;
            lanes.adopt(&tables)?;
        } else {
            tables.offer_all_records()?;
        }
        let (configured, lanes_watch) = watch::channel(config.lanes.clone());
        let (in_use, in_use_watch) = watch::channel(HashSet::new());
        let (answers, heard) = mpsc::channel(1);
        let mut names = Names::new(lanes_watch, in_use_watch, heard);
        names.remember(&lanes.adopted_endpoints());
        let endpoints = names.look_up().await;
        let classes = ClassCgroups::new(
            root.clone(),
            config.settings.scope,
            &config.settings.classes,
            authority,
        );
        let mut controller = Self {
            programs,
            tables,
            events,
            namespaces: Namespaces::default(),
            accounts: Accounts::new(root),
            classes,
            lanes,
            policy: Policy::new(),
            nudges: Nudges::default(),
            parking: Parking::default(),
            lingering: Lingering::default(),
            preexisting: Preexisting::default(),
            drift: Drift::default(),
            stillness: Stillness::default(),
            vanished: Vanished::default(),
            hidden: Hidden::default(),
            backlog: false,
            metrics,
            actions: Vec::new(),
            configured,
            in_use,
            names: Some(names),
            following: Following::default(),
            answers,
            reconciled: kernel::now(),
            loaded: config.clone(),
            started: config.settings.clone(),
            last_reload_error: None,
            recorder: None,
            history: History::new(),
            state,
            watchdog: Watchdog::from_environment(),
            leave,
            heart: Some(heart),
            replaced,
        };
        if let Err(error) = controller.set_up(config, endpoints) {
            controller.abandon(adopted);
            return Err(error);
        }
        Ok(controller)
    }

    /// What can fail comes first. Lanes get their endpoints last: a pause holds from the first connect on.
    fn set_up(&mut self, config: &Config, endpoints: LaneEndpoints) -> Result<(), StartError> {
        self.classes.adopt(&mut self.programs)?;
        self.classes.create()?;
        self.classes.refresh(&mut self.tables, &mut self.programs)?;
        self.classes.forget_others(&mut self.tables);
        self.set_globals(config);
        self.adopt(&config.lanes)?;
        self.lanes.set_endpoints(endpoints, &mut self.tables);
        self.tables.follow_nothing();
        self.follow_names();
        self.preexisting = Preexisting::find(&self.classes, &self.lanes, &self.tables);
        Ok(())
    }

    /// Runs until `stop` is done or `shaper detach` asks for the end, and leaves as it is to.
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
                () = until(deadline) => self.on_time(),
                ready = ring.readable() => {
                    ready.map_err(StartError::Poll)?.clear_ready();
                    self.drain();
                }
                Some(command) = commands.recv() => {
                    if self.command(command) == Then::End {
                        break;
                    }
                }
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
        if let Some(recorder) = self.recorder.take() {
            recorder.finish();
        }
        self.finish_history();
        self.finish();
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

    /// Reads on before a picture, so that it overtakes little news: as much as fits into the ring, for more may come all the
    /// time.
    fn empty_ring(&mut self) {
        const MOST: usize = (RING_BYTES as usize / size_of::<KernelEvent>()).div_ceil(TURN);
        for _ in 0..MOST {
            if !self.backlog {
                return;
            }
            self.drain();
            self.heartbeat();
        }
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
        self.tell_of_absence();
        self.heartbeat();
        if let Some(heart) = self.heart.take() {
            heart.hand_over();
            self.settle();
        }
        self.drain();
        self.on_time();
        self.end_hidden();
        let now = kernel::now();
        self.watchdog.feed(now);
        self.hand_history_over(now);
        self.tell_left_out(now);
        if now.since(self.reconciled) >= RECONCILE {
            self.reconciled = now;
            self.empty_ring();
            self.count_lost_news();
            if self.may_have_drifted(now) {
                self.compare(now);
            }
            self.heartbeat();
            self.free_vanished(now);
            self.bury_lanes(now);
            self.hear_answers(now);
            self.tell_degraded(now);
            self.refresh_classes();
            self.preexisting.refresh(&self.classes);
        }
    }

    /// Compares the policy's picture and the counts with the records.
    fn compare(&mut self, now: Ns) {
        let doubtful = self.reconcile(now);
        self.heartbeat();
        let is_settled = doubtful.is_empty();
        self.drift.doubt(doubtful);
        self.mend_counts();
        if !is_settled || self.drift.is_pending() || self.accounts.is_retiring() {
            self.stillness.moved();
        }
    }

    fn refresh_classes(&mut self) {
        if let Err(error) = self.classes.refresh(&mut self.tables, &mut self.programs) {
            warn!(%error, "a class cgroup is not governed");
        }
    }

    /// Tells when this controller has counted as gone: stopped by a signal, or on an overloaded host.
    fn tell_of_absence(&self) {
        let globals = self.tables.globals();
        let silence = kernel::now().since(Ns(globals.heartbeat_ns.load()));
        if silence.as_nanos() >= u128::from(globals.fail_after_ns.load())
            && globals.on_loss.load() == OnLoss::Open as u32
        {
            warn!(
                silence = %format::duration(silence),
                "this controller gave no sign of life for longer than `fail_after`, so the gates were open; what passed then \
                 is not governed until its connection ends (`shaper_ungoverned_total`)"
            );
        }
    }

    /// A sign of life. Also between the steps of a round, which are long where very many connections are.
    fn heartbeat(&self) {
        self.tables.globals().heartbeat_ns.store(kernel::now().0);
    }

    /// When the loop has something to do, unless something happens first.
    fn deadline(&self) -> Option<Ns> {
        if self.backlog {
            return Some(Ns(0));
        }
        let deadlines = [
            self.policy.next_deadline(),
            self.nudges.next_deadline(),
            self.parking.next_deadline(),
            self.lingering.next_deadline(),
        ];
        deadlines.into_iter().flatten().min()
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
        self.stillness.moved();
        let (name, rules) = (config.name.clone(), config.rules.clone());
        let id = self.lanes.set(config, &self.tables, &self.metrics)?;
        self.policy
            .set_lane(now, id, &name, rules, &mut self.actions);
        self.accounts.recap(id, &self.policy, &self.tables);
        self.carry_out(now);
        Ok(())
    }
}
