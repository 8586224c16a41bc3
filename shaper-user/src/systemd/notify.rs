//! What the supervisor is told (sd_notify(3), `Type=notify`). Without one, that is without `NOTIFY_SOCKET`, nothing happens.

use std::time::Duration;

use sd_notify::NotifyState;
use tracing::debug;

use crate::policy::Ns;

/// The controller does its work, or does it by the new configuration. `status` is a line for people.
pub fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The configuration was read again and is about to be put in force; [`ready`] follows.
pub fn reloading() {
    // The time tells systemd that this answers its SIGHUP and not an earlier one (`Type=notify-reload`, systemd 253).
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => debug!(%error, "no monotonic clock"),
    }
}

/// The controller lets everything go and ends.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

fn tell(news: &[NotifyState<'_>]) {
    // A supervisor that does not listen must not keep the controller from its work.
    if let Err(error) = sd_notify::notify(news) {
        debug!(%error, "the supervisor was not told");
    }
}

/// Signs of life for a supervisor that restarts what gives none (`WatchdogSec=`).
#[derive(Debug)]
pub struct Watchdog {
    /// `None`: nobody waits for any.
    interval: Option<Duration>,
    fed: Ns,
}

impl Watchdog {
    /// As the supervisor asks for it (`WATCHDOG_USEC`).
    pub fn from_environment() -> Self {
        Self {
            // Half of its patience, as sd_watchdog_enabled(3) advises.
            interval: sd_notify::watchdog_enabled().map(|patience| patience / 2),
            fed: Ns(0),
        }
    }

    /// Gives a sign of life if it is time for one.
    pub fn feed(&mut self, now: Ns) {
        if let Some(interval) = self.interval
            && now.since(self.fed) >= interval
        {
            self.fed = now;
            tell(&[NotifyState::Watchdog]);
        }
    }
}
