//! Where shaper keeps its things.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

/// Default of `--config`: `shaper.toml` and `lanes.d/`.
pub const CONFIG_DIR: &str = "/etc/shaper";
/// Default of `--state`: what survives a restart.
pub const STATE_DIR: &str = "/var/lib/shaper";
/// Control sockets and locks, one of each for each instance.
pub const RUN_DIR: &str = "/run/shaper";
/// Pinned maps and links, in the kernel's `bpf` file system.
const PIN_ROOT: &str = "shaper";

/// The name of a controller among others on the same host: a part of the paths of what it owns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Instance(String);

/// The longest name: with it the socket path stays well within the 107 bytes of `sun_path` (unix(7)).
const NAME_MAX: usize = 32;

impl Instance {
    pub fn name(&self) -> &str {
        &self.0
    }

    /// The control socket, `/run/shaper/NAME.sock`.
    pub fn control_socket(&self) -> PathBuf {
        PathBuf::from(RUN_DIR).join(format!("{}.sock", self.0))
    }

    /// What survives a restart of it, `STATE/NAME`.
    pub fn state_dir(&self, state: &Path) -> PathBuf {
        state.join(&self.0)
    }

    /// The history of `shaper stats`, `STATE/NAME/history.redb`.
    pub fn history(&self, state: &Path) -> PathBuf {
        self.state_dir(state).join("history.redb")
    }

    /// The directory of pinned maps and links in the bpf file system at `bpffs`, `/sys/fs/bpf/shaper/NAME`.
    pub fn pin_dir(&self, bpffs: &Path) -> PathBuf {
        bpffs.join(PIN_ROOT).join(&self.0)
    }
}

impl Default for Instance {
    fn default() -> Self {
        Self("default".into())
    }
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no instance name: use 1 to {NAME_MAX} letters, digits, `-` and `_`")]
pub struct InvalidInstance(String);

impl FromStr for Instance {
    type Err = InvalidInstance;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        // No dots and slashes: the name must not lead out of its directory, and bpffs reserves names with a dot.
        let valid = (1..=NAME_MAX).contains(&name.len())
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        if valid {
            Ok(Self(name.into()))
        } else {
            Err(InvalidInstance(name.into()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_has_paths_of_its_own() {
        let instance: Instance = "gpu-2".parse().unwrap();
        assert_eq!(
            instance.control_socket(),
            Path::new("/run/shaper/gpu-2.sock")
        );
        assert_eq!(
            instance.history(Path::new(STATE_DIR)),
            Path::new("/var/lib/shaper/gpu-2/history.redb")
        );
        assert_eq!(
            instance.pin_dir(Path::new("/sys/fs/bpf")),
            Path::new("/sys/fs/bpf/shaper/gpu-2")
        );
        assert_eq!(
            Instance::default().control_socket(),
            Path::new("/run/shaper/default.sock")
        );
    }

    #[test]
    fn a_name_cannot_lead_out_of_its_directory() {
        for name in ["", "..", "a/b", "a.b", "a b", &"x".repeat(33)] {
            assert!(name.parse::<Instance>().is_err(), "{name:?}");
        }
    }
}
