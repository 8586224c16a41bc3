//! Telling the controller.

use aya_ebpf::{
    bindings::{BPF_RB_AVAIL_DATA, BPF_RB_FORCE_WAKEUP, BPF_RB_NO_WAKEUP},
    helpers::generated::{bpf_ktime_get_ns, bpf_ringbuf_query},
};
use shaper_common::{Conn, ConnId, Counter, Event, EventKind, RING_BYTES};

use crate::{count::count, maps::EVENTS};

/// Whether the controller must act now, or may read the event at leisure.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Urgency {
    Now,
    Leisure,
}

impl Urgency {
    #[inline(always)]
    pub fn now_if(urgent: bool) -> Self {
        if urgent { Self::Now } else { Self::Leisure }
    }
}

/// Bytes in the ring at which leisure ends: a quarter, so that a burst is read before it is lost.
const HIGH_WATER: u64 = RING_BYTES as u64 / 4;

#[inline(always)]
pub fn emit(kind: EventKind, conn: &Conn, id: ConnId, arg: u32, urgency: Urgency) {
    send(&event(kind, conn, id, arg), urgency);
}

#[inline(always)]
pub fn event(kind: EventKind, conn: &Conn, id: ConnId, arg: u32) -> Event {
    Event {
        ns: now_ns(),
        account_cgroup: conn.account_cgroup,
        kind: kind as u32,
        lane: conn.lane,
        class: conn.class,
        pid: conn.pid,
        index: id.index,
        generation: id.generation,
        arg,
        doubtful: 0,
    }
}

/// Waking the reader costs some 15 µs on the program's CPU, the event itself well under one.
#[inline(always)]
pub fn send(event: &Event, urgency: Urgency) {
    let ring = core::ptr::from_ref(&EVENTS).cast_mut().cast();
    let flags = if urgency == Urgency::Now
        // SAFETY: `ring` is the map, patched by the loader.
        || unsafe { bpf_ringbuf_query(ring, u64::from(BPF_RB_AVAIL_DATA)) } > HIGH_WATER
    {
        BPF_RB_FORCE_WAKEUP
    } else {
        BPF_RB_NO_WAKEUP
    };
    if EVENTS.output(*event, u64::from(flags)).is_err() {
        count(Counter::EventsLost);
    }
}

/// Between two instants, for an event's `arg`.
#[inline(always)]
pub fn micros_between(earlier_ns: u64, later_ns: u64) -> u32 {
    let micros = later_ns.saturating_sub(earlier_ns) / 1_000;
    if micros > u64::from(u32::MAX) {
        u32::MAX
    } else {
        micros as u32
    }
}

/// `CLOCK_MONOTONIC` in nanoseconds.
#[inline(always)]
pub fn now_ns() -> u64 {
    // SAFETY: no preconditions.
    unsafe { bpf_ktime_get_ns() }
}
