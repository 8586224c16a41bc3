//! The configured lanes and their elements in the kernel's lane array.

use std::collections::{BTreeMap, HashSet};

use shaper_common::{CLASS_COUNT, Class, Endpoint, Lane, LaneMode, MAX_LANES, SharedU32, SlotWord};
use tracing::warn;

use super::{changes::Told, names::LaneEndpoints, quota::Quota};
use crate::{
    config::{LaneConfig, Udp},
    kernel::{KernelError, Tables, change_slots},
    metrics::{LaneMetrics, Metrics, RefusalReason},
    policy::{LaneId, Limits},
};

/// "No cap" in the kernel's words.
const NO_CAP: u32 = u32::MAX;

/// One configured lane.
#[derive(Debug)]
pub struct ActiveLane {
    pub config: LaneConfig,
    pub metrics: LaneMetrics,
    /// What is in the kernel's trie for it.
    endpoints: HashSet<Endpoint>,
    /// Whether the operator has been told that clients offer HTTP/2.
    pub http2_told: bool,
    /// Payload bytes that the metrics have been told of: sent and received.
    pub bytes_told: [u64; 2],
    /// Refusals that the metrics have been told of, by class.
    refusals_told: [u32; CLASS_COUNT],
    /// Log lines about refused connects, and about queue timeouts.
    pub refusal_lines: Quota,
    pub expiry_lines: Quota,
    /// What the log has been told of its changes.
    pub told: Told,
}

impl ActiveLane {
    /// Whether accounts have caps in it.
    pub fn caps_accounts(&self) -> bool {
        let rules = &self.config.rules;
        rules.account_cap.is_some() || !rules.account_overrides.is_empty()
    }
}

/// All lanes, by the index of their element.
#[derive(Debug, Default)]
pub struct Lanes {
    active: BTreeMap<LaneId, ActiveLane>,
    /// The names of removed lanes whose connections have not all gone yet.
    retired: BTreeMap<LaneId, String>,
    /// What is in the kernel's trie of lanes that an earlier controller had and this one has not set yet.
    found: BTreeMap<LaneId, HashSet<Endpoint>>,
}

/// Why a lane could not be made.
#[derive(Debug, thiserror::Error)]
pub enum LaneError {
    #[error("there are more than {MAX_LANES} lanes: merge some, one lane can have many endpoints")]
    TooMany,
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

impl Lanes {
    /// Takes over the lanes of an earlier controller, as if they had just been removed: those that are configured come back
    /// to their elements with [`Lanes::set`].
    ///
    /// # Errors
    /// When the endpoints cannot be read.
    pub fn adopt(&mut self, tables: &Tables) -> Result<(), KernelError> {
        for (index, element) in tables.lanes.iter() {
            if element.mode.load() != LaneMode::Unused as u32
                && let Ok(id) = u16::try_from(index).map(LaneId)
            {
                self.retired.insert(id, tables.lane_name(element));
            }
        }
        for (endpoint, index) in tables.endpoints()? {
            if let Ok(id) = u16::try_from(index).map(LaneId) {
                self.found.entry(id).or_default().insert(endpoint);
            }
        }
        Ok(())
    }

    /// The endpoints of the lanes that were adopted.
    pub fn adopted_endpoints(&self) -> LaneEndpoints {
        let named = self.found.iter().filter_map(|(id, endpoints)| {
            let name = self.retired.get(id)?;
            Some((name.clone(), endpoints.clone()))
        });
        named.collect()
    }

    /// Governs the adopted lanes that are not configured any more no longer.
    pub fn retire_the_rest(&self, tables: &Tables) {
        for id in self.retired.keys() {
            stop_governing(*id, tables);
        }
    }

    pub fn get(&self, id: LaneId) -> Option<&ActiveLane> {
        self.active.get(&id)
    }

    pub fn get_mut(&mut self, id: LaneId) -> Option<&mut ActiveLane> {
        self.active.get_mut(&id)
    }

    pub fn iter(&self) -> impl Iterator<Item = (LaneId, &ActiveLane)> {
        self.active.iter().map(|(id, lane)| (*id, lane))
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = (LaneId, &mut ActiveLane)> {
        self.active.iter_mut().map(|(id, lane)| (*id, lane))
    }

    pub fn by_name(&self, name: &str) -> Option<LaneId> {
        self.iter()
            .find(|(_, lane)| lane.config.name == name)
            .map(|(id, _)| id)
    }

    pub fn names(&self) -> Vec<&str> {
        self.active
            .values()
            .map(|lane| lane.config.name.as_str())
            .collect()
    }

    /// Adds the lane or changes it in place: slots in use, waiters and counts stay. One that was removed and has
    /// connections left goes on with them.
    ///
    /// # Errors
    /// [`LaneError::TooMany`].
    pub fn set(
        &mut self,
        config: LaneConfig,
        tables: &Tables,
        metrics: &Metrics,
    ) -> Result<LaneId, LaneError> {
        let present = self.by_name(&config.name);
        let id = match present.or_else(|| self.retired_as(&config.name)) {
            Some(id) => id,
            None => self.free_id(tables).ok_or(LaneError::TooMany)?,
        };
        self.retired.remove(&id);
        let element = tables
            .lanes
            .get(u32::from(id.0))
            .ok_or(LaneError::TooMany)?;
        let lane = match self.active.remove(&id) {
            // The barrier stays, too: the policy tells when it changes.
            Some(lane) => ActiveLane { config, ..lane },
            None => {
                element.barrier.store(CLASS_COUNT as u32);
                tables.name_lane(element, &config.name);
                ActiveLane {
                    metrics: metrics.lane(&config.name),
                    config,
                    endpoints: self.found.remove(&id).unwrap_or_default(),
                    http2_told: false,
                    bytes_told: [element.tx_bytes.load(), element.rx_bytes.load()],
                    refusals_told: element.refused.each_ref().map(SharedU32::load),
                    refusal_lines: Quota::default(),
                    expiry_lines: Quota::default(),
                    told: Told::default(),
                }
            }
        };
        mirror(&lane, element);
        self.active.insert(id, lane);
        Ok(id)
    }

    /// Writes what the lane may use now into its element.
    pub fn mirror_limits(&self, id: LaneId, limits: Limits, tables: &Tables) {
        if let Some(element) = tables.lanes.get(u32::from(id.0)) {
            element.reserve.store(limits.reserve);
            change_slots(element, |word| Some(word.with_budget(limits.effective)));
        }
    }

    /// Makes exactly `wanted` the endpoints of all lanes. An endpoint that moves from one lane to another belongs to
    /// one of them at every moment.
    pub fn set_endpoints(&mut self, mut wanted: LaneEndpoints, tables: &mut Tables) {
        let wanted: BTreeMap<LaneId, HashSet<Endpoint>> = self
            .iter()
            .map(|(id, lane)| (id, wanted.remove(&lane.config.name).unwrap_or_default()))
            .collect();
        for (id, endpoints) in &wanted {
            let Some(lane) = self.active.get_mut(id) else {
                continue;
            };
            for endpoint in endpoints.difference(&lane.endpoints.clone()) {
                match tables.add_endpoint(endpoint, u32::from(id.0)) {
                    Ok(()) => drop(lane.endpoints.insert(*endpoint)),
                    Err(error) => {
                        warn!(lane = lane.config.name, %endpoint, %error, "an address of the lane is not governed");
                    }
                }
            }
        }
        let kept: HashSet<_> = wanted.values().flatten().copied().collect();
        for (id, lane) in &mut self.active {
            let wanted = wanted.get(id);
            lane.endpoints.retain(|endpoint| {
                let stays = wanted.is_some_and(|wanted| wanted.contains(endpoint));
                if !stays && !kept.contains(endpoint) {
                    forget(endpoint, &lane.config.name, tables);
                }
                stays
            });
        }
        for (id, endpoints) in std::mem::take(&mut self.found) {
            let name = self.retired.get(&id).map_or("?", String::as_str);
            for endpoint in endpoints.difference(&kept) {
                forget(endpoint, name, tables);
            }
        }
    }

    /// Whether `endpoint` is one of some lane's, rather than what the kernel has learnt just now.
    pub fn has_endpoint(&self, endpoint: &Endpoint) -> bool {
        self.active
            .values()
            .any(|lane| lane.endpoints.contains(endpoint))
    }

    /// Takes the lane out: no connect is seen as its own any more, and nothing of it is held. Connections that are open
    /// stay open, and the element is not used for another lane before they are gone, see [`Lanes::bury`].
    pub fn remove(&mut self, id: LaneId, tables: &mut Tables) -> Option<ActiveLane> {
        let lane = self.active.remove(&id)?;
        stop_governing(id, tables);
        for endpoint in &lane.endpoints {
            forget(endpoint, &lane.config.name, tables);
        }
        self.retired.insert(id, lane.config.name.clone());
        Some(lane)
    }

    /// Tells the metrics, and `tell` with the lane's name, of the refusals since the last time.
    pub fn count_refusals(&mut self, tables: &Tables, mut tell: impl FnMut(&str, Class, u64)) {
        for (id, lane) in &mut self.active {
            let Some(element) = tables.lanes.get(u32::from(id.0)) else {
                continue;
            };
            for class in Class::ALL {
                let told = &mut lane.refusals_told[class.index()];
                let now = element.refused[class.index()].load();
                let new = u64::from(now.wrapping_sub(*told));
                lane.metrics
                    .count_refusals(class, RefusalReason::QueueFull, new);
                tell(&lane.config.name, class, new);
                *told = now;
            }
        }
    }

    /// Whether connections of a removed lane may be left.
    pub fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// The removed lane whose connections still count on this element.
    pub fn is_retired(&self, id: LaneId) -> bool {
        self.retired.contains_key(&id)
    }

    /// Frees the elements of removed lanes that no connection belongs to: `used` has those that some do.
    pub fn bury(&mut self, used: &HashSet<LaneId>, tables: &Tables) {
        self.retired.retain(|id, _| {
            let Some(element) = tables.lanes.get(u32::from(id.0)) else {
                return false;
            };
            let word = SlotWord::from_bits(element.slots.load());
            let stays = used.contains(id) || word.slots() > 0 || element.queued.load() > 0;
            if !stays {
                element.mode.store(LaneMode::Unused as u32);
            }
            stays
        });
    }

    /// How many more lanes there may be now.
    pub fn room(&self) -> usize {
        MAX_LANES as usize - self.active.len() - self.retired.len()
    }

    fn retired_as(&self, name: &str) -> Option<LaneId> {
        self.retired
            .iter()
            .find(|(_, retired)| *retired == name)
            .map(|(id, _)| *id)
    }

    /// An element that no lane uses, present or removed.
    fn free_id(&self, tables: &Tables) -> Option<LaneId> {
        (0..tables.lanes.len())
            .filter_map(|index| u16::try_from(index).ok().map(LaneId))
            .find(|id| !self.active.contains_key(id) && !self.retired.contains_key(id))
    }
}

/// Observing, not unused: its connections give slots back, and take them again without a limit.
fn stop_governing(id: LaneId, tables: &Tables) {
    if let Some(element) = tables.lanes.get(u32::from(id.0)) {
        element.mode.store(LaneMode::Observe as u32);
        element.abort_holds.store(0);
    }
}

fn forget(endpoint: &Endpoint, lane: &str, tables: &mut Tables) {
    if let Err(error) = tables.remove_endpoint(endpoint) {
        warn!(lane, %endpoint, %error, "an endpoint could not be removed");
    }
}

/// Writes what the kernel needs of a lane's configuration into its element. The barrier is the policy's.
fn mirror(lane: &ActiveLane, element: &Lane) {
    let config = &lane.config;
    let rules = &config.rules;
    element.max_queue.store(rules.max_queue);
    element
        .refuse_errno
        .store(config.on_full.errno().unsigned_abs());
    for class in Class::ALL {
        let cap = rules.class_cap[class.index()].unwrap_or(NO_CAP);
        element.class_cap[class.index()].store(cap);
    }
    element.account_caps.store(u32::from(lane.caps_accounts()));
    element.wake_bytes.store(rules.wake_bytes);
    element
        .abort_holds
        .store(u32::from(!rules.abort_hold.is_zero()));
    element
        .udp_blocked
        .store(u32::from(config.udp == Udp::Block));
    // The mode last: nothing is enforced before all is set.
    let mode = if config.enforces() {
        LaneMode::Enforce
    } else {
        LaneMode::Observe
    };
    element.mode.store(mode as u32);
}
