//! Looking at connection records while the kernel works on them.

use std::{
    net::Ipv6Addr,
    sync::atomic::{Ordering, fence},
};

use shaper_common::{Class, Conn, ConnId, END_KNOWN, Endpoint, Gate, GateWord, seq_after};

use super::{netns::NetnsCookie, raw::Route, segment, tables::Tables};
use crate::policy::{LaneId, Ns};

/// More records than can be taken from the stack and not have a gate yet: one on each CPU.
const UNUSED_IN_A_ROW: u32 = 1024;

/// TCP's SYN flag in byte 13 of the header.
const SYN: u8 = 0x02;

/// A record in use: its gate at one instant and a copy of the rest.
#[derive(Debug)]
pub struct ConnView {
    pub id: ConnId,
    pub word: GateWord,
    pub record: Conn,
}

impl ConnView {
    pub fn gate(&self) -> Gate {
        self.word.gate()
    }

    pub fn class(&self) -> Class {
        Class::from_index(self.record.class)
    }

    pub fn lane(&self) -> Option<LaneId> {
        u16::try_from(self.record.lane).ok().map(LaneId)
    }

    /// When its present wait or, if there was none, the connection began.
    pub fn since(&self) -> Ns {
        Ns(self.record.since_ns)
    }

    pub fn netns(&self) -> NetnsCookie {
        NetnsCookie(self.record.netns)
    }

    /// The gateway's end.
    pub fn remote(&self) -> Endpoint {
        let addr = Ipv6Addr::from(self.record.tuple.remote);
        Endpoint::host(addr.into(), self.record.tuple.remote_port)
    }

    /// How packets in its name leave.
    pub fn route(&self) -> Route {
        Route {
            tuple: self.record.tuple,
            mark: self.record.mark,
            ifindex: self.record.ifindex,
        }
    }

    pub fn is_established(&self) -> bool {
        self.record.established_ns != 0
    }

    /// The packet that makes TCP go on with what was held back: the SYN again, or a keep-alive probe, whose
    /// acknowledgement makes the kernel send what it has. `None`: nothing was held back yet.
    pub fn nudge(&self, now: Ns) -> Option<Vec<u8>> {
        let header = self.held_header()?;
        let ms = now.since(Ns(self.record.held.ns)).as_millis() as u32;
        let tuple = &self.record.tuple;
        Some(match is_syn(header) {
            true => segment::syn(tuple, header, ms),
            false => segment::probe(tuple, header, self.record.held.acknowledged, ms),
        })
    }

    /// Whether nothing that may leave is held back any more.
    pub fn is_moving(&self) -> bool {
        match self.held_header() {
            None => true,
            Some(header) if is_syn(header) => self.is_established(),
            Some(_) => self.gate() == Gate::HeldRequest || self.record.tx_ns > self.record.held.ns,
        }
    }

    /// Whether request bytes have been dropped in the present wait.
    pub fn holds_request_back(&self) -> bool {
        self.held_header().is_some_and(|header| !is_syn(header))
    }

    /// Whether the present response has come to its end, as its head announced it.
    pub fn response_is_complete(&self) -> bool {
        let end = self.record.response_end.load();
        end & END_KNOWN != 0
            && seq_after(end as u32, self.record.answer_from)
            && !seq_after(end as u32, self.record.rx_seq)
    }

    fn held_header(&self) -> Option<&[u8]> {
        let header = self
            .record
            .held
            .header
            .get(..self.record.held.len as usize)?;
        (header.len() >= 20).then_some(header)
    }
}

fn is_syn(header: &[u8]) -> bool {
    header[13] & SYN != 0
}

/// How far a look at all records has come.
///
/// Free ones are kept on a stack, on which unused ones lie at the bottom in order, so that those that have ever been used are
/// the first: it ends after [`UNUSED_IN_A_ROW`] others.
#[derive(Debug, Default)]
pub struct Cursor {
    next: u32,
    unused: u32,
}

impl Tables {
    /// What there is about `id`; `None` if the record belongs to another connection or none.
    pub fn view(&self, id: ConnId) -> Option<ConnView> {
        let view = self.view_at(id.index)?;
        (view.id == id).then_some(view)
    }

    /// All records in use.
    pub fn views(&self) -> impl Iterator<Item = ConnView> + '_ {
        self.views_from(0)
    }

    /// The records in use from `first` on, by index.
    pub fn views_from(&self, first: u32) -> impl Iterator<Item = ConnView> + '_ {
        let mut cursor = Cursor {
            next: first,
            unused: 0,
        };
        std::iter::from_fn(move || self.next_view(&mut cursor))
    }

    /// The next record in use, for those who cannot keep hold of the tables meanwhile.
    pub fn next_view(&self, cursor: &mut Cursor) -> Option<ConnView> {
        while cursor.unused < UNUSED_IN_A_ROW {
            let index = cursor.next;
            let word = self.conns.get(index)?.gate.load();
            cursor.next += 1;
            cursor.unused = if word == 0 { cursor.unused + 1 } else { 0 };
            if word != 0
                && let Some(view) = self.view_at(index)
            {
                return Some(view);
            }
        }
        None
    }

    /// What there is at `index`; `None` if the record is free.
    fn view_at(&self, index: u32) -> Option<ConnView> {
        let conn = self.conns.get(index)?;
        loop {
            let word = GateWord::from_bits(conn.gate.load());
            if word.gate() == Gate::Free {
                return None;
            }
            let version = conn.held_version.load();
            let record = self.conns.copy(index)?;
            // What identifies a connection is written before its gate is set, so an unchanged word means that those
            // fields are unmixed; the held header has a version of its own; times and counts are each of some recent
            // moment. The kernel writes for some nanoseconds at a time, so this ends.
            fence(Ordering::Acquire);
            let unmixed = conn.gate.load() == word.bits()
                && version % 2 == 0
                && conn.held_version.load() == version;
            if unmixed {
                let id = ConnId {
                    index,
                    generation: word.generation(),
                };
                return Some(ConnView { id, word, record });
            }
            std::hint::spin_loop();
        }
    }
}
