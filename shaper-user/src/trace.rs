//! Traces: who asked when, and how long the gateway took. `shaper run --record` writes them, `shaper simulate` reads
//! them, and people write them by hand.
//!
//! One JSON object a line:
//!
//! ```text
//! {"arrival_s":12.5,"lane":"reasoning","priority":"bulk","account":"acme","wait_s":0.8,"service_s":3.2,"outcome":"served"}
//! ```
//!
//! Only `arrival_s`, `lane`, `priority` and, for what was served, `service_s` say something new; the rest is what a
//! recording saw under the rules of its day.

use std::{borrow::Cow, time::Duration};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use shaper_common::Class;

/// The largest instant or length in a trace: what a recording writes is seconds since 1970, and that fits for a while.
const LATEST: Duration = Duration::from_secs(100_000_000_000);

/// One request, from its arrival to its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceRecord<'a> {
    /// Time since any moment that is the same for the whole trace; since 1970 in a recording.
    #[serde(rename = "arrival_s", with = "seconds")]
    pub arrival: Duration,
    #[serde(borrow)]
    pub lane: Cow<'a, str>,
    #[serde(rename = "priority", with = "class_name")]
    pub class: Class,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub account: Option<Cow<'a, str>>,
    /// Time in the queue.
    #[serde(rename = "wait_s", with = "seconds", default)]
    pub wait: Duration,
    /// Time for which it had its slot; `None`: it never had one.
    #[serde(
        rename = "service_s",
        with = "optional_seconds",
        default,
        skip_serializing_if = "Option::is_none"
    )]
    pub service: Option<Duration>,
    #[serde(default)]
    pub outcome: TraceOutcome,
}

/// How a request of a trace ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TraceOutcome {
    /// It got its slot and gave it back.
    #[default]
    Served,
    /// Its connect was refused.
    Refused,
    /// It waited as long as its class may.
    Expired,
    /// Its client gave up waiting.
    Gone,
    /// It went on without a slot: its lane was removed.
    Bypassed,
}

/// A duration as a number of seconds, to the microsecond.
mod seconds {
    use super::*;

    pub(super) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        // Whole microseconds have an exact enough double until the year 2255.
        to.serialize_f64(value.as_micros() as f64 / 1e6)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let seconds = f64::deserialize(from)?;
        Duration::try_from_secs_f64(seconds)
            .ok()
            .filter(|value| *value <= LATEST)
            .ok_or_else(|| {
                serde::de::Error::custom(format_args!(
                    "{seconds} is not a time: a number of seconds from 0 to {}",
                    LATEST.as_secs()
                ))
            })
    }
}

mod optional_seconds {
    use super::*;

    pub(super) fn serialize<S: Serializer>(
        value: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match value {
            Some(value) => seconds::serialize(value, to),
            None => to.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Duration>, D::Error> {
        #[derive(Deserialize)]
        struct Seconds(#[serde(with = "seconds")] Duration);
        Ok(Option::<Seconds>::deserialize(from)?.map(|Seconds(value)| value))
    }
}

mod class_name {
    use super::*;

    pub(super) fn serialize<S: Serializer>(class: &Class, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(class.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Class, D::Error> {
        let name = Cow::<str>::deserialize(from)?;
        Class::ALL
            .into_iter()
            .find(|class| class.name() == name)
            .ok_or_else(|| {
                serde::de::Error::custom(format_args!(
                    "{name:?} is not a class: interactive, default or bulk"
                ))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_one_line_of_the_documented_form() {
        let record = TraceRecord {
            arrival: Duration::from_millis(12_500),
            lane: "reasoning".into(),
            class: Class::Bulk,
            account: Some("acme".into()),
            wait: Duration::from_millis(800),
            service: Some(Duration::from_millis(3_200)),
            outcome: TraceOutcome::Served,
        };
        let line = serde_json::to_string(&record).unwrap();
        assert_eq!(
            line,
            "{\"arrival_s\":12.5,\"lane\":\"reasoning\",\"priority\":\"bulk\",\"account\":\"acme\",\"wait_s\":0.8,\
             \"service_s\":3.2,\"outcome\":\"served\"}"
        );
        assert_eq!(
            serde_json::from_str::<TraceRecord<'_>>(&line).unwrap(),
            record
        );
    }

    /// E9: a line that says nothing, or nonsense, is an error.
    #[test]
    fn nonsense_is_an_error_that_says_so() {
        for (line, word) in [
            (r#"{"lane":"a","priority":"bulk"}"#, "arrival_s"),
            (
                r#"{"arrival_s":-1,"lane":"a","priority":"bulk"}"#,
                "not a time",
            ),
            (
                r#"{"arrival_s":1e30,"lane":"a","priority":"bulk"}"#,
                "not a time",
            ),
            (
                r#"{"arrival_s":1,"lane":"a","priority":"urgent"}"#,
                "interactive",
            ),
            (
                r#"{"arrival_s":1,"lane":"a","priority":"bulk","servce_s":1}"#,
                "servce_s",
            ),
        ] {
            let error = serde_json::from_str::<TraceRecord<'_>>(line).unwrap_err();
            assert!(error.to_string().contains(word), "{line}: {error}");
        }
    }
}
