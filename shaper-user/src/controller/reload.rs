//! Reading the configuration again while connections are open: on SIGHUP, and when its files have changed.

use std::{collections::HashSet, fmt, io, path::PathBuf};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::mpsc,
    task::spawn_blocking,
};
use tracing::{debug, info, warn};

use super::{Controller, translate::handle};
use crate::{
    config::{self, Config, ConfigErrors, DEFAULT_DIR, LaneConfig, Origin, Settings, Watch},
    kernel,
    metrics::ReloadResult,
    policy::{Action, LaneId, Ns},
    systemd::notify,
};

/// Why the configuration was read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// SIGHUP.
    Asked,
    /// Its files have changed.
    Noticed,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Asked => "SIGHUP",
            Self::Noticed => "files changed",
        })
    }
}

/// A configuration that was read again, or why it cannot be used.
#[derive(Debug)]
pub struct Reloaded {
    cause: Cause,
    result: Result<Config, ConfigErrors>,
}

/// Reads the configuration again whenever there is reason to.
#[derive(Debug)]
pub struct Reloads {
    origin: Origin,
    hangup: Signal,
    watch: Watch,
}

impl Reloads {
    /// Listens from now on: SIGHUP does not end the process any more.
    ///
    /// # Errors
    /// When SIGHUP cannot be waited for. Files that cannot be watched are no error but a warning.
    pub fn new(origin: Origin) -> io::Result<Self> {
        let dir = match &origin {
            Origin::Directory(dir) => dir.clone(),
            Origin::Embedded => PathBuf::from(DEFAULT_DIR),
        };
        Ok(Self {
            origin,
            hangup: signal(SignalKind::hangup())?,
            watch: Watch::new(dir),
        })
    }

    /// Sends what was read until nobody listens. The files are read outside the runtime's thread, which is the control
    /// loop's: a slow disk must not stop the heartbeat.
    pub async fn follow(mut self, reloaded: mpsc::Sender<Reloaded>) {
        loop {
            let cause = tokio::select! {
                _ = self.hangup.recv() => Cause::Asked,
                () = self.watch.changed() => Cause::Noticed,
            };
            // A directory that was there and is gone is a mistake, not a wish for the example lanes.
            let dir = match &self.origin {
                Origin::Directory(dir) => Some(dir.clone()),
                Origin::Embedded => None,
            };
            let result = match spawn_blocking(move || config::load(dir.as_deref())).await {
                Ok(result) => result,
                Err(error) => {
                    warn!(%error, "the configuration was not read");
                    continue;
                }
            };
            if let Ok(config) = &result {
                self.origin.clone_from(&config.origin);
            }
            notify::reloading();
            if reloaded.send(Reloaded { cause, result }).await.is_err() {
                return;
            }
        }
    }
}

impl Controller {
    /// Puts a configuration that was read again in force. A bad one changes nothing and is shown until a good one comes.
    pub(super) fn reload(&mut self, Reloaded { cause, result }: Reloaded) {
        let outcome = match result {
            Ok(config) if config == self.loaded => Ok(ReloadResult::Unchanged),
            Ok(config) => self.apply(config).map(|()| ReloadResult::Applied),
            Err(errors) => Err(errors.to_string()),
        };
        match &outcome {
            Ok(ReloadResult::Unchanged) if cause == Cause::Noticed => {
                debug!("the configuration is unchanged");
            }
            Ok(ReloadResult::Unchanged) => info!(%cause, "the configuration is unchanged"),
            Ok(_) => info!(
                %cause,
                lanes = self.loaded.lanes.len(),
                enforcing = self.loaded.lanes.iter().filter(|lane| lane.enforces()).count(),
                "the new configuration is in force"
            ),
            Err(error) => {
                warn!(%cause, "the new configuration is rejected, the one before it stays in force:\n{error}");
            }
        }
        self.metrics
            .count_reload(*outcome.as_ref().unwrap_or(&ReloadResult::Rejected));
        self.last_reload_error = outcome.err();
        notify::ready(&self.standing());
    }

    /// What is in force, in a line.
    pub fn standing(&self) -> String {
        let lanes = &self.loaded.lanes;
        let enforced = lanes.iter().filter(|lane| lane.enforces()).count();
        let doubt = match self.last_reload_error {
            Some(_) => "; the latest configuration is rejected, see `shaper status`",
            None => "",
        };
        format!("lanes: {}, enforced: {enforced}{doubt}", lanes.len())
    }

    /// Changes what differs. A lane whose file means the same as before keeps what `shaper set` made of it.
    ///
    /// # Errors
    /// Why nothing of it can be put in force.
    fn apply(&mut self, config: Config) -> Result<(), String> {
        let name_of = |lane: &LaneConfig| lane.name.clone();
        let wanted: HashSet<_> = config.lanes.iter().map(name_of).collect();
        let added = wanted
            .iter()
            .filter(|name| self.lanes.by_name(name).is_none());
        if added.count() > self.lanes.room() {
            return Err(
                "too many lanes: connections of removed lanes are still open, and each lane keeps its place until they \
                 are gone; try again later"
                    .to_owned(),
            );
        }
        self.classes
            .change(&config.settings.classes)
            .map_err(|error| error.to_string())?;

        for warning in &config.warnings {
            warn!("{warning}");
        }
        warn_of_restart(&self.started, &config.settings);
        self.set_globals(&config);
        let removed: Vec<_> = self
            .lanes
            .iter()
            .filter(|(_, lane)| !wanted.contains(&lane.config.name))
            .map(|(id, _)| id)
            .collect();
        for id in removed {
            self.remove_lane(id);
        }
        for lane in &config.lanes {
            if self.loaded.lanes.contains(lane) {
                continue;
            }
            if let Err(error) = self.set_lane(lane.clone()) {
                warn!(lane = lane.name, %error, "the lane is not in force");
            }
        }
        self.metrics.retain_lanes(&self.lanes.names());
        self.configured.send_replace(config.lanes.clone());
        self.loaded = config;
        self.follow_names();
        // A lane that was removed and is back has connections that its new policy does not know.
        // New to the policy, but no drift.
        let _ = self.reconcile(kernel::now());
        self.refresh_classes();
        Ok(())
    }

    /// Governs the lane no longer and lets its waiters go. Its open connections stay open.
    fn remove_lane(&mut self, id: LaneId) {
        let now = kernel::now();
        let Some(lane) = self.lanes.remove(id, &mut self.tables) else {
            return;
        };
        info!(lane = lane.config.name, "the lane is removed");
        self.policy.remove_lane(now, id, &mut self.actions);
        self.parking.forget_lane(id);
        self.carry_out(now);
    }

    /// Lets connections of removed lanes go that were about to be held when their lane was removed, and frees the
    /// elements of those lanes that have no connection left.
    pub(super) fn bury_lanes(&mut self, now: Ns) {
        if !self.lanes.has_retired() {
            return;
        }
        let mut used = HashSet::new();
        let mut stragglers = Vec::new();
        for view in self.tables.views() {
            let Ok(lane) = u16::try_from(view.record.lane).map(LaneId) else {
                continue;
            };
            if self.lanes.is_retired(lane) {
                used.insert(lane);
                let conn = handle(view.id);
                stragglers.extend(view.gate().waits().then_some(Action::LetGo { lane, conn }));
            }
        }
        self.actions.extend(stragglers);
        self.carry_out(now);
        self.lanes.bury(&used, &self.tables);
    }
}

/// Settings that are only read at the start.
fn warn_of_restart(started: &Settings, wanted: &Settings) {
    let fixed = [
        ("listen", started.listen != wanted.listen),
        ("token_file", started.token_file != wanted.token_file),
        ("scope", started.scope != wanted.scope),
    ];
    for (key, _) in fixed.into_iter().filter(|(_, changed)| *changed) {
        warn!(
            "`{key}` in shaper.toml has changed: that needs a restart of the controller, everything else is in force"
        );
    }
}
