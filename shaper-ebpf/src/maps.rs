//! The maps: names, sizes and nothing else. The controller finds them by these names.

use aya_ebpf::{
    bindings::{BPF_F_MMAPABLE, BPF_F_NO_PREALLOC},
    btf_maps::{Array, HashMap, LpmTrie, PerCpuArray, RingBuf, SkStorage, Stack},
    macros::btf_map,
};
use shaper_common::{
    Account, AccountKey, COUNTER_COUNT, CgroupClass, Conn, ConnId, EndpointKey, Event, Followed,
    Globals, Lane, LearntKey, MAX_ACCOUNTS, MAX_CLASS_CGROUPS, MAX_CONNS, MAX_ENDPOINTS,
    MAX_FOLLOWED, MAX_LANES, MAX_LEARNT, MAX_NAME_SERVERS, RING_BYTES, WireName,
};

use crate::{dns::Scratch, head::Workplace};

const MMAPABLE: usize = BPF_F_MMAPABLE as usize;

#[btf_map(name = "GLOBALS")]
pub static GLOBALS: Array<Globals, 1, MMAPABLE> = Array::new();

#[btf_map(name = "LANES")]
pub static LANES: Array<Lane, { MAX_LANES as usize }, MMAPABLE> = Array::new();

#[btf_map(name = "CONNS")]
pub static CONNS: Array<Conn, { MAX_CONNS as usize }, MMAPABLE> = Array::new();

/// Indices of free connection records. Filled by the controller.
#[btf_map(name = "FREE_CONNS")]
pub static FREE_CONNS: Stack<u32, { MAX_CONNS as usize }> = Stack::new();

#[btf_map(name = "ACCOUNTS")]
pub static ACCOUNTS: Array<Account, { MAX_ACCOUNTS as usize }, MMAPABLE> = Array::new();

/// Index into `ACCOUNTS` by lane and cgroup. Filled by the controller.
#[btf_map(name = "ACCOUNT_INDEX")]
pub static ACCOUNT_INDEX: HashMap<
    AccountKey,
    u32,
    { MAX_ACCOUNTS as usize },
    { BPF_F_NO_PREALLOC as usize },
> = HashMap::new();

/// Lane index by endpoint.
#[btf_map(name = "ENDPOINTS")]
pub static ENDPOINTS: LpmTrie<
    EndpointKey,
    u32,
    { MAX_ENDPOINTS as usize },
    { BPF_F_NO_PREALLOC as usize },
> = LpmTrie::new();

/// What a cgroup stands for, by its id.
#[btf_map(name = "CLASSES")]
pub static CLASSES: HashMap<u64, CgroupClass, { MAX_CLASS_CGROUPS as usize }> = HashMap::new();

/// The record of a governed socket.
#[btf_map(name = "SOCKETS")]
pub static SOCKETS: SkStorage<ConnId> = SkStorage::new();

#[btf_map(name = "EVENTS")]
pub static EVENTS: RingBuf<Event, { RING_BYTES as usize }> = RingBuf::new();

/// One element per [`Counter`](shaper_common::Counter).
#[btf_map(name = "COUNTERS")]
pub static COUNTERS: PerCpuArray<u64, { COUNTER_COUNT as usize }> = PerCpuArray::new();

/// Host names whose answers are followed. Filled by the controller.
#[btf_map(name = "FOLLOWED")]
pub static FOLLOWED: HashMap<
    WireName,
    Followed,
    { MAX_FOLLOWED as usize },
    { BPF_F_NO_PREALLOC as usize },
> = HashMap::new();

/// Addresses of followed names, and when an answer last had them. Emptied by the controller.
#[btf_map(name = "LEARNT")]
pub static LEARNT: HashMap<
    LearntKey,
    u64,
    { MAX_LEARNT as usize },
    { BPF_F_NO_PREALLOC as usize },
> = HashMap::new();

/// Addresses of the host's name servers, IPv4 ones mapped; the value means nothing.
#[btf_map(name = "NAME_SERVERS")]
pub static NAME_SERVERS: HashMap<[u8; 16], u32, { MAX_NAME_SERVERS as usize }> = HashMap::new();

/// The sockets that have asked one of them; the value means nothing.
#[btf_map(name = "ASKERS")]
pub static ASKERS: SkStorage<u32> = SkStorage::new();

#[btf_map(name = "DNS_SCRATCH")]
pub static DNS_SCRATCH: PerCpuArray<Scratch, 1> = PerCpuArray::new();

/// Where a CPU reads the head of an answer.
#[btf_map(name = "HEADS")]
pub static HEADS: PerCpuArray<Workplace, 1> = PerCpuArray::new();
