//! What a gateway's behaviour tells, apart from slots.

use std::time::Duration;

use shaper_common::Class;

use super::{ConnHandle, LaneId};

/// One thing that a gateway did, or left undone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// It accepted a connect that had been let through.
    Connected,
    /// The first byte of an answer came, `after` its request began to leave.
    Answered { conn: ConnHandle, after: Duration },
    /// What the head of an answer says. Comes behind [`Answered`](Self::Answered), where heads can be read.
    Head(AnswerHead),
    /// It failed a connection.
    Failed { conn: ConnHandle, fault: Fault },
    /// The client went away `after` its request had begun to leave, unanswered.
    GaveUp { conn: ConnHandle, after: Duration },
}

/// The head of an HTTP answer, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnswerHead {
    pub status: u16,
    /// `Retry-After`, from now.
    pub retry_after: Option<Duration>,
}

/// What an answer means for those who want to send more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    Fine,
    /// The gateway asks for less.
    Throttled,
    /// It could not do its work.
    ServerError,
}

impl AnswerHead {
    pub(super) fn meaning(self) -> Meaning {
        match self.status {
            // 529 is no registered status, but what some providers' API hosts answer when they are overloaded.
            429 | 503 | 529 => Meaning::Throttled,
            // With a redirection it speaks of the redirected request alone (RFC 9110, 10.2.3).
            400.. if self.retry_after.is_some() => Meaning::Throttled,
            500.. => Meaning::ServerError,
            _ => Meaning::Fine,
        }
    }
}

/// How a gateway fails a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// It refused the connect.
    Refused,
    /// The network said that it cannot be reached.
    Unreachable,
    /// It did not answer a SYN that was let through, for a second or more.
    ConnectTimeout,
    /// It reset a connection while it owed an answer, or the rest of one.
    Reset,
    /// It closed a connection while it owed an answer.
    Unanswered,
}

impl Fault {
    /// Whether the connection was never made.
    pub(super) fn is_of_connect(self) -> bool {
        matches!(
            self,
            Self::Refused | Self::Unreachable | Self::ConnectTimeout
        )
    }
}

/// What went wrong at a gateway. A closed set: it is a metric's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GatewayError {
    Connection(Fault),
    /// It asked for less while some configured rate was exceeded, or none is configured.
    Throttled,
    /// It asked for less although every configured rate was kept (C8).
    ThrottledUnderLimit,
    /// Any other response with a status of 500 or more.
    ServerError,
}

impl GatewayError {
    pub const COUNT: usize = 8;

    pub const ALL: [Self; Self::COUNT] = [
        Self::Connection(Fault::Refused),
        Self::Connection(Fault::Unreachable),
        Self::Connection(Fault::ConnectTimeout),
        Self::Connection(Fault::Reset),
        Self::Connection(Fault::Unanswered),
        Self::Throttled,
        Self::ThrottledUnderLimit,
        Self::ServerError,
    ];

    /// Its place in [`ALL`](Self::ALL).
    pub const fn index(self) -> usize {
        match self {
            Self::Connection(fault) => fault as usize,
            Self::Throttled => 5,
            Self::ThrottledUnderLimit => 6,
            Self::ServerError => 7,
        }
    }

    /// The name in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connection(Fault::Refused) => "refused",
            Self::Connection(Fault::Unreachable) => "unreachable",
            Self::Connection(Fault::ConnectTimeout) => "connect_timeout",
            Self::Connection(Fault::Reset) => "reset",
            Self::Connection(Fault::Unanswered) => "unanswered",
            Self::Throttled => "throttled",
            Self::ThrottledUnderLimit => "throttled_under_limit",
            Self::ServerError => "server_error",
        }
    }
}

/// One error of a gateway, for metrics, the history and logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Erred {
    pub lane: LaneId,
    /// Of the request or connect that met it.
    pub class: Class,
    pub error: GatewayError,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_has_its_own_place_and_name() {
        for (index, error) in GatewayError::ALL.into_iter().enumerate() {
            assert_eq!(error.index(), index, "{error:?}");
            let namesakes = GatewayError::ALL
                .iter()
                .filter(|e| e.name() == error.name());
            assert_eq!(namesakes.count(), 1, "{error:?}");
        }
    }

    #[test]
    fn answers_that_ask_for_less_are_told_from_those_that_fail() {
        let head = |status, retry_after: Option<u64>| AnswerHead {
            status,
            retry_after: retry_after.map(Duration::from_secs),
        };
        for (status, retry_after, meaning) in [
            (200, None, Meaning::Fine),
            (404, None, Meaning::Fine),
            (301, Some(9), Meaning::Fine),
            (429, None, Meaning::Throttled),
            (503, None, Meaning::Throttled),
            (529, None, Meaning::Throttled),
            (413, Some(9), Meaning::Throttled),
            (500, Some(9), Meaning::Throttled),
            (500, None, Meaning::ServerError),
            (502, None, Meaning::ServerError),
        ] {
            assert_eq!(
                head(status, retry_after).meaning(),
                meaning,
                "{status} {retry_after:?}"
            );
        }
    }
}
