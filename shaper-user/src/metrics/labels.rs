//! The values of metric labels: closed sets, so that no client can grow the number of series.

use shaper_common::{Class, Counter};

use crate::policy::{Diagnosis, GatewayError};

/// A closed set of label values.
pub(super) trait Label: Copy + 'static {
    /// All values, each at its own index.
    const ALL: &'static [Self];

    fn index(self) -> usize;

    fn text(self) -> &'static str;
}

macro_rules! label {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
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
        /// It was refused at connect, see [`RefusalReason`].
        Refused = "refused",
    }
}

label! {
    /// Which limit refused a connect (B5, B6).
    RefusalReason {
        /// The lane has `max_queue` waiters.
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
}

impl Label for GatewayError {
    const ALL: &'static [Self] = &Self::ALL;

    fn index(self) -> usize {
        Self::index(self)
    }

    fn text(self) -> &'static str {
        self.name()
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
}

/// The kernel's counters that have a series in `shaper_ungoverned_total`, with the value of its label.
pub(super) fn ungoverned_reasons() -> impl Iterator<Item = (Counter, &'static str)> {
    Counter::ALL
        .into_iter()
        .filter_map(|counter| Some((counter, counter.ungoverned_reason()?)))
}
