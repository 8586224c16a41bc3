//! The kernel's own list of programs, to tell that nothing was left behind.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::cgroup::CgroupTree;
use crate::clock::poll_until;

/// A loaded program of a kind that shaper loads.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd)]
pub struct Program {
    pub id: u32,
    #[serde(default)]
    pub name: String,
    #[serde(rename = "type")]
    kind: String,
}

/// The programs that were loaded at one time.
#[derive(Clone, Debug)]
pub struct LoadedPrograms(BTreeSet<Program>);

impl LoadedPrograms {
    pub fn now() -> Result<Self> {
        const KINDS: [&str; 3] = ["cgroup_skb", "cgroup_sock_addr", "sock_ops"];
        let loaded: Vec<Program> = bpftool(&["prog", "show"])?;
        let ours = |program: &Program| {
            // The service manager loads firewalls of its own at any time.
            KINDS.contains(&program.kind.as_str()) && !program.name.starts_with("sd_")
        };
        Ok(Self(loaded.into_iter().filter(ours).collect()))
    }

    /// Waits until every program loaded since is gone. The kernel frees programs a moment after their last user
    /// has gone.
    ///
    /// # Errors
    /// If some are still there after two seconds; the message lists them.
    pub fn ensure_nothing_more(&self) -> Result<()> {
        ensure_becomes_empty("loaded", || {
            Ok(Self::now()?.0.difference(&self.0).cloned().collect())
        })
    }

    /// As [`LoadedPrograms::ensure_nothing_more`], and that nothing is attached in the scenario's cgroups.
    pub fn ensure_nothing_left(&self, cgroups: &CgroupTree) -> Result<()> {
        ensure_becomes_empty("attached", || attached_under(cgroups.path()))?;
        self.ensure_nothing_more()
    }
}

fn ensure_becomes_empty<T: Debug>(
    what: &str,
    mut look: impl FnMut() -> Result<Vec<T>>,
) -> Result<()> {
    const PATIENCE: Duration = Duration::from_secs(2);
    let mut left = look()?;
    poll_until(PATIENCE, || {
        if left.is_empty() {
            return Some(Ok(()));
        }
        look().map(|now| left = now).err().map(Err)
    })
    .unwrap_or(Ok(()))?;
    ensure!(left.is_empty(), "still {what}: {left:?}");
    Ok(())
}

/// The names of the programs attached to a cgroup or to one below it.
pub fn attached_under(cgroup: &Path) -> Result<Vec<String>> {
    #[derive(Deserialize)]
    struct Attached {
        #[serde(default)]
        name: String,
        attach_type: String,
    }
    #[derive(Deserialize)]
    struct Group {
        programs: Vec<Attached>,
    }
    let path = cgroup.to_str().context("cgroup paths are text")?;
    let groups: Vec<Group> = bpftool(&["cgroup", "tree", path])?;
    Ok(groups
        .into_iter()
        .flat_map(|group| group.programs)
        .map(|attached| format!("{} at {}", attached.name, attached.attach_type))
        .collect())
}

fn bpftool<T: DeserializeOwned>(arguments: &[&str]) -> Result<T> {
    let output = Command::new("bpftool")
        .arg("--json")
        .args(arguments)
        .output()
        .context("cannot run `bpftool`: install the package of that name")?;
    let printed = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "`bpftool {}` failed: {printed}{}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_str(&printed).with_context(|| {
        format!(
            "cannot read the output of `bpftool {}`",
            arguments.join(" ")
        )
    })
}
