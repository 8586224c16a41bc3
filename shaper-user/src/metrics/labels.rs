//! The values of metric labels: closed sets, so that no client can grow the number of series.

use shaper_common::{Class, Counter};

use super::family::Value;
use crate::policy::{Diagnosis, Fault, GatewayError};

/// A closed set of label values.
pub(super) trait Label: Copy + 'static {
    /// All values, each at its own index.
    const ALL: &'static [Self];

    fn index(self) -> usize;

    fn text(self) -> &'static str;

    /// A sentence, for the metrics reference.
    fn meaning(self) -> &'static str;
}

macro_rules! label {
    ($(#[$doc:meta])* $name:ident { $(#[doc = $meaning:literal] $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $(#[doc = $meaning] $variant,)+
        }

        impl Label for $name {
            const ALL: &'static [Self] = &[$(Self::$variant,)+];

            fn index(self) -> usize {
                self as usize
            }

            fn text(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }

            fn meaning(self) -> &'static str {
                match self {
                    $(Self::$variant => $meaning.trim_ascii(),)+
                }
            }
        }
    };
}

label! {
    /// How a connection to a lane ended.
    Outcome {
        /// It was served, and closed by either side with no request unanswered.
        Completed = "completed",
        /// The client went away while its request was unanswered.
        Abandoned = "abandoned",
        /// The gateway refused or reset it, or did not answer its SYN.
        Failed = "failed",
        /// The client went away while it waited: nothing reached the gateway.
        LeftQueue = "left_queue",
        /// It waited for the whole queue timeout and was ended.
        QueueTimeout = "queue_timeout",
        /// It was refused at connect, see `shaper_refusals_total`.
        Refused = "refused",
    }
}

label! {
    /// Which limit refused a connect (B5, B6).
    RefusalReason {
        /// The lane has as many waiters as `max_queue` allows.
        QueueFull = "queue_full",
        /// `udp = "block"`: QUIC would bypass the lane.
        Udp = "udp",
    }
}

label! {
    /// Which way payload went.
    Direction {
        /// To the gateway.
        Sent = "sent",
        /// From the gateway.
        Received = "received",
    }
}

label! {
    /// What became of a reload.
    ReloadResult {
        /// The configuration changed and is in force.
        Applied = "applied",
        /// It was the same as before.
        Unchanged = "unchanged",
        /// It had errors: the configuration before it stays in force.
        Rejected = "rejected",
    }
}

label! {
    /// Where two accounts of one thing had drifted apart and were brought together again.
    Drift {
        /// The policy's picture and the records: news was lost, or came twice. Connections.
        News = "news",
        /// A lane's or an account's counts in the kernel, and the records they count. Counts.
        Counts = "counts",
        /// The records and the sockets: an end that no program saw. Connections.
        Sockets = "sockets",
    }
}

impl Label for Class {
    const ALL: &'static [Self] = &Self::ALL;

    fn index(self) -> usize {
        Class::index(self)
    }

    fn text(self) -> &'static str {
        self.name()
    }

    fn meaning(self) -> &'static str {
        match self {
            Self::Interactive => "Of class interactive: somebody waits for it at a prompt.",
            Self::Default => "Of class default.",
            Self::Bulk => "Of class bulk: it can wait.",
        }
    }
}

impl Label for GatewayError {
    const ALL: &'static [Self] = &Self::ALL;

    fn index(self) -> usize {
        Self::index(self)
    }

    fn text(self) -> &'static str {
        self.name()
    }

    fn meaning(self) -> &'static str {
        match self {
            Self::Connection(Fault::Refused) => "It refused a connect.",
            Self::Connection(Fault::Unreachable) => "The network said that it cannot be reached.",
            Self::Connection(Fault::ConnectTimeout) => {
                "It did not answer a SYN that was let through, for a second or more."
            }
            Self::Connection(Fault::Reset) => {
                "It reset a connection while it owed an answer, or the rest of one."
            }
            Self::Connection(Fault::Unanswered) => {
                "It closed a connection while it owed an answer."
            }
            Self::Throttled => {
                "It asked for less (429, 503, 529 or `Retry-After`) while a configured rate was exceeded, or none is \
                 configured."
            }
            Self::ThrottledUnderLimit => {
                "It asked for less although every configured rate was kept."
            }
            Self::ServerError => "It answered with another status of 500 or more.",
        }
    }
}

impl Label for Diagnosis {
    const ALL: &'static [Self] = &Self::ALL;

    fn index(self) -> usize {
        self as usize
    }

    fn text(self) -> &'static str {
        self.name()
    }

    fn meaning(self) -> &'static str {
        match self {
            Self::Ok => "Nothing waits, nothing fails.",
            Self::LocalQueue => "Requests wait on purpose: for a slot, for a cap, for the pace.",
            Self::GatewayDegraded => {
                "The gateway fails or is slow to answer, and it is not for our load."
            }
            Self::Paused => "The lane starts nothing until a pause ends.",
            Self::Observe => "The lane only observes.",
        }
    }
}

/// Why something passed although it could have been governed: the kernel's counters that have a series in
/// `shaper_ungoverned_total`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ungoverned {
    /// The value of its label.
    pub(super) reason: &'static str,
    pub(super) counter: Counter,
    /// A sentence.
    pub(super) meaning: &'static str,
}

pub(super) fn ungoverned() -> impl Iterator<Item = Ungoverned> {
    Counter::ALL.into_iter().filter_map(|counter| {
        Some(Ungoverned {
            reason: counter.ungoverned_reason()?,
            counter,
            meaning: match counter {
                Counter::EventsLost => return None,
                Counter::TableFull => "The table of connections was full.",
                Counter::NoStorage => "There was no memory to mark the socket.",
                Counter::ControllerLost => {
                    "The controller's last sign of life was older than `fail_after`."
                }
                Counter::Malformed => "A packet of a held connection could not be read.",
                Counter::Unseen => {
                    "No connect hook saw the connection: MPTCP, or a socket that another cgroup made."
                }
                Counter::Contended => "A word stayed contended beyond the bound.",
            },
        })
    })
}

/// The values of `reason` in `shaper_ungoverned_total`.
pub(super) fn ungoverned_values() -> Vec<Value> {
    let value = |one: Ungoverned| Value {
        text: one.reason,
        meaning: one.meaning,
    };
    ungoverned().map(value).collect()
}
