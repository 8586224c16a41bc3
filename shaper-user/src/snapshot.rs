//! What the controller shows of itself: the document behind `/api/lanes`, `shaper status` and `shaper top`.
//!
//! Field names are an outer interface. New fields may be added; none may be renamed, removed or change its unit.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use shaper_common::Class;

pub use crate::policy::Diagnosis;

/// The state of all lanes at one instant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Version of the controller.
    pub version: String,
    pub generated_at: Timestamp,
    /// Whether any lane enforces its limit.
    pub enabled: bool,
    pub lanes: Vec<LaneSnapshot>,
    /// Connections and packets that passed although they could have been governed, by reason.
    pub ungoverned: Vec<Ungoverned>,
    /// Why the last reload was turned down, if it was. The configuration before it is still in force.
    pub last_reload_error: Option<String>,
}

/// How full all lanes are at one instant: less than a [`Snapshot`], at a cost that does not grow with those who wait.
#[derive(Clone, Debug, Serialize)]
pub struct Levels {
    pub at: Timestamp,
    pub lanes: Vec<LaneLevel>,
}

impl Levels {
    /// The same instant as the snapshot's.
    pub fn of(snapshot: &Snapshot) -> Self {
        Self {
            at: snapshot.generated_at,
            lanes: snapshot.lanes.iter().map(LaneLevel::of).collect(),
        }
    }
}

/// How full one lane is; fields as of a [`LaneSnapshot`].
#[derive(Clone, Debug, Serialize)]
pub struct LaneLevel {
    pub lane: String,
    pub inflight: u32,
    pub queued: u32,
    #[serde(rename = "oldest_wait_s", with = "seconds")]
    pub oldest_wait: Duration,
}

impl LaneLevel {
    fn of(lane: &LaneSnapshot) -> Self {
        Self {
            lane: lane.lane.clone(),
            inflight: lane.inflight,
            queued: lane.queued,
            oldest_wait: lane.oldest_wait,
        }
    }
}

/// One lane. Times are in seconds, as the field names say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LaneSnapshot {
    pub lane: String,
    pub mode: Mode,
    /// `max_inflight` as configured or set. In a lane that only observes: the limit that would have held, 0 for none.
    pub limit: u32,
    /// What the lane may use now: the limit as lowered by pauses and adaptation.
    pub effective_limit: u32,
    /// Slots for interactive work only.
    pub reserve: u32,
    pub inflight: u32,
    pub inflight_by_priority: ByClass<u32>,
    /// Connections that hold no slot and wait for none.
    pub idle_connections: u32,
    pub queued: u32,
    pub queued_by_priority: ByClass<u32>,
    /// How long the oldest waiter has waited; zero when nobody waits.
    #[serde(rename = "oldest_wait_s", with = "seconds")]
    pub oldest_wait: Duration,
    /// Median wait of the requests that started in the last five minutes; zero when none did.
    #[serde(rename = "wait_p50_s_5m", with = "seconds")]
    pub wait_p50_5m: Duration,
    /// The wait that nine of ten requests started in the last five minutes stayed within; zero when none did.
    #[serde(rename = "wait_p90_s_5m", with = "seconds")]
    pub wait_p90_5m: Duration,
    pub queue_timeouts_5m: u64,
    pub refusals_5m: u64,
    /// Somebody has been waiting without a break for 60 s or more.
    pub saturated: bool,
    pub diagnosis: Diagnosis,
    /// Accounts with work in the lane.
    pub accounts: Vec<AccountSnapshot>,
    /// Waiters at which a further connect is refused.
    pub max_queue: u32,
    /// When the present pause ends.
    pub paused_until: Option<Timestamp>,
    /// In a lane that only observes: requests of the last five minutes that its limit would have made wait (A21).
    pub would_have_waited_5m: u64,
    /// The same for requests that would have found the queue full.
    pub would_have_refused_5m: u64,
    /// The same for requests that would have waited until their queue timeout.
    pub would_have_timed_out_5m: u64,
    /// In a lane that only observes: requests in flight that its limit would have wait now.
    pub shadow_queued: u32,
    /// In a lane that only observes: the median wait that its limit would have meant to the requests of the last five
    /// minutes; zero when there was none.
    #[serde(rename = "shadow_wait_p50_s_5m", with = "seconds")]
    pub shadow_wait_p50_5m: Duration,
    /// The same for the wait that nine of ten requests would have stayed within.
    #[serde(rename = "shadow_wait_p90_s_5m", with = "seconds")]
    pub shadow_wait_p90_5m: Duration,
    /// Responses of the last five minutes by which the gateway asked for less although every configured rate was kept.
    pub under_limit_5m: u64,
    /// What the diagnosis rests on, in words; `None`: there is nothing to add.
    pub diagnosis_reason: Option<String>,
    /// What went wrong at the gateway in the last five minutes, by the `kind` label of `shaper_gateway_errors_total`; kinds
    /// that did not occur are left out.
    pub gateway_errors_5m: BTreeMap<String, u32>,
    /// Clients of the last five minutes that went away before the first byte of their answer.
    pub clients_gone_5m: u32,
    /// Median time from a request's departure to the first byte of its answer, of the last five minutes; zero when there was
    /// none.
    #[serde(rename = "first_byte_p50_s_5m", with = "seconds")]
    pub first_byte_p50_5m: Duration,
    /// The same for the time within which nine of ten answers began.
    #[serde(rename = "first_byte_p90_s_5m", with = "seconds")]
    pub first_byte_p90_5m: Duration,
    /// The median of the lane's own history; zero as long as that is too short.
    #[serde(rename = "first_byte_usual_s", with = "seconds")]
    pub first_byte_usual: Duration,
    /// What adaptation leaves of the configured limit and rates: 1 is all.
    pub adaptive_factor: f64,
    /// Who began the present pause: `operator` or `gateway`.
    pub paused_by: Option<String>,
    /// Open connections that offered HTTP/2, whose parallel requests count as one.
    pub h2_connections: u32,
    /// Open connections from before the controller's start, which pass ungoverned until they close.
    pub preexisting_connections: u32,
    /// What the first in line waits for, in words; `None`: nobody waits.
    pub waiting_for: Option<String>,
    /// Clients of the last five minutes that went away while they waited and did not come back within `ticket_grace`.
    pub left_queue_5m: u32,
    /// What `shaper set` has made other than the lane's file says: each key with its value as set, or `default` for one that
    /// was taken out.
    pub overrides: BTreeMap<String, String>,
}

/// Whether a lane holds anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Everything passes and is counted.
    Observe,
    /// The limit is kept.
    Enforce,
}

/// One account's share of a lane.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccountSnapshot {
    pub account: String,
    #[serde(with = "class_name")]
    pub priority: Class,
    pub inflight: u32,
    pub queued: u32,
}

/// What passed ungoverned for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ungoverned {
    /// The `reason` label of `shaper_ungoverned_total`.
    pub reason: String,
    /// Since the kernel programs were loaded.
    pub total: u64,
}

/// One value for each class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByClass<T> {
    pub interactive: T,
    pub default: T,
    pub bulk: T,
}

impl<T> ByClass<T> {
    /// The value of `f` for each class.
    pub fn from_fn(mut f: impl FnMut(Class) -> T) -> Self {
        Self {
            interactive: f(Class::Interactive),
            default: f(Class::Default),
            bulk: f(Class::Bulk),
        }
    }

    pub fn get(&self, class: Class) -> &T {
        match class {
            Class::Interactive => &self.interactive,
            Class::Default => &self.default,
            Class::Bulk => &self.bulk,
        }
    }

    pub fn get_mut(&mut self, class: Class) -> &mut T {
        match class {
            Class::Interactive => &mut self.interactive,
            Class::Default => &mut self.default,
            Class::Bulk => &mut self.bulk,
        }
    }
}

/// Waiters of one lane that are told of, so that a queue of any length is cheap to look at. The counts in [`Snapshot`]
/// are of all.
pub const WAITERS_TOLD: usize = 200;

/// Who waits, lane by lane in the order in which they will go: the first [`WAITERS_TOLD`] of each.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Waiters {
    pub generated_at: Timestamp,
    pub waiters: Vec<Waiter>,
}

/// One connection in a lane's queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Waiter {
    pub lane: String,
    /// 1 goes next.
    pub position: u32,
    #[serde(with = "class_name")]
    pub priority: Class,
    /// The class by which it is ordered now: its own, raised by the time waited.
    #[serde(with = "class_name")]
    pub effective_priority: Class,
    pub account: Option<String>,
    pub pid: u32,
    /// The process's name (`/proc/PID/comm`), `None` when it is gone.
    pub command: Option<String>,
    pub destination: SocketAddr,
    pub stage: Stage,
    #[serde(rename = "wait_s", with = "seconds")]
    pub wait: Duration,
    /// Wait at which it is ended.
    #[serde(rename = "queue_timeout_s", with = "seconds")]
    pub queue_timeout: Duration,
}

/// What of a waiter is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Its connect.
    Connect,
    /// Its request, on a connection that is up.
    Request,
}

/// A duration as a number of seconds, to the millisecond.
pub(crate) mod seconds {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_f64(value.as_millis() as f64 / 1e3)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(from)?;
        Duration::try_from_secs_f64(seconds).map_err(D::Error::custom)
    }
}

/// A class by its name.
mod class_name {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use shaper_common::Class;

    pub(super) fn serialize<S: Serializer>(class: &Class, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(class.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Class, D::Error> {
        let name = String::deserialize(from)?;
        Class::ALL
            .into_iter()
            .find(|class| class.name() == name)
            .ok_or_else(|| D::Error::unknown_variant(&name, &["interactive", "default", "bulk"]))
    }
}

/// Fixed snapshots for the tests of everything that shows one.
#[cfg(test)]
pub(crate) mod samples {
    use super::*;

    /// The example of the design's section 7.
    pub(crate) fn busy() -> Snapshot {
        Snapshot {
            version: "0.1.0".into(),
            generated_at: "2026-01-02T03:04:05Z".parse().unwrap(),
            enabled: true,
            lanes: vec![LaneSnapshot {
                limit: 6,
                effective_limit: 6,
                reserve: 1,
                inflight: 6,
                inflight_by_priority: ByClass {
                    interactive: 1,
                    default: 2,
                    bulk: 3,
                },
                idle_connections: 4,
                queued: 9,
                queued_by_priority: ByClass {
                    interactive: 0,
                    default: 2,
                    bulk: 7,
                },
                oldest_wait: Duration::from_millis(212_400),
                wait_p50_5m: Duration::from_secs(38),
                wait_p90_5m: Duration::from_secs(171),
                queue_timeouts_5m: 2,
                saturated: true,
                diagnosis: Diagnosis::LocalQueue,
                waiting_for: Some("6 of 6 slots in use".into()),
                accounts: vec![AccountSnapshot {
                    account: "acme".into(),
                    priority: Class::Bulk,
                    inflight: 3,
                    queued: 5,
                }],
                max_queue: 64,
                ..lane("reasoning")
            }],
            ungoverned: vec![],
            last_reload_error: None,
        }
    }

    /// An enforcing lane in which nothing happens.
    pub(crate) fn lane(name: &str) -> LaneSnapshot {
        LaneSnapshot {
            lane: name.into(),
            mode: Mode::Enforce,
            limit: 4,
            effective_limit: 4,
            reserve: 0,
            inflight: 0,
            inflight_by_priority: ByClass::default(),
            idle_connections: 0,
            queued: 0,
            queued_by_priority: ByClass::default(),
            oldest_wait: Duration::ZERO,
            wait_p50_5m: Duration::ZERO,
            wait_p90_5m: Duration::ZERO,
            queue_timeouts_5m: 0,
            refusals_5m: 0,
            saturated: false,
            diagnosis: Diagnosis::Ok,
            accounts: vec![],
            max_queue: 16,
            paused_until: None,
            would_have_waited_5m: 0,
            would_have_refused_5m: 0,
            would_have_timed_out_5m: 0,
            shadow_queued: 0,
            shadow_wait_p50_5m: Duration::ZERO,
            shadow_wait_p90_5m: Duration::ZERO,
            under_limit_5m: 0,
            diagnosis_reason: None,
            gateway_errors_5m: BTreeMap::new(),
            clients_gone_5m: 0,
            first_byte_p50_5m: Duration::ZERO,
            first_byte_p90_5m: Duration::ZERO,
            first_byte_usual: Duration::ZERO,
            adaptive_factor: 1.0,
            paused_by: None,
            h2_connections: 0,
            preexisting_connections: 0,
            waiting_for: None,
            left_queue_5m: 0,
            overrides: BTreeMap::new(),
        }
    }

    /// Of the process that asks, so that there is a name to look up.
    pub(crate) fn waiters() -> Waiters {
        let own_name = std::fs::read_to_string("/proc/self/comm").unwrap();
        Waiters {
            generated_at: "2026-01-02T03:04:05Z".parse().unwrap(),
            waiters: vec![Waiter {
                lane: "reasoning".into(),
                position: 1,
                priority: Class::Bulk,
                effective_priority: Class::Default,
                account: Some("acme".into()),
                pid: std::process::id(),
                command: Some(own_name.trim_end().into()),
                destination: "10.1.2.3:8000".parse().unwrap(),
                stage: Stage::Request,
                wait: Duration::from_secs(72),
                queue_timeout: Duration::from_secs(300),
            }],
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Fails where `actual` lacks something that `expected` has; more in `actual` is fine.
    fn assert_contains(actual: &Value, expected: &Value, path: &str) {
        match expected {
            Value::Object(fields) => {
                for (name, value) in fields {
                    let path = format!("{path}.{name}");
                    assert_contains(actual.get(name).expect(&path), value, &path);
                }
            }
            Value::Array(items) => {
                assert_eq!(actual.as_array().map(Vec::len), Some(items.len()), "{path}");
                for (index, value) in items.iter().enumerate() {
                    assert_contains(&actual[index], value, &format!("{path}[{index}]"));
                }
            }
            value => assert_eq!(actual, value, "{path}"),
        }
    }

    /// A16: the document has every field of the published example, with its name, unit and value.
    #[test]
    fn the_snapshot_has_the_published_shape() {
        let published = json!({"version": "0.1.0", "generated_at": "2026-01-02T03:04:05Z", "enabled": true,
         "lanes": [{"lane": "reasoning", "mode": "enforce", "limit": 6, "effective_limit": 6, "reserve": 1,
           "inflight": 6, "inflight_by_priority": {"interactive": 1, "default": 2, "bulk": 3}, "idle_connections": 4,
           "queued": 9, "queued_by_priority": {"interactive": 0, "default": 2, "bulk": 7},
           "oldest_wait_s": 212.4, "wait_p50_s_5m": 38.0, "wait_p90_s_5m": 171.0,
           "queue_timeouts_5m": 2, "refusals_5m": 0, "saturated": true, "diagnosis": "local_queue",
           "accounts": [{"account": "acme", "priority": "bulk", "inflight": 3, "queued": 5}]}]});
        assert_contains(
            &serde_json::to_value(samples::busy()).unwrap(),
            &published,
            "snapshot",
        );
    }

    #[test]
    fn what_is_written_is_read_back() {
        let text = serde_json::to_string(&samples::busy()).unwrap();
        assert_eq!(
            serde_json::from_str::<Snapshot>(&text).unwrap(),
            samples::busy()
        );
        let text = serde_json::to_string(&samples::waiters()).unwrap();
        assert_eq!(
            serde_json::from_str::<Waiters>(&text).unwrap(),
            samples::waiters()
        );
    }

    #[test]
    fn diagnoses_have_one_name_in_documents_and_tables() {
        for diagnosis in Diagnosis::ALL {
            assert_eq!(
                serde_json::to_value(diagnosis).unwrap(),
                json!(diagnosis.name())
            );
        }
    }

    #[test]
    fn an_unknown_class_is_an_error_not_a_default() {
        let account = json!({"account": "acme", "priority": "urgent", "inflight": 0, "queued": 0});
        let error = serde_json::from_value::<AccountSnapshot>(account).unwrap_err();
        assert!(error.to_string().contains("urgent"), "{error}");
    }
}
