//! The gate of one governed connection: what the kernel lets pass, and who may change it.

/// What the kernel lets pass on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Gate {
    /// The record is not in use.
    Free = 0,
    /// No SYN leaves. Waits for a slot.
    HeldSyn = 1,
    /// The handshake passes, request bytes do not. Waits for a slot.
    HeldRequest = 2,
    /// Everything passes. Holds a slot.
    Open = 3,
    /// As `HeldRequest`, but nothing is waiting.
    Parked = 4,
    /// The program closed the socket while TCP still has work to do. Everything passes, no slot.
    Closing = 5,
    /// The program closed the socket while its request was held: the request must never leave. No slot.
    Doomed = 6,
    /// The client went away while its request was unanswered. The socket is gone or going, the slot stays for
    /// `abort_hold`; the controller ends it.
    Lingering = 7,
    /// Not limited any more: the lane was removed, or the controller let it go. Everything passes, no slot.
    Released = 8,
}

impl Gate {
    #[inline(always)]
    pub const fn from_bits(bits: u8) -> Self {
        match bits {
            1 => Self::HeldSyn,
            2 => Self::HeldRequest,
            3 => Self::Open,
            4 => Self::Parked,
            5 => Self::Closing,
            6 => Self::Doomed,
            7 => Self::Lingering,
            8 => Self::Released,
            _ => Self::Free,
        }
    }

    /// Whether a connection with this gate stands in its lane's queue.
    #[inline(always)]
    pub const fn waits(self) -> bool {
        matches!(self, Self::HeldSyn | Self::HeldRequest)
    }

    /// Whether a connection with this gate has one of its lane's slots.
    #[inline(always)]
    pub const fn holds_slot(self) -> bool {
        matches!(self, Self::Open | Self::Lingering)
    }

    /// Whether request bytes stay back.
    #[inline(always)]
    pub const fn blocks_requests(self) -> bool {
        matches!(
            self,
            Self::HeldSyn | Self::HeldRequest | Self::Parked | Self::Doomed
        )
    }
}

/// A gate together with the generation of its record, so that a compare-and-swap can never touch the next user of a
/// record: `generation` in the upper 32 bits, the gate in the lowest 8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GateWord(u64);

impl GateWord {
    #[inline(always)]
    pub const fn new(generation: u32, gate: Gate) -> Self {
        Self(((generation as u64) << 32) | gate as u64)
    }

    #[inline(always)]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    #[inline(always)]
    pub const fn bits(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline(always)]
    pub const fn gate(self) -> Gate {
        Gate::from_bits(self.0 as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_word_keeps_both_parts() {
        for bits in 0..=8u8 {
            let gate = Gate::from_bits(bits);
            assert_eq!(gate as u8, bits);
            let word = GateWord::new(u32::MAX, gate);
            assert_eq!((word.generation(), word.gate()), (u32::MAX, gate));
        }
    }

    #[test]
    fn nobody_waits_and_holds_a_slot() {
        for gate in (0..=8).map(Gate::from_bits) {
            assert!(!(gate.waits() && gate.holds_slot()), "{gate:?}");
        }
    }
}
