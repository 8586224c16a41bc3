//! The maps of a loaded object, as typed memory and a few typed calls.

use std::{io, os::fd::AsFd};

use aya::{
    Ebpf,
    maps::{HashMap, Map, MapData, PerCpuArray, lpm_trie::LpmTrie, stack::Stack},
};
use shaper_common::{
    Account, AccountKey, CgroupClass, Conn, Counter, Endpoint, EndpointKey, Globals, Lane,
    MAX_ACCOUNTS, MAX_CONNS, MAX_LANES,
};

use super::{KernelError, cgroups::CgroupId, shared::SharedArray};

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
}

impl Tables {
    /// Takes the maps out of a loaded object.
    ///
    /// # Errors
    /// [`KernelError::Map`] naming the map.
    pub fn new(ebpf: &mut Ebpf) -> Result<Self, KernelError> {
        Ok(Self {
            lanes: shared(ebpf, "LANES", MAX_LANES)?,
            conns: shared(ebpf, "CONNS", MAX_CONNS)?,
            accounts: shared(ebpf, "ACCOUNTS", MAX_ACCOUNTS)?,
            globals: shared(ebpf, "GLOBALS", 1)?,
            free_conns: typed(ebpf, "FREE_CONNS")?,
            account_index: typed(ebpf, "ACCOUNT_INDEX")?,
            endpoints: typed(ebpf, "ENDPOINTS")?,
            classes: typed(ebpf, "CLASSES")?,
            counters: typed(ebpf, "COUNTERS")?,
        })
    }

    pub fn globals(&self) -> &Globals {
        self.globals.get(0).expect("the array has one element")
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

fn typed<T>(ebpf: &mut Ebpf, name: &'static str) -> Result<T, KernelError>
where
    T: TryFrom<Map, Error = aya::maps::MapError>,
{
    take_map(ebpf, name)?
        .try_into()
        .map_err(|error| map_error(name, &error))
}

fn shared<T>(ebpf: &mut Ebpf, name: &'static str, len: u32) -> Result<SharedArray<T>, KernelError> {
    let Map::Array(data) = take_map(ebpf, name)? else {
        return Err(KernelError::Map {
            map: name,
            cause: "not an array".to_owned(),
        });
    };
    SharedArray::map(data.fd().as_fd(), len).map_err(|error: io::Error| map_error(name, &error))
}

pub(super) fn take_map(ebpf: &mut Ebpf, name: &'static str) -> Result<Map, KernelError> {
    ebpf.take_map(name).ok_or_else(|| KernelError::Map {
        map: name,
        cause: "the object does not have it".to_owned(),
    })
}

pub(super) fn map_error(map: &'static str, error: &dyn std::error::Error) -> KernelError {
    KernelError::Map {
        map,
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
