//! The configuration: `shaper.toml` and one file per lane in `lanes.d/`, read with all that is wrong reported at once.

pub mod account;
mod change;
mod diagnostic;
mod endpoint;
mod files;
pub(crate) mod keys;
mod kind;
mod lane;
mod overlap;
mod reader;
pub mod resolve;
mod settings;
mod suggest;
mod watch;

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use shaper_common::{CLASS_COUNT, Class, MAX_LANES, OnLoss};

pub use change::{InvalidChange, InvalidSetting, Remark, Setting, listed};
pub use diagnostic::{ConfigErrors, Diagnostic, Position, Severity};
pub use endpoint::{EndpointError, EndpointNote, EndpointSpec, HostPort};
pub use files::{DEFAULT_DIR, Files, Origin, TextFile};
pub use keys::{ANY_CLASS, Documented, LANE, Presence, SETTINGS, Schema};
pub use kind::{Form, human};
pub use settings::is_pattern;
pub use watch::Watch;

use crate::{policy::LaneRules, systemd};

/// A configuration without errors.
///
/// Equal to another if it means the same: comments, order, spellings, line numbers and warnings do not count, so a
/// reload that changes none of the values is one that changes nothing.
#[derive(Clone, Debug)]
pub struct Config {
    pub origin: Origin,
    pub settings: Settings,
    /// In the order of their names, which are unique.
    pub lanes: Vec<LaneConfig>,
    /// What may not do what its author meant.
    pub warnings: Vec<Diagnostic>,
}

impl PartialEq for Config {
    fn eq(&self, other: &Self) -> bool {
        self.settings == other.settings && self.lanes == other.lanes
    }
}

impl Config {
    /// Reads the text of configuration files. Pure: [`load`] without the file system.
    ///
    /// # Errors
    /// Everything that is wrong in any of the files.
    pub fn parse(files: &Files) -> Result<Self, ConfigErrors> {
        let mut diagnostics = Vec::new();
        let settings = match &files.settings {
            Some(file) => settings::parse(file, &mut diagnostics),
            None => Settings::default(),
        };
        let parsed: Vec<_> = files
            .lanes
            .iter()
            .filter_map(|file| lane::parse(file, &mut diagnostics))
            .collect();
        diagnostics.extend(overlap::find(&parsed));
        if let Some(file) = files.lanes.get(MAX_LANES as usize) {
            let what = format!("is one lane too many of {}", files.lanes.len());
            diagnostics.push(Diagnostic::of_file(
                &file.path,
                what,
                &format!("at most {MAX_LANES} lanes"),
            ));
        }
        if diagnostics.iter().any(Diagnostic::is_error) {
            return Err(ConfigErrors::new(diagnostics));
        }
        let mut lanes: Vec<_> = parsed.into_iter().map(|parsed| parsed.lane).collect();
        lanes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(Self {
            origin: files.origin.clone(),
            settings,
            lanes,
            warnings: diagnostics,
        })
    }
}

/// Loads the configuration in `dir`. `None`: in [`DEFAULT_DIR`], or the built-in example lanes if that is absent.
///
/// # Errors
/// Everything that is wrong with the directory and its files.
pub fn load(dir: Option<&Path>) -> Result<Config, ConfigErrors> {
    let files = match dir {
        Some(dir) => Files::read(dir)?,
        None => Files::read_or_embedded(Path::new(DEFAULT_DIR))?,
    };
    let mut config = Config::parse(&files)?;
    config.settings.live_in(systemd::class_cgroup);
    Ok(config)
}

/// What concerns all lanes.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Where metrics, the snapshot and the live page are served.
    pub listen: SocketAddr,
    /// The file with the token for changes over HTTP; `None`: HTTP changes nothing.
    pub token_file: Option<PathBuf>,
    pub scope: Scope,
    /// Whether what processes resolve is followed, besides the controller's own look-ups.
    pub follow_dns: bool,
    pub on_controller_loss: OnLoss,
    /// Age of the controller's last sign of life at which it counts as gone. At least a second.
    pub fail_after: Duration,
    /// How far back the history goes. At least an hour.
    pub history: Duration,
    /// By class.
    pub classes: [ClassConfig; CLASS_COUNT],
}

impl Settings {
    /// Lets the classes that nobody has said otherwise of live where `home` says, if it does.
    fn live_in(&mut self, home: impl Fn(Class) -> Option<String>) {
        for class in Class::ALL {
            let config = &mut self.classes[class.index()];
            if config.by_default
                && let Some(home) = home(class)
            {
                config.cgroups = vec![home];
            }
        }
    }
}

/// Who is governed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Processes in a class cgroup.
    Classes,
    /// Every process on the host; those in no class cgroup are class default.
    Host,
}

/// Where a class lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassConfig {
    /// Paths relative to the cgroup2 mount, without a slash at either end; valid patterns of the `glob` crate. Sorted.
    pub cgroups: Vec<String>,
    /// Nobody has said where it lives.
    pub by_default: bool,
}

/// One lane as configured.
#[derive(Clone, Debug)]
pub struct LaneConfig {
    /// Of `[a-z0-9][a-z0-9_-]*`, at most 63 characters.
    pub name: String,
    /// At least one; sorted, and none overlaps another of any lane.
    pub endpoints: Vec<EndpointSpec>,
    pub rules: LaneRules,
    pub on_full: OnFull,
    pub udp: Udp,
    /// What the file says, for changing one key of it.
    said: change::Said,
}

/// How it is said does not count, only what it means.
impl PartialEq for LaneConfig {
    fn eq(&self, other: &Self) -> bool {
        let Self {
            name,
            endpoints,
            rules,
            on_full,
            udp,
            said: _,
        } = self;
        *name == other.name
            && *endpoints == other.endpoints
            && *rules == other.rules
            && *on_full == other.on_full
            && *udp == other.udp
    }
}

impl LaneConfig {
    /// Whether connections may be held, as opposed to only counted.
    pub fn enforces(&self) -> bool {
        !self.rules.observes()
    }
}

/// What `connect()` fails with when the queue is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnFull {
    Refuse,
    Unreachable,
    Timeout,
}

impl OnFull {
    /// The positive errno.
    pub fn errno(self) -> i32 {
        match self {
            Self::Refuse => libc::ECONNREFUSED,
            Self::Unreachable => libc::EHOSTUNREACH,
            Self::Timeout => libc::ETIMEDOUT,
        }
    }

    /// The name of the errno.
    pub fn errno_name(self) -> &'static str {
        match self {
            Self::Refuse => "ECONNREFUSED",
            Self::Unreachable => "EHOSTUNREACH",
            Self::Timeout => "ETIMEDOUT",
        }
    }
}

/// Whether UDP to a lane's endpoints passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Udp {
    /// It does not, so that QUIC cannot bypass the lane.
    Block,
    Allow,
}
