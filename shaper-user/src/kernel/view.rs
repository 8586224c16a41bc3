//! Looking at connection records while the kernel works on them.

use std::net::Ipv6Addr;

use shaper_common::{Class, Conn, ConnId, END_KNOWN, Endpoint, Gate, GateWord, seq_after};

use super::{netns::NetnsCookie, raw::Route, segment, tables::Tables};
use crate::policy::{LaneId, Ns};

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
        let build = if is_syn(header) {
            segment::syn
        } else {
            segment::probe
        };
        Some(build(&self.record.tuple, header, ms))
    }

    /// Whether nothing that may leave is held back any more.
    pub fn is_moving(&self) -> bool {
        match self.held_header() {
            Some(header) if is_syn(header) => self.is_established(),
            _ => self.gate() == Gate::HeldRequest || self.record.tx_ns > self.record.held.ns,
        }
    }

    /// Whether the present response has come to its end, as its head announced it.
    pub fn response_is_complete(&self) -> bool {
        let end = self.record.response_end.load();
        end & END_KNOWN != 0 && !seq_after(end as u32, self.record.rx_seq)
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

impl Tables {
    /// What there is about `id`; `None` if the record belongs to another connection or none.
    pub fn view(&self, id: ConnId) -> Option<ConnView> {
        let view = self.view_at(id.index)?;
        (view.id == id).then_some(view)
    }

    /// All records in use.
    pub fn views(&self) -> impl Iterator<Item = ConnView> + '_ {
        (0..self.conns.len()).filter_map(|index| self.view_at(index))
    }

    fn view_at(&self, index: u32) -> Option<ConnView> {
        let conn = self.conns.get(index)?;
        loop {
            let word = GateWord::from_bits(conn.gate.load());
            if word.gate() == Gate::Free {
                return None;
            }
            let version = conn.held.version.load();
            let record = self.conns.copy(index)?;
            // The kernel fills a record before it sets its gate, so an unchanged word means an unmixed copy; the held
            // header has a version of its own. The kernel writes for some nanoseconds at a time, so this ends.
            let unmixed = conn.gate.load() == word.bits()
                && version % 2 == 0
                && conn.held.version.load() == version;
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
