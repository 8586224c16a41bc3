//! A lane's state in a sentence, the same wherever a person reads it.

use jiff::Timestamp;

use crate::{
    format,
    snapshot::{Diagnosis, LaneSnapshot},
};

/// What the lane is doing and why, at the time of the snapshot, and what is odd about its gateway.
pub fn diagnosis(lane: &LaneSnapshot, at: Timestamp) -> String {
    let sentences = [Some(doing(lane, at)), reason(lane)];
    sentences
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" ")
}

/// What there is to add to what the lane is doing: who asked for it, or what is odd about its gateway.
pub fn reason(lane: &LaneSnapshot) -> Option<String> {
    // Its own sentence has the reason.
    if lane.diagnosis == Diagnosis::GatewayDegraded {
        return None;
    }
    let reason = lane.diagnosis_reason.as_deref()?;
    Some(format!("{}.", capitalised(reason)))
}

/// What the lane is doing, at the time of the snapshot.
pub fn doing(lane: &LaneSnapshot, at: Timestamp) -> String {
    match lane.diagnosis {
        Diagnosis::Ok if lane.inflight == 0 => "Nothing is in flight and nothing waits.".to_owned(),
        Diagnosis::Ok => format!(
            "Nothing waits: {} of {} in use.",
            lane.inflight,
            slots(lane.effective_limit)
        ),
        Diagnosis::LocalQueue => local_queue(lane),
        Diagnosis::GatewayDegraded => {
            let why = lane.diagnosis_reason.as_deref();
            let why = why.unwrap_or("it fails or is slow");
            format!("Gateway degraded: {why}. Waiting here is not the cause.")
        }
        Diagnosis::Paused => {
            let left = lane.paused_until.map(|until| {
                let left = until.duration_since(at).try_into().unwrap_or_default();
                format!(" for {} more", format::duration(left))
            });
            format!(
                "Paused: nothing starts{}, what is in flight goes on.",
                left.unwrap_or_default()
            )
        }
        Diagnosis::Observe if lane.limit == 0 => {
            "Only observes: nothing is held, everything is counted.".to_owned()
        }
        Diagnosis::Observe => format!(
            "Only observes: nothing is held. A limit of {} would have {} wait now.",
            lane.limit, lane.shadow_queued
        ),
    }
}

fn local_queue(lane: &LaneSnapshot) -> String {
    let free = lane.effective_limit.saturating_sub(lane.inflight);
    let wait = if lane.queued == 1 {
        "1 waits".to_owned()
    } else {
        format!("{} wait", lane.queued)
    };
    if free == 0 {
        let lowered = if lane.effective_limit < lane.limit {
            format!(" (lowered from {})", lane.limit)
        } else {
            String::new()
        };
        format!(
            "{wait} on purpose: {} of {}{lowered} in use.",
            lane.inflight,
            slots(lane.effective_limit)
        )
    } else if free <= lane.reserve {
        format!(
            "{wait} on purpose: what is free ({}) is reserved for interactive work.",
            slots(free)
        )
    } else {
        format!(
            "{wait} on purpose although {} are free: a cap of their class or account, or the pace, holds them.",
            slots(free)
        )
    }
}

fn capitalised(sentence: &str) -> String {
    let mut letters = sentence.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters).collect()
}

fn slots(count: u32) -> String {
    match count {
        1 => "1 slot".to_owned(),
        _ => format!("{count} slots"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::snapshot::{Mode, samples};

    fn said(lane: &LaneSnapshot) -> String {
        diagnosis(lane, "2026-01-02T03:04:05Z".parse().unwrap())
    }

    /// A18: a queue of our own is called that, with what makes it wait.
    #[test]
    fn a_queue_says_what_it_waits_for() {
        let busy = samples::busy().lanes.remove(0);
        assert_eq!(said(&busy), "9 wait on purpose: 6 of 6 slots in use.");
        let lowered = LaneSnapshot {
            effective_limit: 1,
            inflight: 1,
            queued: 1,
            ..busy.clone()
        };
        assert_eq!(
            said(&lowered),
            "1 waits on purpose: 1 of 1 slot (lowered from 6) in use."
        );
        let reserved = LaneSnapshot {
            inflight: 5,
            ..busy.clone()
        };
        assert_eq!(
            said(&reserved),
            "9 wait on purpose: what is free (1 slot) is reserved for interactive work."
        );
        let capped = LaneSnapshot {
            inflight: 3,
            ..busy
        };
        assert!(
            said(&capped).contains("3 slots are free: a cap"),
            "{}",
            said(&capped)
        );
    }

    #[test]
    fn a_lane_that_holds_nobody_says_so() {
        let rest = samples::lane("reasoning");
        assert_eq!(said(&rest), "Nothing is in flight and nothing waits.");
        let observing = LaneSnapshot {
            mode: Mode::Observe,
            diagnosis: Diagnosis::Observe,
            shadow_queued: 2,
            ..rest.clone()
        };
        assert!(said(&observing).ends_with("A limit of 4 would have 2 wait now."));
        let paused = LaneSnapshot {
            diagnosis: Diagnosis::Paused,
            paused_until: Some("2026-01-02T03:04:35Z".parse().unwrap()),
            ..rest
        };
        assert_eq!(
            said(&paused),
            "Paused: nothing starts for 30s more, what is in flight goes on."
        );
    }

    /// A18: who asked for a pause, and trouble that is not (yet) the diagnosis, as `shaper status` tells them.
    #[test]
    fn the_reason_of_the_diagnosis_is_told_with_it() {
        let paused = LaneSnapshot {
            diagnosis: Diagnosis::Paused,
            diagnosis_reason: Some("the gateway asked for it (Retry-After)".to_owned()),
            ..samples::lane("reasoning")
        };
        assert_eq!(
            said(&paused),
            "Paused: nothing starts, what is in flight goes on. The gateway asked for it (Retry-After)."
        );
        let slow = LaneSnapshot {
            diagnosis_reason: Some("first bytes take 9.0s, usually 1.2s".to_owned()),
            ..samples::busy().lanes.remove(0)
        };
        assert_eq!(
            said(&slow),
            "9 wait on purpose: 6 of 6 slots in use. First bytes take 9.0s, usually 1.2s."
        );
        let degraded = LaneSnapshot {
            diagnosis: Diagnosis::GatewayDegraded,
            ..slow
        };
        assert_eq!(
            said(&degraded),
            "Gateway degraded: first bytes take 9.0s, usually 1.2s. Waiting here is not the cause."
        );
    }
}
