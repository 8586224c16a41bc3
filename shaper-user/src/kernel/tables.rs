//! The maps of a loaded object, as typed memory and a few typed calls.

use std::{io, os::fd::AsFd};

use aya::maps::{HashMap, Map, MapData, PerCpuArray, lpm_trie::LpmTrie, stack::Stack};
use shaper_common::{
    Account, AccountKey, CgroupClass, Conn, Counter, Endpoint, EndpointKey, Followed, Globals,
    LANE_NAME_BYTES, Lane, LearntKey, MAX_ACCOUNTS, MAX_CONNS, MAX_LANES, WireName,
};

use super::{KernelError, cgroups::CgroupId, shared::SharedArray};
use crate::policy::Ns;

/// The map that tells all programs about the controller.
pub(super) const GLOBALS: &str = "GLOBALS";

/// Everything that both sides read and write, except the ring buffer.
pub struct Tables {
    pub lanes: SharedArray<Lane>,
    pub conns: SharedArray<Conn>,
    pub accounts: SharedArray<Account>,
    globals: SharedArray<Globals>,
    free_conns: Stack<MapData, u32>,
    account_index: HashMap<MapData, AccountKey, u32>,
    endpoints: LpmTrie<MapData, EndpointKey, u32>,
    classes: HashMap<MapData, u64, CgroupClass>,
    counters: PerCpuArray<MapData, u64>,
    followed: HashMap<MapData, WireName, Followed>,
    learnt: HashMap<MapData, LearntKey, u64>,
    name_servers: HashMap<MapData, [u8; 16], u32>,
}

impl Tables {
    /// Opens the maps that `map` gives by their names.
    ///
    /// # Errors
    /// [`KernelError::Map`] naming the map.
    pub fn new(
        mut map: impl FnMut(&'static str) -> Result<Map, KernelError>,
    ) -> Result<Self, KernelError> {
        Ok(Self {
            lanes: shared(&map("LANES")?, "LANES", MAX_LANES)?,
            conns: shared(&map("CONNS")?, "CONNS", MAX_CONNS)?,
            accounts: shared(&map("ACCOUNTS")?, "ACCOUNTS", MAX_ACCOUNTS)?,
            globals: shared(&map(GLOBALS)?, GLOBALS, 1)?,
            free_conns: typed(map("FREE_CONNS")?, "FREE_CONNS")?,
            account_index: typed(map("ACCOUNT_INDEX")?, "ACCOUNT_INDEX")?,
            endpoints: typed(map("ENDPOINTS")?, "ENDPOINTS")?,
            classes: typed(map("CLASSES")?, "CLASSES")?,
            counters: typed(map("COUNTERS")?, "COUNTERS")?,
            followed: typed(map("FOLLOWED")?, "FOLLOWED")?,
            learnt: typed(map("LEARNT")?, "LEARNT")?,
            name_servers: typed(map("NAME_SERVERS")?, "NAME_SERVERS")?,
        })
    }

    pub fn globals(&self) -> &Globals {
        the_only(&self.globals)
    }

    /// Offers all connection records, those with low indices first. For new maps.
    ///
    /// # Errors
    /// As [`Tables::offer_record`].
    pub fn offer_all_records(&mut self) -> Result<(), KernelError> {
        (0..self.conns.len())
            .rev()
            .try_for_each(|index| self.offer_record(index))
    }

    /// Offers a connection record to the connect programs.
    ///
    /// # Errors
    /// `FREE_CONNS` when it cannot take the index.
    pub fn offer_record(&mut self, index: u32) -> Result<(), KernelError> {
        self.free_conns
            .push(index, 0)
            .map_err(|error| map_error("FREE_CONNS", &error))
    }

    /// Makes `endpoint` belong to the lane at `lane`.
    ///
    /// # Errors
    /// `ENDPOINTS` when it is full.
    pub fn add_endpoint(&mut self, endpoint: &Endpoint, lane: u32) -> Result<(), KernelError> {
        self.endpoints
            .insert(&trie_key(endpoint), lane, 0)
            .map_err(|error| map_error("ENDPOINTS", &error))
    }

    /// Connects to `endpoint` are no longer seen.
    ///
    /// # Errors
    /// `ENDPOINTS` when it was not there.
    pub fn remove_endpoint(&mut self, endpoint: &Endpoint) -> Result<(), KernelError> {
        self.endpoints
            .remove(&trie_key(endpoint))
            .map_err(|error| map_error("ENDPOINTS", &error))
    }

    /// Index of the lane that a single address belongs to, as the connect programs find it.
    pub fn lane_of(&self, address: &Endpoint) -> Option<u32> {
        self.endpoints.get(&trie_key(address), 0).ok()
    }

    /// All endpoints, and the index of the lane that each belongs to.
    ///
    /// # Errors
    /// `ENDPOINTS` when the kernel refuses the look.
    pub fn endpoints(&self) -> Result<Vec<(Endpoint, u32)>, KernelError> {
        let entries = self.endpoints.iter().map(|entry| {
            let (key, lane) = entry.map_err(|error| map_error("ENDPOINTS", &error))?;
            let endpoint = Endpoint::from_trie_key(key.prefix_len(), key.data());
            Ok(endpoint.map(|endpoint| (endpoint, lane)))
        });
        entries.filter_map(Result::transpose).collect()
    }

    /// The name of the lane at `lane`; empty if it has none.
    pub fn lane_name(&self, lane: &Lane) -> String {
        let bytes: Vec<u8> = lane
            .name
            .iter()
            .flat_map(|word| word.load().to_ne_bytes())
            .take_while(|byte| *byte != 0)
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Names the lane at `lane`. What is too long for it is cut off; the configuration has no such names.
    pub fn name_lane(&self, lane: &Lane, name: &str) {
        let mut bytes = [0; LANE_NAME_BYTES];
        let room = &mut bytes[..LANE_NAME_BYTES - 1];
        for (to, from) in room.iter_mut().zip(name.bytes()) {
            *to = from;
        }
        for (word, chunk) in lane.name.iter().zip(bytes.as_chunks().0) {
            word.store(u64::from_ne_bytes(*chunk));
        }
    }

    /// The ids of all cgroups that stand for a class.
    pub fn class_cgroups(&self) -> Vec<CgroupId> {
        self.classes.keys().flatten().map(CgroupId).collect()
    }

    /// All accounts with an element, and its index.
    pub fn accounts_known(&self) -> Vec<(AccountKey, u32)> {
        self.account_index.iter().flatten().collect()
    }

    /// Says what a cgroup stands for.
    ///
    /// # Errors
    /// `CLASSES` when it is full.
    pub fn set_class(&mut self, cgroup: CgroupId, class: CgroupClass) -> Result<(), KernelError> {
        self.classes
            .insert(cgroup.0, class, 0)
            .map_err(|error| map_error("CLASSES", &error))
    }

    /// The cgroup is gone.
    pub fn remove_class(&mut self, cgroup: CgroupId) {
        // Absent already: nothing to do.
        let _ = self.classes.remove(&cgroup.0);
    }

    /// Gives an account its element in a lane.
    ///
    /// # Errors
    /// `ACCOUNT_INDEX` when it is full.
    pub fn add_account(&mut self, key: AccountKey, index: u32) -> Result<(), KernelError> {
        self.account_index
            .insert(key, index, 0)
            .map_err(|error| map_error("ACCOUNT_INDEX", &error))
    }

    /// Takes an account's element away.
    ///
    /// # Errors
    /// `ACCOUNT_INDEX` when it was not there.
    pub fn remove_account(&mut self, key: AccountKey) -> Result<(), KernelError> {
        self.account_index
            .remove(&key)
            .map_err(|error| map_error("ACCOUNT_INDEX", &error))
    }

    /// Has the kernel look for the name in name servers' answers.
    ///
    /// # Errors
    /// `FOLLOWED` when it is full.
    pub fn follow(&mut self, name: &WireName, followed: Followed) -> Result<(), KernelError> {
        self.followed
            .insert(name, followed, 0)
            .map_err(|error| map_error("FOLLOWED", &error))
    }

    /// The name is not followed any more.
    pub fn unfollow(&mut self, name: &WireName) {
        // Absent already: nothing to do.
        let _ = self.followed.remove(name);
    }

    /// Empties what an earlier controller followed, believed and was told: its numbers of names are not this one's.
    pub fn follow_nothing(&mut self) {
        fn empty<K: aya::Pod, V: aya::Pod>(map: &mut HashMap<MapData, K, V>) {
            let keys: Vec<K> = map.keys().filter_map(Result::ok).collect();
            for key in keys {
                // Absent already: nothing to do.
                let _ = map.remove(&key);
            }
        }
        empty(&mut self.followed);
        empty(&mut self.learnt);
        empty(&mut self.name_servers);
    }

    /// The addresses that answers have given followed names, and when the latest answer did.
    pub fn learnt(&self) -> Vec<(LearntKey, Ns)> {
        self.learnt
            .iter()
            .filter_map(|entry| entry.ok().map(|(key, seen)| (key, Ns(seen))))
            .collect()
    }

    /// The next answer with this address tells something new.
    pub fn forget_learnt(&mut self, key: &LearntKey) {
        // Absent already: nothing to do.
        let _ = self.learnt.remove(key);
    }

    /// Has the kernel believe what comes from this address, IPv4 ones mapped.
    ///
    /// # Errors
    /// `NAME_SERVERS` when it is full.
    pub fn believe(&mut self, server: &[u8; 16]) -> Result<(), KernelError> {
        self.name_servers
            .insert(server, 1, 0)
            .map_err(|error| map_error("NAME_SERVERS", &error))
    }

    /// No more of it is believed.
    pub fn disbelieve(&mut self, server: &[u8; 16]) {
        // Absent already: nothing to do.
        let _ = self.name_servers.remove(server);
    }

    /// A counter's sum over all CPUs.
    ///
    /// # Errors
    /// `COUNTERS` when the kernel refuses the look-up.
    pub fn counter(&self, counter: Counter) -> Result<u64, KernelError> {
        let values = self
            .counters
            .get(&(counter as u32), 0)
            .map_err(|error| map_error("COUNTERS", &error))?;
        Ok(values.iter().sum())
    }
}

fn trie_key(endpoint: &Endpoint) -> aya::maps::lpm_trie::Key<EndpointKey> {
    let (bits, key) = endpoint.trie_key();
    aya::maps::lpm_trie::Key::new(bits, key)
}

/// The element of the globals array.
pub(super) fn the_only(globals: &SharedArray<Globals>) -> &Globals {
    globals.get(0).expect("the array has one element")
}

fn typed<T>(map: Map, name: &'static str) -> Result<T, KernelError>
where
    T: TryFrom<Map, Error = aya::maps::MapError>,
{
    map.try_into().map_err(|error| map_error(name, &error))
}

pub(super) fn shared<T>(
    map: &Map,
    name: &'static str,
    len: u32,
) -> Result<SharedArray<T>, KernelError> {
    let Map::Array(data) = map else {
        return Err(KernelError::Map {
            map: name.to_owned(),
            cause: "not an array".to_owned(),
        });
    };
    SharedArray::map(data.fd().as_fd(), len).map_err(|error: io::Error| map_error(name, &error))
}

pub(super) fn map_error(map: &str, error: &dyn std::error::Error) -> KernelError {
    KernelError::Map {
        map: map.to_owned(),
        cause: chain(error),
    }
}

/// An error with its sources, on one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        source = inner.source();
    }
    text
}
