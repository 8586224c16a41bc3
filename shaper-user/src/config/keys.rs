//! Every key a configuration may have: the one table that parsing and the configuration reference share.

use std::{fmt, time::Duration};

use shaper_common::{Class, MAX_CONNS, MAX_SLOTS, OnLoss};

use super::{
    OnFull, Scope, Udp,
    kind::{
        Cgroups, Choice, Count, Counts, Endpoints, FilePath, Form, Hold, Kind, Listen, Part, Share,
        Switch, Time,
    },
};
use crate::policy::PaceMode;

/// Stands in a path for the name of any class.
pub const ANY_CLASS: &str = "<class>";

/// What holds when a key is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// An error.
    Required,
    /// An error if `max_inflight` is more than 0.
    RequiredToEnforce,
    /// This value, as TOML.
    Default(&'static str),
    /// What these words say.
    Optional(&'static str),
}

impl fmt::Display for Presence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Required => f.write_str("required"),
            Self::RequiredToEnforce => f.write_str("required when max_inflight > 0"),
            Self::Default(toml) => f.write_str(toml),
            Self::Optional(otherwise) => f.write_str(otherwise),
        }
    }
}

/// One key and how its value is read.
#[derive(Debug)]
pub struct Key<K: 'static> {
    /// Dotted, from the top of the file.
    pub path: &'static str,
    pub kind: K,
    pub presence: Presence,
    /// One line, for the reference.
    pub meaning: &'static str,
}

impl<K> Key<K> {
    /// The path for one class, of a key that each class can have.
    pub fn path_for(&self, class: Class) -> String {
        self.path.replace(ANY_CLASS, class.name())
    }
}

/// What the configuration reference says of a key.
pub trait Documented: fmt::Debug + Sync {
    /// Dotted, from the top of the file; [`ANY_CLASS`] stands for the name of a class.
    fn path(&self) -> &'static str;
    /// What a right value is, as the end of a sentence.
    fn expected(&self) -> String;
    fn form(&self) -> Form;
    fn presence(&self) -> Presence;
    fn meaning(&self) -> &'static str;
}

impl<K: Kind> Documented for Key<K> {
    fn path(&self) -> &'static str {
        self.path
    }

    fn expected(&self) -> String {
        self.kind.expected()
    }

    fn form(&self) -> Form {
        self.kind.form()
    }

    fn presence(&self) -> Presence {
        self.presence
    }

    fn meaning(&self) -> &'static str {
        self.meaning
    }
}

/// The keys of one kind of file.
#[derive(Debug)]
pub struct Schema {
    pub keys: &'static [&'static dyn Documented],
}

/// Keys of `lanes.d/NAME.toml`.
pub static LANE: Schema = Schema {
    keys: &[
        &lane::ENDPOINTS,
        &lane::MAX_INFLIGHT,
        &lane::ENFORCE,
        &lane::MAX_QUEUE,
        &lane::QUEUE_TIMEOUT,
        &lane::INTERACTIVE_RESERVE,
        &lane::CONNECT_HOLD,
        &lane::IDLE_RELEASE,
        &lane::ABORT_HOLD,
        &lane::WAKE_BYTES,
        &lane::AGING,
        &lane::TICKET_GRACE,
        &lane::ON_FULL,
        &lane::UDP,
        &lane::CLASS_MAX_INFLIGHT,
        &lane::CLASS_QUEUE_TIMEOUT,
        &lane::ACCOUNT_MAX_INFLIGHT,
        &lane::ACCOUNT_OVERRIDES,
        &lane::PACE_MODE,
        &lane::PACE_PER_SECOND,
        &lane::PACE_PER_MINUTE,
        &lane::PACE_MIN_INTERVAL,
        &lane::PACE_SAFETY_MARGIN,
        &lane::PACE_WINDOW_SLACK,
        &lane::RETRY_AFTER_MAX,
        &lane::ADAPTIVE_DECREASE,
        &lane::ADAPTIVE_INCREASE,
        &lane::ADAPTIVE_MIN,
        &lane::ADAPTIVE_COOLDOWN,
    ],
};

/// Keys of `shaper.toml`.
pub static SETTINGS: Schema = Schema {
    keys: &[
        &settings::LISTEN,
        &settings::TOKEN_FILE,
        &settings::SCOPE,
        &settings::FOLLOW_DNS,
        &settings::ON_CONTROLLER_LOSS,
        &settings::FAIL_AFTER,
        &settings::HISTORY,
        &settings::CLASS_CGROUPS,
    ],
};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const MS: Duration = Duration::from_millis(1);

const SLOTS: Count = Count {
    min: 1,
    max: MAX_SLOTS,
    unit: "slots",
};

/// Starts per second or per minute.
const RATE: Count = Count {
    min: 1,
    max: 1_000_000,
    unit: "starts",
};

const UP_TO_A_DAY: Time = Time {
    min: Duration::ZERO,
    max: DAY,
};

/// A wait of zero would be no queue at all, which `max_queue = 0` says better.
const WAIT: Time = Time { min: MS, max: DAY };

pub mod lane {
    use super::*;

    pub const ENDPOINTS: Key<Endpoints> = Key {
        path: "endpoints",
        kind: Endpoints,
        presence: Presence::Required,
        meaning: "The addresses of the gateway: all of them share this lane's limit and queue.",
    };
    pub const MAX_INFLIGHT: Key<Count> = Key {
        path: "max_inflight",
        kind: Count {
            min: 0,
            max: MAX_SLOTS,
            unit: "requests",
        },
        presence: Presence::Required,
        meaning: "Requests in flight at once; 0 observes only: nothing is held, everything is counted.",
    };
    pub const ENFORCE: Key<Switch> = Key {
        path: "enforce",
        kind: Switch,
        presence: Presence::Default("true"),
        meaning: "Whether anything is held; if not, what `max_inflight` would have held is worked out and shown.",
    };
    pub const MAX_QUEUE: Key<Count> = Key {
        path: "max_queue",
        kind: Count {
            min: 0,
            max: MAX_CONNS,
            unit: "connections",
        },
        presence: Presence::RequiredToEnforce,
        meaning: "Connections that may wait; one more is refused at once (see `on_full`).",
    };
    pub const QUEUE_TIMEOUT: Key<Time> = Key {
        path: "queue_timeout",
        kind: WAIT,
        presence: Presence::RequiredToEnforce,
        meaning: "The longest wait; then the connection is ended.",
    };
    pub const INTERACTIVE_RESERVE: Key<Count> = Key {
        path: "interactive_reserve",
        kind: Count {
            min: 0,
            max: MAX_SLOTS,
            unit: "slots",
        },
        presence: Presence::Default("0"),
        meaning: "Slots that only class interactive may take; at most `max_inflight` - 1.",
    };
    pub const CONNECT_HOLD: Key<Hold> = Key {
        path: "connect_hold",
        kind: Hold { time: UP_TO_A_DAY },
        presence: Presence::Default("\"4s\""),
        meaning: "How long connect() itself is held; after that the connection is made and its request is held.",
    };
    pub const IDLE_RELEASE: Key<Time> = Key {
        path: "idle_release",
        // The quiet time after a certain end of a response: a shorter guess would be quicker than the certainty.
        kind: Time {
            min: Duration::from_millis(20),
            max: DAY,
        },
        presence: Presence::Default("\"2s\""),
        meaning: "Silence after a response at which a kept-alive connection gives its slot back.",
    };
    pub const ABORT_HOLD: Key<Time> = Key {
        path: "abort_hold",
        kind: UP_TO_A_DAY,
        presence: Presence::Default("\"15s\""),
        meaning: "How long the slot of an abandoned request stays taken: the gateway may still be working on it.",
    };
    pub const WAKE_BYTES: Key<Count> = Key {
        path: "wake_bytes",
        // A segment of common MTU. More would let whole prompts pass a held gate.
        kind: Count {
            min: 0,
            max: 1460,
            unit: "bytes",
        },
        presence: Presence::Default("128"),
        meaning: "The largest segment, in bytes, that counts as handshake or ping and passes while requests are held.",
    };
    pub const AGING: Key<Time> = Key {
        path: "aging",
        kind: WAIT,
        presence: Presence::Default("\"60s\""),
        meaning: "Wait after which a waiter is ordered as if one class higher.",
    };
    pub const TICKET_GRACE: Key<Time> = Key {
        path: "ticket_grace",
        kind: UP_TO_A_DAY,
        presence: Presence::Default("\"10s\""),
        meaning: "How long a client that gave up keeps its place in line for its next attempt.",
    };
    pub const ON_FULL: Key<Choice<OnFull>> = Key {
        path: "on_full",
        kind: Choice {
            words: &[
                ("refuse", OnFull::Refuse),
                ("unreachable", OnFull::Unreachable),
                ("timeout", OnFull::Timeout),
            ],
        },
        presence: Presence::Default("\"refuse\""),
        meaning: "What connect() fails with when the queue is full: ECONNREFUSED, EHOSTUNREACH or ETIMEDOUT.",
    };
    pub const UDP: Key<Choice<Udp>> = Key {
        path: "udp",
        kind: Choice {
            words: &[("block", Udp::Block), ("allow", Udp::Allow)],
        },
        presence: Presence::Default("\"block\""),
        meaning: "Whether UDP may reach the endpoints: QUIC would bypass the lane.",
    };
    pub const CLASS_MAX_INFLIGHT: Key<Count> = Key {
        path: "class.<class>.max_inflight",
        kind: SLOTS,
        presence: Presence::Optional("no cap of its own"),
        meaning: "The most slots this class may use at once.",
    };
    pub const CLASS_QUEUE_TIMEOUT: Key<Time> = Key {
        path: "class.<class>.queue_timeout",
        kind: WAIT,
        presence: Presence::Optional("`queue_timeout` of the lane"),
        meaning: "The longest wait of this class.",
    };
    pub const ACCOUNT_MAX_INFLIGHT: Key<Count> = Key {
        path: "account.max_inflight",
        kind: SLOTS,
        presence: Presence::Optional("no cap"),
        meaning: "The most slots one account (a child cgroup of a class cgroup) may use at once.",
    };
    pub const ACCOUNT_OVERRIDES: Key<Counts> = Key {
        path: "account.overrides",
        kind: Counts { each: SLOTS },
        presence: Presence::Optional("none"),
        meaning: "Other caps for accounts by name.",
    };
    pub const PACE_MODE: Key<Choice<PaceMode>> = Key {
        path: "pace.mode",
        kind: Choice {
            words: &[("burst", PaceMode::Burst), ("even", PaceMode::Even)],
        },
        presence: Presence::Default("\"burst\""),
        meaning: "How the rates are kept: by sliding windows, or by one start per interval.",
    };
    pub const PACE_PER_SECOND: Key<Count> = Key {
        path: "pace.per_second",
        kind: RATE,
        presence: Presence::Optional("no limit"),
        meaning: "Starts in any one second.",
    };
    pub const PACE_PER_MINUTE: Key<Count> = Key {
        path: "pace.per_minute",
        kind: RATE,
        presence: Presence::Optional("no limit"),
        meaning: "Starts in any one minute.",
    };
    pub const PACE_MIN_INTERVAL: Key<Time> = Key {
        path: "pace.min_interval",
        kind: UP_TO_A_DAY,
        presence: Presence::Default("\"0s\""),
        meaning: "The shortest time between two starts.",
    };
    pub const PACE_SAFETY_MARGIN: Key<Share> = Key {
        path: "pace.safety_margin",
        kind: Share,
        presence: Presence::Default("0.0"),
        meaning: "The share of every rate that stays free: 0.1 uses nine tenths.",
    };
    pub const PACE_WINDOW_SLACK: Key<Time> = Key {
        path: "pace.window_slack",
        // Longer than the longest window would do more than absorb jitter.
        kind: Time {
            min: Duration::ZERO,
            max: Duration::from_secs(60),
        },
        presence: Presence::Default("\"0s\""),
        meaning: "Added to each window, for jitter between sending here and counting at the gateway.",
    };
    pub const RETRY_AFTER_MAX: Key<Time> = Key {
        path: "retry_after_max",
        kind: UP_TO_A_DAY,
        presence: Presence::Default("\"1h\""),
        meaning: "The longest pause that the gateway's Retry-After can cause; \"0s\" ignores it.",
    };
    pub const ADAPTIVE_DECREASE: Key<Part> = Key {
        path: "adaptive.decrease",
        kind: Part,
        presence: Presence::Default("0.7"),
        meaning: "What is left of limit and rates when the gateway asks for less, at most once in 5 s.",
    };
    pub const ADAPTIVE_INCREASE: Key<Part> = Key {
        path: "adaptive.increase",
        kind: Part,
        presence: Presence::Default("0.1"),
        meaning: "What comes back, as a share of the configured values, for every `cooldown` without that.",
    };
    pub const ADAPTIVE_MIN: Key<Part> = Key {
        path: "adaptive.min",
        kind: Part,
        presence: Presence::Default("0.2"),
        meaning: "The share of limit and rates that is left in any case; one slot always is.",
    };
    pub const ADAPTIVE_COOLDOWN: Key<Time> = Key {
        path: "adaptive.cooldown",
        kind: Time {
            min: Duration::from_secs(1),
            max: DAY,
        },
        presence: Presence::Default("\"5m\""),
        meaning: "Time without a refusal after which a step comes back.",
    };
}

pub mod settings {
    use super::*;

    pub const LISTEN: Key<Listen> = Key {
        path: "listen",
        kind: Listen,
        presence: Presence::Default("\"127.0.0.1:9797\""),
        meaning: "Where metrics, the snapshot and the live page are served.",
    };
    pub const TOKEN_FILE: Key<FilePath> = Key {
        path: "token_file",
        kind: FilePath,
        presence: Presence::Optional("none: HTTP only shows"),
        meaning: "The file with the token that lets HTTP clients, the live page among them, change lanes.",
    };
    pub const SCOPE: Key<Choice<Scope>> = Key {
        path: "scope",
        kind: Choice {
            words: &[("classes", Scope::Classes), ("host", Scope::Host)],
        },
        presence: Presence::Default("\"classes\""),
        meaning: "Who is governed: processes in a class cgroup, or every process of the host (as class default).",
    };
    pub const FOLLOW_DNS: Key<Switch> = Key {
        path: "follow_dns",
        kind: Switch,
        presence: Presence::Default("false"),
        meaning: "Whether lanes' host names are also followed in what name servers answer to processes.",
    };
    pub const ON_CONTROLLER_LOSS: Key<Choice<OnLoss>> = Key {
        path: "on_controller_loss",
        kind: Choice {
            words: &[("open", OnLoss::Open), ("closed", OnLoss::Closed)],
        },
        presence: Presence::Default("\"open\""),
        meaning: "What the gates do while the controller is gone: let everything through, or keep holding.",
    };
    pub const FAIL_AFTER: Key<Time> = Key {
        path: "fail_after",
        // Two heartbeats: less would take a late one for a dead controller. Longer than a minute, and TCP's own next try,
        // with which what is held goes on, may be as far away again.
        kind: Time {
            min: Duration::from_secs(1),
            max: Duration::from_secs(60),
        },
        presence: Presence::Default("\"5s\""),
        meaning: "Age of the controller's last sign of life at which it counts as gone.",
    };
    pub const HISTORY: Key<Time> = Key {
        path: "history",
        // Ten years, for a lane whose hour is some hundred bytes.
        kind: Time {
            min: Duration::from_secs(60 * 60),
            max: Duration::from_secs(3660 * 24 * 60 * 60),
        },
        presence: Presence::Default("\"90d\""),
        meaning: "How far back `shaper stats` can look: what is older is forgotten.",
    };
    /// The default differs by class, so it is not in this table as a value: see `Settings::default`.
    pub const CLASS_CGROUPS: Key<Cgroups> = Key {
        path: "classes.<class>.cgroups",
        kind: Cgroups,
        presence: Presence::Optional(
            "`[\"shaper/<class>\"]`; where systemd runs the host, `[\"shaper.slice/shaper-<class>.slice\"]`",
        ),
        meaning: "The cgroups of the class, relative to the cgroup2 mount; created if absent; globs allowed.",
    };
}
