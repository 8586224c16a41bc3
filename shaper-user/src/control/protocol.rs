//! What goes over the control socket: one JSON object a line, a reply for each request, in order.
//!
//! ```text
//! > {"version":2,"request":"resume","lane":"reasoning"}
//! < {"version":2,"reply":"done"}
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use crate::{
    config::Setting,
    handle::{CommandError, HandleError},
    history::Report,
    pause::InForce,
    snapshot::{Snapshot, Waiters},
};

/// Raised when a request or reply changes so that an older peer would misread it.
pub const PROTOCOL: u32 = 2;

/// The longest request, in bytes with its newline.
pub(super) const REQUEST_MAX: u64 = 16 * 1024;

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case")]
pub enum Request {
    Status,
    Waiters,
    /// The last `since_ms` of one lane or of all.
    Stats {
        lane: Option<String>,
        #[serde(rename = "since_ms", with = "millis")]
        since: Duration,
    },
    Pause {
        lane: String,
        #[serde(rename = "for_ms", with = "millis")]
        length: Duration,
    },
    Resume {
        lane: String,
    },
    /// All of the settings or none.
    Set {
        lane: String,
        settings: Vec<Setting>,
    },
    /// End, and leave nothing attached.
    Detach,
}

impl Request {
    /// Whether it changes anything: that is not for everybody who may look.
    pub fn changes(&self) -> bool {
        match self {
            Self::Status | Self::Waiters | Self::Stats { .. } => false,
            Self::Pause { .. } | Self::Resume { .. } | Self::Set { .. } | Self::Detach => true,
        }
    }
}

/// What the controller answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    Status {
        snapshot: Snapshot,
    },
    Waiters {
        waiters: Waiters,
    },
    Stats {
        stats: Report,
    },
    /// The lane is in this pause: the one that was asked for, or a longer one that it was in already.
    Paused {
        pause: InForce,
    },
    /// The settings are in force; what is worth a warning, each in words.
    Set {
        warnings: Vec<String>,
    },
    /// The change is in force.
    Done,
    Error {
        kind: ErrorKind,
        message: String,
    },
}

/// What kind of error, for those who decide by it; the message is for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The request could not be read.
    BadRequest,
    /// The peer may look, but not change anything.
    Forbidden,
    UnknownLane,
    /// The lane's rules do not allow it.
    Refused,
    /// The controller's loop gave no answer.
    NoAnswer,
}

impl From<HandleError> for Reply {
    fn from(error: HandleError) -> Self {
        let kind = match error {
            HandleError::NoAnswer(_) | HandleError::Gone => ErrorKind::NoAnswer,
            HandleError::Command(CommandError::UnknownLane { .. }) => ErrorKind::UnknownLane,
            HandleError::Command(CommandError::Refused(_)) => ErrorKind::Refused,
        };
        Self::Error {
            kind,
            message: error.to_string(),
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Message<T> {
    version: u32,
    #[serde(flatten)]
    body: T,
}

/// Why a line could not be read.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    #[error(
        "the other side speaks version {0} of the control protocol, this one version {PROTOCOL}: use the `shaper` \
         of the controller that is running"
    )]
    Version(u32),
    #[error("not a line of the control protocol: {0}")]
    Malformed(#[from] serde_json::Error),
}

/// The line that says `body`, newline included.
pub(crate) fn encode<T: Serialize>(body: &T) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(&Message {
        version: PROTOCOL,
        body,
    })?;
    line.push(b'\n');
    Ok(line)
}

/// Reads a line.
///
/// # Errors
/// When it is not JSON, of another version, or not a `T`.
pub(crate) fn decode<T: DeserializeOwned>(line: &[u8]) -> Result<T, DecodeError> {
    // The version first: of a newer peer's line nothing else can be relied on.
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let Version { version } = serde_json::from_slice(line)?;
    if version != PROTOCOL {
        return Err(DecodeError::Version(version));
    }
    Ok(serde_json::from_slice::<Message<T>>(line)?.body)
}

/// A duration in whole milliseconds.
mod millis {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(value.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_line_of_the_documented_form() {
        let pause = Request::Pause {
            lane: "reasoning".into(),
            length: Duration::from_secs(30),
        };
        let line = encode(&pause).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&line),
            "{\"version\":2,\"request\":\"pause\",\"lane\":\"reasoning\",\"for_ms\":30000}\n"
        );
        assert_eq!(decode::<Request>(&line).unwrap(), pause);
    }

    #[test]
    fn another_version_is_named_whatever_else_the_line_says() {
        let error = decode::<Request>(br#"{"version":3,"request":"dance"}"#).unwrap_err();
        assert!(matches!(error, DecodeError::Version(3)), "{error}");
    }

    #[test]
    fn a_line_that_is_no_request_is_malformed() {
        for line in [
            "",
            "status",
            "[]",
            r#"{"request":"status"}"#,
            r#"{"version":2}"#,
            r#"{"version":2,"request":"dance"}"#,
            r#"{"version":2,"request":"pause","lane":"reasoning"}"#,
            r#"{"version":2,"request":"pause","lane":"reasoning","for_ms":-1}"#,
        ] {
            let error = decode::<Request>(line.as_bytes()).unwrap_err();
            assert!(
                matches!(error, DecodeError::Malformed(_)),
                "{line}: {error}"
            );
        }
    }
}
