//! What the first bytes of requests and responses change.

use std::time::SystemTime;

use shaper_common::{Class, END_KNOWN, Glimpse, LONGEST_RESPONSE, Protocol};
use tracing::warn;

use super::{
    Controller,
    message::{ResponseEnd, ResponseHead, offers_http2},
    translate::gateway,
};
use crate::{
    kernel,
    policy::{Event, LaneId, Ns, Sign},
};

impl Controller {
    /// Takes a glimpse from the ring.
    pub(super) fn glimpse(&mut self, glimpse: &Glimpse) {
        let bytes = &glimpse.bytes[..(glimpse.len as usize).min(glimpse.bytes.len())];
        if glimpse.received != 0 {
            self.response_head(glimpse, bytes);
        } else {
            self.client_hello(glimpse, bytes);
        }
    }

    fn response_head(&mut self, glimpse: &Glimpse, bytes: &[u8]) {
        let Some(head) = ResponseHead::read(bytes, SystemTime::now()) else {
            return;
        };
        // First, so that nobody is given the slot of an answer that asks for a pause. The connection may be gone already:
        // what its answer said counts all the same.
        if let Ok(lane) = u16::try_from(glimpse.event.lane).map(LaneId) {
            let class = Class::from_index(glimpse.event.class);
            self.tell_policy(lane, gateway(class, Sign::Head(head.answer)));
        }
        if let Some(view) = self.tables.view(glimpse.event.conn()) {
            self.response_ends(glimpse, head.end(view.record.head_request != 0));
        }
    }

    fn response_ends(&mut self, glimpse: &Glimpse, end: ResponseEnd) {
        let ResponseEnd::After(length) = end else {
            return;
        };
        if length >= LONGEST_RESPONSE {
            return;
        }
        let id = glimpse.event.conn();
        let end = glimpse.event.arg.wrapping_add(length as u32);
        if let Some(conn) = self.tables.conns.get(id.index) {
            // The kernel compares what comes from now on; what has come is compared when the connection is looked at, at
            // once. If it knows an end, that is of a later answer.
            let _ = conn
                .response_end
                .compare_exchange(0, END_KNOWN | u64::from(end));
        }
        self.parking.look_soon(id, Ns(0));
        self.park_idle(kernel::now());
    }

    fn tell_policy(&mut self, lane: LaneId, event: Event) {
        let now = kernel::now();
        self.policy.on_event(now, lane, event, &mut self.actions);
        self.carry_out(now);
    }

    fn client_hello(&mut self, glimpse: &Glimpse, bytes: &[u8]) {
        let id = glimpse.event.conn();
        let Some(offered) = offers_http2(bytes) else {
            return;
        };
        if self.tables.view(id).is_some()
            && let Some(conn) = self.tables.conns.get(id.index)
        {
            let protocol = if offered {
                Protocol::Http2
            } else {
                Protocol::Serial
            };
            conn.protocol.store(protocol as u32);
        }
        if let Ok(lane) = u16::try_from(glimpse.event.lane).map(LaneId)
            && offered
        {
            self.http2_offered(lane, glimpse.event.pid);
        }
    }

    fn http2_offered(&mut self, lane: LaneId, pid: u32) {
        if let Some(lane) = self.lanes.get_mut(lane)
            && !std::mem::replace(&mut lane.http2_told, true)
        {
            warn!(
                lane = lane.config.name,
                pid,
                "a client offers HTTP/2: requests that share a connection count as one (told once for the lane)"
            );
        }
    }
}
