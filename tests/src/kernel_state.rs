//! What the kernel itself says, asked through `bpftool`: its list of programs, to tell that nothing was left behind, and
//! the words that shaper's programs count in.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs;
use std::io::ErrorKind;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::unistd::Pid;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use shaper_common::{
    Account, CLASS_COUNT, Conn, Gate, GateWord, Lane, MAX_ACCOUNTS, MAX_CONNS, MAX_LANES, SlotWord,
};

use crate::cgroup::CgroupTree;
use crate::clock::poll_until;
use crate::map_memory::MapMemory;

/// A loaded program of a kind that shaper loads.
#[derive(Clone, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd)]
pub struct Program {
    pub id: u32,
    #[serde(default)]
    pub name: String,
    #[serde(rename = "type")]
    kind: String,
    /// As the kernel runs it before its own compiler; absent without the privilege to know.
    #[serde(default)]
    pub bytes_xlated: u64,
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

/// What is pinned of an instance: its sets of maps and links. The file system is where everybody mounts it.
pub fn pins(instance: &str) -> Result<Vec<PathBuf>> {
    let directory = Path::new("/sys/fs/bpf/shaper").join(instance);
    match fs::read_dir(&directory) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
        entries => entries
            .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
            .with_context(|| format!("cannot read {}", directory.display())),
    }
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
    /// Nobody is in flight and nobody waits.
    pub fn is_quiet(&self) -> bool {
        let nobody = Self {
            connects: self.connects,
            ..Self::default()
        };
        *self == nobody
    }

    fn read(lane: &[u8]) -> Self {
        let number = |offset: usize| u32::from_ne_bytes(field(lane, offset));
        let numbers = |offset: usize| -> [u32; CLASS_COUNT] {
            std::array::from_fn(|index| number(offset + size_of::<u32>() * index))
        };
        let word = u64::from_ne_bytes(field(lane, offset_of!(Lane, slots)));
        Self {
            slots: SlotWord::from_bits(word).slots(),
            queued: number(offset_of!(Lane, queued)),
            waiting: numbers(offset_of!(Lane, waiting)),
            class_slots: numbers(offset_of!(Lane, class_slots)),
            connects: numbers(offset_of!(Lane, connects)).iter().sum(),
        }
    }
}

fn field<const SIZE: usize>(element: &[u8], offset: usize) -> [u8; SIZE] {
    let bytes = element.get(offset..offset + SIZE);
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .expect("an element is as long as its type")
}

/// The maps of one controller.
#[derive(Debug)]
pub struct Maps {
    lanes: u32,
    accounts: u32,
    bytes: u64,
    account_index: u32,
    conns: u32,
}

impl Maps {
    /// Finds them among what the controller's programs use. It maps some of them and keeps no descriptor then.
    pub fn of(controller: Pid) -> Result<Self> {
        #[derive(Deserialize)]
        struct Map {
            id: u32,
            #[serde(default)]
            name: String,
            #[serde(default)]
            bytes_memlock: u64,
        }
        #[derive(Deserialize)]
        struct User {
            id: u32,
            #[serde(default)]
            map_ids: BTreeSet<u32>,
        }
        let open = open_programs(controller)?;
        let programs: Vec<User> = bpftool(&["prog", "show"])?;
        let mut maps: Vec<Map> = bpftool(&["map", "show"])?;
        let used: BTreeSet<u32> = programs
            .into_iter()
            .filter(|program| open.contains(&program.id))
            .flat_map(|program| program.map_ids)
            .collect();
        maps.retain(|map| used.contains(&map.id));
        let named = |name: &str| {
            maps.iter()
                .find(|map| map.name == name)
                .map(|map| map.id)
                .with_context(|| format!("process {controller} has no map {name}"))
        };
        Ok(Self {
            lanes: named("LANES")?,
            accounts: named("ACCOUNTS")?,
            account_index: named("ACCOUNT_INDEX")?,
            conns: named("CONNS")?,
            bytes: maps.iter().map(|map| map.bytes_memlock).sum(),
        })
    }

    /// The memory that all of them take in the kernel, in bytes. What is kept in the sockets themselves is not part of
    /// it (`bpf_local_storage_map_mem_usage`).
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The words of all lanes in memory, to be changed behind the controller's back.
    pub fn lanes(&self) -> Result<MapMemory> {
        MapMemory::of(self.lanes, size_of::<Lane>(), MAX_LANES)
    }

    /// The accounts' elements in memory.
    pub fn accounts(&self) -> Result<MapMemory> {
        MapMemory::of(self.accounts, size_of::<Account>(), MAX_ACCOUNTS)
    }

    /// How many connection records are in use.
    pub fn records_in_use(&self) -> Result<usize> {
        let conns = MapMemory::of(self.conns, size_of::<Conn>(), MAX_CONNS)?;
        let gate = |index| {
            GateWord::from_bits(
                conns
                    .u64(index, offset_of!(Conn, gate))
                    .load(Ordering::SeqCst),
            )
        };
        let in_use = |index: &u32| gate(*index).gate() != Gate::Free;
        Ok((0..MAX_CONNS).filter(in_use).count())
    }

    /// How many accounts have an element.
    pub fn known_accounts(&self) -> Result<usize> {
        let entries: Vec<serde_json::Value> =
            bpftool(&["map", "dump", "id", &self.account_index.to_string()])?;
        Ok(entries.len())
    }

    /// The counts of the lane that was configured first.
    pub fn first_lane(&self) -> Result<LaneWords> {
        let lanes = dump(self.lanes)?;
        let lane = lanes.first().context("there are no lanes")?;
        Ok(LaneWords::read(lane))
    }

    /// The slots of every account that has some.
    pub fn account_slots(&self) -> Result<Vec<u32>> {
        let accounts = dump(self.accounts)?;
        let slots = accounts
            .iter()
            .map(|account| u32::from_ne_bytes(field(account, offset_of!(Account, slots))));
        Ok(slots.filter(|&slots| slots > 0).collect())
    }
}

/// Detaches some of a controller's programs from wherever they are attached, as a mistaken operator or another tool may.
pub fn detach(controller: Pid, names: &[&str]) -> Result<()> {
    #[derive(Deserialize)]
    struct Link {
        id: u32,
        prog_id: u32,
    }
    let open = open_programs(controller)?;
    let loaded: Vec<Program> = bpftool(&["prog", "show"])?;
    // The kernel keeps 15 characters of a name.
    let meant = |program: &Program| {
        open.contains(&program.id) && names.iter().any(|name| name.starts_with(&program.name))
    };
    let meant: BTreeSet<u32> = loaded
        .iter()
        .filter(|program| meant(program))
        .map(|program| program.id)
        .collect();
    let links: Vec<Link> = bpftool(&["link", "show"])?;
    let links: Vec<_> = links
        .iter()
        .filter(|link| meant.contains(&link.prog_id))
        .collect();
    ensure!(!links.is_empty(), "none of {names:?} is attached");
    for link in links {
        let _: serde_json::Value = bpftool(&["link", "detach", "id", &link.id.to_string()])?;
    }
    Ok(())
}

fn open_programs(process: Pid) -> Result<BTreeSet<u32>> {
    let directory = format!("/proc/{process}/fdinfo");
    let files = fs::read_dir(&directory).with_context(|| format!("cannot read {directory}"))?;
    // A file may have been closed since.
    let told = files
        .flatten()
        .filter_map(|file| fs::read_to_string(file.path()).ok());
    let id = |text: String| {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix("prog_id:")?.trim().parse().ok())
    };
    Ok(told.filter_map(id).collect())
}

/// A packet program of a controller.
#[derive(Clone, Debug)]
pub struct PacketProgram {
    id: String,
}

impl PacketProgram {
    pub fn of(controller: Pid, name: &str) -> Result<Self> {
        let open = open_programs(controller)?;
        let loaded: Vec<Program> = bpftool(&["prog", "show"])?;
        // The kernel keeps 15 characters of a name.
        let id = loaded
            .iter()
            .find(|program| open.contains(&program.id) && name.starts_with(program.name.as_str()))
            .map(|program| program.id.to_string())
            .with_context(|| format!("process {controller} has not loaded {name}"))?;
        Ok(Self { id })
    }

    /// Its verdict on the Ethernet frame in a file.
    pub fn run(&self, frame: &Path) -> Result<u32> {
        #[derive(Deserialize)]
        struct Run {
            retval: u32,
        }
        let frame = frame.to_str().context("paths are text")?;
        let run: Run = bpftool(&["prog", "run", "id", &self.id, "data_in", frame])?;
        Ok(run.retval)
    }
}

/// The elements of an array map, by index.
fn dump(map: u32) -> Result<Vec<Vec<u8>>> {
    #[derive(Deserialize)]
    struct Element {
        value: Vec<String>,
    }
    let elements: Vec<Element> = bpftool(&["map", "dump", "id", &map.to_string()])?;
    elements
        .iter()
        .map(|element| element.value.iter().map(|byte| hexadecimal(byte)).collect())
        .collect()
}

fn hexadecimal(byte: &str) -> Result<u8> {
    let digits = byte.trim_start_matches("0x");
    u8::from_str_radix(digits, 16).with_context(|| format!("{byte:?} is no byte"))
}

pub(crate) fn bpftool<T: DeserializeOwned>(arguments: &[&str]) -> Result<T> {
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
