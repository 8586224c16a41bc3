//! What every scenario stands on: root, cgroup v2, a turn on the machine, and cgroups of its own.

use std::env;
use std::fs::File;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;

use crate::cgroup::{Cgroup, CgroupTree};
use crate::clock::poll_until;

/// The ground of one scenario. One stage exists at a time on a machine: scenarios measure time and count
/// programs in the kernel, and would disturb each other.
#[derive(Debug)]
pub struct Stage {
    pub interactive: Cgroup,
    pub default: Cgroup,
    pub bulk: Cgroup,
    /// A cgroup that no class names.
    pub outside: Cgroup,
    tree: CgroupTree,
    _turn: Flock<File>,
}

impl Stage {
    /// Waits for its turn and prepares the cgroups.
    ///
    /// # Errors
    /// If the test does not run as root or cgroup v2 is missing: a scenario that cannot run has failed, it has not
    /// been skipped.
    pub fn set() -> Result<Self> {
        ensure!(
            geteuid().is_root(),
            "end-to-end scenarios load kernel programs and make cgroups and namespaces: run them as root"
        );
        let turn = take_turn()?;
        let tree = CgroupTree::create()?;
        Ok(Self {
            interactive: tree.group("interactive")?,
            default: tree.group("default")?,
            bulk: tree.group("bulk")?,
            outside: tree.group("outside")?,
            tree,
            _turn: turn,
        })
    }

    pub fn cgroups(&self) -> &CgroupTree {
        &self.tree
    }
}

fn take_turn() -> Result<Flock<File>> {
    const PATIENCE: Duration = Duration::from_secs(600);
    let path = env::temp_dir().join("shaper-test-turn.lock");
    let mut file =
        Some(File::create(&path).with_context(|| format!("cannot create {}", path.display()))?);
    poll_until(PATIENCE, || {
        match Flock::lock(file.take()?, FlockArg::LockExclusiveNonblock) {
            Ok(turn) => Some(Ok(turn)),
            Err((unlocked, Errno::EWOULDBLOCK)) => {
                file = Some(unlocked);
                None
            }
            Err((_, error)) => Some(Err(error)),
        }
    })
    .ok_or_else(|| {
        anyhow!(
            "another scenario holds {} since {PATIENCE:?}",
            path.display()
        )
    })?
    .with_context(|| format!("cannot lock {}", path.display()))
}

/// How long scenarios hold connects that only have to be held "for a while": 3 s, or the promise's 20 s with
/// `SHAPER_LONG=1`.
pub fn a_while() -> Duration {
    match Scale::asked() {
        Scale::Full => Duration::from_secs(20),
        Scale::Brief => Duration::from_secs(3),
    }
}

/// How much of a promise a scenario shows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scale {
    /// All of it, as `SHAPER_LONG=1` asks for: the promise's own numbers, on a machine that has nothing else to do.
    Full,
    /// Fewer, shorter, with bounds for machines that are busy.
    Brief,
}

impl Scale {
    pub fn asked() -> Self {
        match env::var_os("SHAPER_LONG") {
            Some(long) if long == "1" => Self::Full,
            _ => Self::Brief,
        }
    }

    /// The value for this scale.
    pub fn pick<T>(self, full: T, brief: T) -> T {
        match self {
            Self::Full => full,
            Self::Brief => brief,
        }
    }
}
