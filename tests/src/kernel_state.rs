//! What the kernel itself says, asked through `bpftool`: its list of programs, to tell that nothing was left behind, and
//! the words that shaper's programs count in.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::mem::offset_of;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use shaper_common::{CLASS_COUNT, Lane, SlotWord};

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

/// A lane's counts in the kernel's own words.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LaneWords {
    pub slots: u32,
    pub queued: u32,
    pub waiting: [u32; CLASS_COUNT],
    pub class_slots: [u32; CLASS_COUNT],
    /// Connects that ever reached it.
    pub connects: u32,
}

impl LaneWords {
    /// Of the only lane of the only controller that runs.
    pub fn of_the_only_lane() -> Result<Self> {
        let lane: Vec<u8> = dump("LANES")?
            .into_iter()
            .next()
            .context("LANES is empty")?;
        let number = |offset: usize| {
            let bytes = lane[offset..][..4].try_into().expect("four bytes");
            u32::from_ne_bytes(bytes)
        };
        let numbers = |offset: usize| {
            std::array::from_fn::<u32, CLASS_COUNT, _>(|index| number(offset + 4 * index))
        };
        let word = lane[offset_of!(Lane, slots)..][..8]
            .try_into()
            .expect("eight bytes");
        Ok(Self {
            slots: SlotWord::from_bits(u64::from_ne_bytes(word)).slots(),
            queued: number(offset_of!(Lane, queued)),
            waiting: numbers(offset_of!(Lane, waiting)),
            class_slots: numbers(offset_of!(Lane, class_slots)),
            connects: numbers(offset_of!(Lane, connects)).iter().sum(),
        })
    }

    /// Nobody is in flight and nobody waits.
    pub fn is_quiet(&self) -> bool {
        let nobody = Self {
            connects: self.connects,
            ..Self::default()
        };
        *self == nobody
    }
}

/// The slots of every account that has some.
pub fn account_slots() -> Result<Vec<u32>> {
    let accounts = dump("ACCOUNTS")?;
    let slots = accounts.iter().map(|account| {
        let bytes = account[..4].try_into().expect("an account has four bytes");
        u32::from_ne_bytes(bytes)
    });
    Ok(slots.filter(|&slots| slots > 0).collect())
}

/// The elements of an array map, by index.
fn dump(map: &str) -> Result<Vec<Vec<u8>>> {
    #[derive(Deserialize)]
    struct Element {
        value: Vec<String>,
    }
    let elements: Vec<Element> = bpftool(&["map", "dump", "name", map])?;
    elements
        .iter()
        .map(|element| element.value.iter().map(|byte| hexadecimal(byte)).collect())
        .collect()
}

fn hexadecimal(byte: &str) -> Result<u8> {
    let digits = byte.trim_start_matches("0x");
    u8::from_str_radix(digits, 16).with_context(|| format!("{byte:?} is no byte"))
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
