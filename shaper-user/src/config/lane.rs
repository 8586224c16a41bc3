//! Reads one lane's file, and checks what its values mean together.

use std::{collections::BTreeMap, path::Path, time::Duration};

use shaper_common::{CLASS_COUNT, Class};

use super::{
    LaneConfig, account,
    diagnostic::{self, Diagnostic, Position, quotable},
    endpoint::{EndpointNote, EndpointSpec},
    files::TextFile,
    keys::{self, lane as key},
    kind::human,
    reader::{Found, Reader, default_of},
};
use crate::policy::{Adaptive, ConnectHold, LaneRules, Pace};

/// The longest name of a lane, in bytes: it is a metric label and part of log lines.
const MAX_NAME_LEN: usize = 63;

/// After this long the common SDKs give up on `connect()` (measured with the OpenAI and Anthropic Python SDKs).
const CLIENT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// ChangeCipherSpec and Finished as Python and curl send them: less lets no TLS 1.3 handshake end.
const TLS_FINISHED_BYTES: u32 = 80;

/// A lane, and where its endpoints stand.
#[derive(Debug)]
pub(super) struct ParsedLane<'a> {
    pub file: &'a Path,
    /// Counts only if there was no error.
    pub lane: LaneConfig,
    pub places: Vec<(EndpointSpec, Position)>,
}

/// Adds what is wrong to `diagnostics`. `None`: the file is not TOML.
pub(super) fn parse<'a>(
    file: &'a TextFile,
    diagnostics: &mut Vec<Diagnostic>,
) -> Option<ParsedLane<'a>> {
    let name = file
        .path
        .file_stem()
        .and_then(|stem| stem.to_str())
        .unwrap_or_default();
    if !is_lane_name(name) {
        diagnostics.push(Diagnostic::of_file(
            &file.path,
            "the name of the file is not the name of a lane",
            "lower-case letters, digits, `-` and `_`, beginning with a letter or digit, at most 63 characters",
        ));
    }
    let mut reader = Reader::new(&file.path, &file.text, &keys::LANE)
        .map_err(|syntax| diagnostics.extend(syntax))
        .ok()?;
    let places = endpoints(&mut reader);
    let rules = rules(&mut reader);
    let lane = LaneConfig {
        name: name.to_owned(),
        endpoints: {
            let mut endpoints: Vec<_> = places.iter().map(|(spec, _)| spec.clone()).collect();
            endpoints.sort();
            endpoints
        },
        rules,
        on_full: reader.value(&key::ON_FULL),
        udp: reader.value(&key::UDP),
        said: reader.said(),
    };
    let mut found = reader.into_diagnostics();
    diagnostic::sort(&mut found);
    diagnostics.extend(found);
    Some(ParsedLane {
        file: &file.path,
        lane,
        places,
    })
}

fn is_lane_name(name: &str) -> bool {
    let is_word = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    name.len() <= MAX_NAME_LEN
        && name.bytes().next().is_some_and(is_word)
        && name.bytes().all(|b| is_word(b) || b == b'-' || b == b'_')
}

fn endpoints(reader: &mut Reader<'_>) -> Vec<(EndpointSpec, Position)> {
    reader.require(&key::ENDPOINTS, Position::START, "");
    let Some(found) = reader.find(&key::ENDPOINTS) else {
        return Vec::new();
    };
    let mut places = Vec::new();
    for item in found.value {
        let at = reader.position(&item.span);
        let (spec, notes) = item.value;
        for note in notes {
            let (what, help) = explain_note(note, &spec);
            reader.warn(at, key::ENDPOINTS.path, what, help);
        }
        places.push((spec, at));
    }
    places
}

fn explain_note(note: EndpointNote, spec: &EndpointSpec) -> (String, String) {
    match note {
        EndpointNote::CredentialsDropped => (
            format!("{spec} was written with credentials or a query, which are not used"),
            "remove them from the file: shaper never needs them".to_owned(),
        ),
        EndpointNote::HostBitsDropped => (
            "the address has bits behind its prefix".to_owned(),
            format!("the network is {spec}; write it so, or leave the prefix out to mean the one address"),
        ),
        EndpointNote::Everything => (
            format!("{spec} is every address there is"),
            "name the gateway's own addresses, unless the lane is meant for all traffic to this port"
                .to_owned(),
        ),
    }
}

fn rules(reader: &mut Reader<'_>) -> LaneRules {
    reader.require(&key::MAX_INFLIGHT, Position::START, "");
    let limit = reader
        .find(&key::MAX_INFLIGHT)
        .filter(|limit| limit.value > 0);
    if let Some(limit) = limit {
        let why = format!(", and max_inflight = {} needs it", limit.value);
        reader.require(&key::MAX_QUEUE, limit.at, &why);
        reader.require(&key::QUEUE_TIMEOUT, limit.at, &why);
    }
    let max_queue = reader.find(&key::MAX_QUEUE);
    let queue_timeouts = queue_timeouts(reader);
    let connect_hold = connect_hold(reader, limit.is_some());
    let idle_release = reader.value(&key::IDLE_RELEASE);
    let pace = pace(reader);
    let class_cap = class_caps(reader);
    if let Some(limit) = limit {
        warn_of_short_queue(reader, limit.value, max_queue);
        warn_of_short_timeouts(reader, &queue_timeouts, connect_hold, idle_release);
        warn_of_a_slow_pace(reader, &queue_timeouts, max_queue, pace.as_ref());
        warn_of_loose_caps(reader, limit.value, &class_cap);
    }
    let interactive_reserve = reserve(
        reader,
        limit.map(|limit| limit.value),
        class_cap[Class::Interactive.index()],
    );
    LaneRules {
        max_inflight: limit.map_or(0, |limit| limit.value),
        enforce: reader.value(&key::ENFORCE),
        max_queue: max_queue.map_or(0, |found| found.value),
        queue_timeout: queue_timeouts.effective(),
        interactive_reserve,
        connect_hold,
        idle_release,
        abort_hold: reader.value(&key::ABORT_HOLD),
        wake_bytes: wake_bytes(reader, limit.is_some()),
        aging: reader.value(&key::AGING),
        ticket_grace: reader.value(&key::TICKET_GRACE),
        class_cap: class_cap.map(|cap| cap.map(|found| found.value)),
        account_cap: reader
            .find(&key::ACCOUNT_MAX_INFLIGHT)
            .map(|found| found.value),
        account_overrides: account_overrides(reader),
        pace,
        adaptive: adaptive(reader),
        retry_after_max: reader.value(&key::RETRY_AFTER_MAX),
    }
}

/// `queue_timeout` of the lane and of its classes.
struct QueueTimeouts {
    lane: Option<Found<Duration>>,
    class: [Option<Found<Duration>>; CLASS_COUNT],
}

impl QueueTimeouts {
    /// Zero where neither is set, which only a lane that observes may do.
    fn effective(&self) -> [Duration; CLASS_COUNT] {
        self.class.map(|class| {
            class
                .or(self.lane)
                .map_or(Duration::ZERO, |found| found.value)
        })
    }
}

fn queue_timeouts(reader: &mut Reader<'_>) -> QueueTimeouts {
    QueueTimeouts {
        lane: reader.find(&key::QUEUE_TIMEOUT),
        class: Class::ALL.map(|class| reader.find_for(&key::CLASS_QUEUE_TIMEOUT, class)),
    }
}

fn connect_hold(reader: &mut Reader<'_>, enforces: bool) -> ConnectHold {
    let Some(found) = reader.find(&key::CONNECT_HOLD) else {
        return default_of(&key::CONNECT_HOLD);
    };
    let is_long = match found.value {
        ConnectHold::For(time) => time >= CLIENT_CONNECT_TIMEOUT,
        ConnectHold::Always => true,
    };
    if enforces && is_long {
        reader.warn(
            found.at,
            key::CONNECT_HOLD.path,
            format!(
                "common SDKs give up on connect() after {}",
                human(CLIENT_CONNECT_TIMEOUT)
            ),
            "\"4s\" holds the connect for as long as they bear it and the request after that"
                .to_owned(),
        );
    }
    found.value
}

fn class_caps(reader: &mut Reader<'_>) -> [Option<Found<u32>>; CLASS_COUNT] {
    Class::ALL.map(|class| reader.find_for(&key::CLASS_MAX_INFLIGHT, class))
}

fn warn_of_short_queue(reader: &mut Reader<'_>, limit: u32, max_queue: Option<Found<u32>>) {
    if let Some(found) = max_queue.filter(|found| found.value < limit) {
        reader.warn(
            found.at,
            key::MAX_QUEUE.path,
            format!("{} is less than max_inflight = {limit}", found.value),
            format!("at least {limit}: a shorter queue refuses work that one turn of the slots would serve"),
        );
    }
}

fn warn_of_short_timeouts(
    reader: &mut Reader<'_>,
    timeouts: &QueueTimeouts,
    connect_hold: ConnectHold,
    idle_release: Duration,
) {
    let hold = match connect_hold {
        ConnectHold::For(hold) => Some((
            key::CONNECT_HOLD.path,
            hold,
            "so that a request can wait once its connect has",
        )),
        ConnectHold::Always => None,
    };
    let idle = (
        key::IDLE_RELEASE.path,
        idle_release,
        "so that a slot left by a silent connection comes back in time for a waiter",
    );
    let places = [(timeouts.lane, key::QUEUE_TIMEOUT.path.to_owned())]
        .into_iter()
        .chain(Class::ALL.map(|class| {
            let path = key::CLASS_QUEUE_TIMEOUT.path_for(class);
            (timeouts.class[class.index()], path)
        }));
    for (found, path) in places {
        let Some(Found { value: timeout, at }) = found else {
            continue;
        };
        for (other, time, why) in hold.into_iter().chain([idle]) {
            if timeout < time {
                reader.warn(
                    at,
                    &path,
                    format!(
                        "{} is shorter than {other} = \"{}\"",
                        human(timeout),
                        human(time)
                    ),
                    format!("longer than {other}, {why}"),
                );
            }
        }
    }
}

/// The last of a full queue would be ended however quick the gateway is.
fn warn_of_a_slow_pace(
    reader: &mut Reader<'_>,
    timeouts: &QueueTimeouts,
    max_queue: Option<Found<u32>>,
    pace: Option<&Pace>,
) {
    let longest = timeouts.effective().into_iter().max();
    let (Some(found), Some(pace), Some(longest)) = (max_queue, pace, longest) else {
        return;
    };
    let needed = pace.time_for(found.value);
    if needed > longest {
        reader.warn(
            found.at,
            key::MAX_QUEUE.path,
            format!(
                "the pace takes {} for {} waiters, longer than queue_timeout = \"{}\"",
                human(Duration::from_secs(needed.as_secs())),
                found.value,
                human(longest)
            ),
            "fewer waiters, a longer queue_timeout or a quicker pace: the last ones are ended however quick the gateway is"
                .to_owned(),
        );
    }
}

fn warn_of_loose_caps(
    reader: &mut Reader<'_>,
    limit: u32,
    caps: &[Option<Found<u32>>; CLASS_COUNT],
) {
    for class in Class::ALL {
        if let Some(cap) = caps[class.index()].filter(|cap| cap.value > limit) {
            reader.warn(
                cap.at,
                &key::CLASS_MAX_INFLIGHT.path_for(class),
                format!(
                    "{} is more than max_inflight = {limit} of the lane, and caps nothing",
                    cap.value
                ),
                format!("less than {limit}, or leave it out"),
            );
        }
    }
}

/// The reserve leaves one slot for the rest (A4). A lane that only observes has none.
fn reserve(
    reader: &mut Reader<'_>,
    limit: Option<u32>,
    interactive_cap: Option<Found<u32>>,
) -> u32 {
    let reserve = reader.find(&key::INTERACTIVE_RESERVE);
    let (Some(limit), Some(Found { value: reserve, at })) = (limit, reserve) else {
        return 0;
    };
    if let Some(cap) = interactive_cap.filter(|cap| cap.value < reserve) {
        reader.warn(
            at,
            key::INTERACTIVE_RESERVE.path,
            format!(
                "{reserve} is more than class.interactive.max_inflight = {}",
                cap.value
            ),
            format!("at most {}: nobody may use the slots beyond it", cap.value),
        );
    }
    let most = limit - 1;
    if reserve <= most {
        return reserve;
    }
    if most == 0 {
        reader.error(
            at,
            key::INTERACTIVE_RESERVE.path,
            format!("a reserve of {reserve} leaves no slot of max_inflight = {limit} for the rest"),
            "0, or a max_inflight of 2 or more".to_owned(),
        );
    } else {
        reader.warn(
            at,
            key::INTERACTIVE_RESERVE.path,
            format!(
                "a reserve of {reserve} leaves no slot of max_inflight = {limit} for the rest; {most} is used"
            ),
            format!("at most {most}"),
        );
    }
    most
}

fn wake_bytes(reader: &mut Reader<'_>, enforces: bool) -> u32 {
    let Some(found) = reader.find(&key::WAKE_BYTES) else {
        return default_of(&key::WAKE_BYTES);
    };
    if enforces && found.value < TLS_FINISHED_BYTES {
        reader.warn(
            found.at,
            key::WAKE_BYTES.path,
            format!(
                "{} holds the end of TLS handshakes, which takes {TLS_FINISHED_BYTES} bytes",
                found.value
            ),
            format!("at least {TLS_FINISHED_BYTES}, unless the lane is plain HTTP"),
        );
    }
    found.value
}

fn account_overrides(reader: &mut Reader<'_>) -> BTreeMap<String, u32> {
    let Some(found) = reader.find(&key::ACCOUNT_OVERRIDES) else {
        return BTreeMap::new();
    };
    for (name, _) in &found.value {
        if !account::is_name(name) {
            reader.error(
                found.at,
                key::ACCOUNT_OVERRIDES.path,
                format!("`{}` cannot be the name of an account", quotable(name)),
                account::RULE.to_owned(),
            );
        }
    }
    found.value.into_iter().collect()
}

const PACE: &str = "pace";

fn pace(reader: &mut Reader<'_>) -> Option<Pace> {
    let at = reader.table(PACE)?;
    let per_second = reader.find(&key::PACE_PER_SECOND);
    let per_minute = reader.find(&key::PACE_PER_MINUTE);
    let min_interval = reader.find(&key::PACE_MIN_INTERVAL);
    if !(reader.has(&key::PACE_PER_SECOND)
        || reader.has(&key::PACE_PER_MINUTE)
        || reader.has(&key::PACE_MIN_INTERVAL))
    {
        reader.error(
            at,
            PACE,
            "sets no pace".to_owned(),
            "add per_second, per_minute or min_interval, or remove the table".to_owned(),
        );
    }
    Some(Pace {
        mode: reader.value(&key::PACE_MODE),
        per_second: per_second.map(|found| found.value),
        per_minute: per_minute.map(|found| found.value),
        min_interval: min_interval.map_or(Duration::ZERO, |found| found.value),
        safety_margin: reader.value(&key::PACE_SAFETY_MARGIN),
        window_slack: reader.value(&key::PACE_WINDOW_SLACK),
    })
}

/// An empty table is enough: each of its keys has a default.
fn adaptive(reader: &mut Reader<'_>) -> Option<Adaptive> {
    reader.table("adaptive")?;
    Some(Adaptive {
        decrease: reader.value(&key::ADAPTIVE_DECREASE),
        increase: reader.value(&key::ADAPTIVE_INCREASE),
        min: reader.value(&key::ADAPTIVE_MIN),
        cooldown: reader.value(&key::ADAPTIVE_COOLDOWN),
    })
}
