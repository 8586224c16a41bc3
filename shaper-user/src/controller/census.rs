//! Counting the connections of every lane in one pass over the records.

use std::collections::HashMap;

use shaper_common::{Gate, Protocol};

use crate::{kernel::Tables, policy::LaneId};

/// The present connections of one lane.
#[derive(Clone, Copy, Debug, Default)]
pub struct LaneCounts {
    /// Parked: open, without a slot, waiting for none.
    pub idle: u32,
    /// Speaking or offering HTTP/2.
    pub http2: u32,
    /// Payload bytes to the gateway so far.
    pub sent: u64,
    /// Payload bytes from the gateway so far.
    pub received: u64,
}

/// All lanes' counts at one instant.
#[derive(Debug, Default)]
pub struct Census {
    lanes: HashMap<LaneId, LaneCounts>,
}

impl Census {
    pub fn take(tables: &Tables) -> Self {
        let mut census = Self::default();
        for view in tables.views() {
            let Some(lane) = view.lane() else {
                continue;
            };
            let counts = census.lanes.entry(lane).or_default();
            counts.idle += u32::from(view.gate() == Gate::Parked);
            let http2 = view.record.protocol.load() == Protocol::Http2 as u32;
            counts.http2 += u32::from(http2);
            counts.sent += view.record.tx_bytes;
            counts.received += view.record.rx_bytes;
        }
        census
    }

    pub fn lane(&self, lane: LaneId) -> LaneCounts {
        self.lanes.get(&lane).copied().unwrap_or_default()
    }
}
