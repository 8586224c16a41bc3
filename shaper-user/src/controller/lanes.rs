//! The configured lanes and their elements in the kernel's lane array.

use std::collections::{BTreeMap, HashSet};

use shaper_common::{CLASS_COUNT, Class, Endpoint, Lane, LaneMode, MAX_LANES, SharedU32};
use tracing::warn;

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

    /// Adds the lane or changes it in place: slots in use, waiters and counts stay.
    ///
    /// # Errors
    /// [`LaneError::TooMany`].
    pub fn set(
        &mut self,
        config: LaneConfig,
        tables: &Tables,
        metrics: &Metrics,
    ) -> Result<LaneId, LaneError> {
        let id = match self.by_name(&config.name) {
            Some(id) => id,
            None => self.free_id(tables).ok_or(LaneError::TooMany)?,
        };
        let element = tables
            .lanes
            .get(u32::from(id.0))
            .ok_or(LaneError::TooMany)?;
        let lane = match self.active.remove(&id) {
            // The barrier stays, too: the policy tells when it changes.
            Some(lane) => ActiveLane { config, ..lane },
            None => {
                element.barrier.store(CLASS_COUNT as u32);
                ActiveLane {
                    metrics: metrics.lane(&config.name),
                    config,
                    endpoints: HashSet::new(),
                    http2_told: false,
                    bytes_told: [element.tx_bytes.load(), element.rx_bytes.load()],
                    refusals_told: element.refused.each_ref().map(SharedU32::load),
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

    /// Makes exactly `wanted` the endpoints of the lane.
    ///
    /// # Errors
    /// When the kernel's trie is full; those that fitted are governed.
    pub fn set_endpoints(
        &mut self,
        id: LaneId,
        wanted: HashSet<Endpoint>,
        tables: &mut Tables,
    ) -> Result<(), KernelError> {
        let Some(lane) = self.active.get_mut(&id) else {
            return Ok(());
        };
        for endpoint in lane.endpoints.difference(&wanted) {
            if let Err(error) = tables.remove_endpoint(endpoint) {
                warn!(lane = lane.config.name, %endpoint, %error, "an endpoint could not be removed");
            }
        }
        lane.endpoints.retain(|endpoint| wanted.contains(endpoint));
        for endpoint in wanted {
            if !lane.endpoints.contains(&endpoint) {
                tables.add_endpoint(&endpoint, u32::from(id.0))?;
                lane.endpoints.insert(endpoint);
            }
        }
        Ok(())
    }

    /// Takes the lane out: no connect is seen as its own any more. Its element stays reserved until nothing in the
    /// kernel counts on it, see [`Lanes::set`].
    pub fn remove(&mut self, id: LaneId, tables: &mut Tables) -> Option<ActiveLane> {
        let lane = self.active.remove(&id)?;
        for endpoint in &lane.endpoints {
            if let Err(error) = tables.remove_endpoint(endpoint) {
                warn!(lane = lane.config.name, %endpoint, %error, "an endpoint could not be removed");
            }
        }
        if let Some(element) = tables.lanes.get(u32::from(id.0)) {
            element.mode.store(LaneMode::Unused as u32);
        }
        Some(lane)
    }

    /// Tells the metrics of the refusals since the last time.
    pub fn count_refusals(&mut self, tables: &Tables) {
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
                *told = now;
            }
        }
    }

    /// An element that no lane uses and on which no connection of an earlier lane counts.
    fn free_id(&self, tables: &Tables) -> Option<LaneId> {
        tables.lanes.iter().find_map(|(index, element)| {
            let id = LaneId(u16::try_from(index).ok()?);
            let word = shaper_common::SlotWord::from_bits(element.slots.load());
            let idle = word.slots() == 0 && element.queued.load() == 0;
            (idle && !self.active.contains_key(&id)).then_some(id)
        })
    }
}

/// Writes what the kernel needs of a lane's configuration into its element.
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
