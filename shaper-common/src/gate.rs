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
    /// The connection ends: one side has closed it. Everything passes, no slot.
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
    /// All gates, by number.
    pub const ALL: [Self; 9] = [
        Self::Free,
        Self::HeldSyn,
        Self::HeldRequest,
        Self::Open,
        Self::Parked,
        Self::Closing,
        Self::Doomed,
        Self::Lingering,
        Self::Released,
    ];

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

    /// Whether the handshake passes and request bytes stay back.
    #[inline(always)]
    pub const fn blocks_requests(self) -> bool {
        matches!(self, Self::HeldRequest | Self::Parked | Self::Doomed)
    }
}

/// A gate with its flags and the generation of its record, so that a compare-and-swap can never touch the next user
/// of a record, nor act on a state that has changed meanwhile.
///
/// ```text
///  63         32 31   11  10     9     8   7      0
/// ┌─────────────┬───────┬──────┬─────┬────┬────────┐
/// │ generation  │   0   │ gone │guess│busy│  gate  │
/// └─────────────┴───────┴──────┴─────┴────┴────────┘
/// ```
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct GateWord(u64);

const BUSY: u64 = 1 << 8;
const GUESS: u64 = 1 << 9;
const GONE: u64 = 1 << 10;

impl core::fmt::Debug for GateWord {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("GateWord")
            .field("generation", &self.generation())
            .field("gate", &self.gate())
            .field("busy", &self.is_busy())
            .field("guess", &self.is_guess())
            .field("gone", &self.is_gone())
            .finish()
    }
}

impl GateWord {
    /// A gate without flags.
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

    /// The last payload went to the gateway: a request is in flight, however long the gateway thinks.
    #[inline(always)]
    pub const fn is_busy(self) -> bool {
        self.0 & BUSY != 0
    }

    #[inline(always)]
    pub const fn with_busy(self, busy: bool) -> Self {
        if busy {
            Self(self.0 | BUSY)
        } else {
            Self(self.0 & !BUSY)
        }
    }

    /// Parked because of silence, not because the response ended for sure: more of it may come.
    #[inline(always)]
    pub const fn is_guess(self) -> bool {
        self.0 & GUESS != 0
    }

    #[inline(always)]
    pub const fn with_guess(self) -> Self {
        Self(self.0 | GUESS)
    }

    /// The socket is closed and only the record is left.
    #[inline(always)]
    pub const fn is_gone(self) -> bool {
        self.0 & GONE != 0
    }

    #[inline(always)]
    pub const fn with_gone(self) -> Self {
        Self(self.0 | GONE)
    }

    /// The same record with another gate and no flags.
    #[inline(always)]
    pub const fn with_gate(self, gate: Gate) -> Self {
        Self::new(self.generation(), gate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gate_word_keeps_its_parts_apart() {
        for gate in Gate::ALL {
            assert_eq!(Gate::from_bits(gate as u8), gate);
            let word = GateWord::new(u32::MAX, gate);
            assert_eq!((word.generation(), word.gate()), (u32::MAX, gate));
            let flagged = word.with_busy(true).with_guess().with_gone();
            assert_eq!((flagged.generation(), flagged.gate()), (u32::MAX, gate));
            assert!(flagged.is_busy() && flagged.is_guess() && flagged.is_gone());
            assert!(!flagged.with_busy(false).is_busy());
            assert_eq!(flagged.with_gate(gate), word);
        }
    }

    #[test]
    fn nobody_waits_and_holds_a_slot() {
        for gate in Gate::ALL {
            assert!(!(gate.waits() && gate.holds_slot()), "{gate:?}");
        }
    }
}
