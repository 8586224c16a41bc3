//! Counters of the kernel side that belong to no lane: everything that passed although it could have been governed,
//! and everything that was lost. A per-CPU array, summed by the controller.

/// What is counted, by index into the array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Counter {
    /// The ring buffer was full: an event was lost.
    EventsLost = 0,
    /// The connection array was full: the connection passed ungoverned.
    TableFull = 1,
    /// Socket storage could not be made: the connection passed ungoverned.
    NoStorage = 2,
    /// The heartbeat was stale and `on_controller_loss` is `open`: the connection or packet passed.
    ControllerLost = 3,
    /// A packet of a held connection could not be read: it passed.
    Malformed = 4,
    /// A connect to a lane's endpoint that no connect program saw (MPTCP, a socket of another cgroup's making).
    Unseen = 5,
    /// A word stayed contended beyond the bound, and the packet or connection passed.
    Contended = 6,
}

/// Number of counters.
pub const COUNTER_COUNT: u32 = 7;

impl Counter {
    /// All counters.
    pub const ALL: [Self; COUNTER_COUNT as usize] = [
        Self::EventsLost,
        Self::TableFull,
        Self::NoStorage,
        Self::ControllerLost,
        Self::Malformed,
        Self::Unseen,
        Self::Contended,
    ];

    /// The value of the `reason` label where this counts an ungoverned connection or packet; `None` where it does not.
    pub const fn ungoverned_reason(self) -> Option<&'static str> {
        match self {
            Self::EventsLost => None,
            Self::TableFull => Some("table_full"),
            Self::NoStorage => Some("no_storage"),
            Self::ControllerLost => Some("controller_lost"),
            Self::Malformed => Some("malformed"),
            Self::Unseen => Some("unseen"),
            Self::Contended => Some("contended"),
        }
    }
}
