//! A lane's state in a sentence, the same wherever a person reads it.

use jiff::Timestamp;

use crate::{
    format,
    policy::PausedBy,
    snapshot::{Diagnosis, LaneSnapshot},
};

/// Who has paused a lane, as in "paused by …".
pub fn by(paused: PausedBy) -> &'static str {
    match paused {
        PausedBy::Operator => "by an operator",
        PausedBy::Gateway => "by its gateway (Retry-After)",
    }
}

/// What the lane is doing and why, at the time of the snapshot, and what is odd about its gateway.
pub fn diagnosis(lane: &LaneSnapshot, at: Timestamp) -> String {
    let sentences = [Some(doing(lane, at)), reason(lane)];
    sentences
        .into_iter()
        .flatten()
        .collect::<Vec<_>>()
        .join(" ")
}

/// What there is to add to what the lane is doing: what is odd about its gateway.
pub fn reason(lane: &LaneSnapshot) -> Option<String> {
    // Their own sentences have the reason.
    if matches!(
        lane.diagnosis,
        Diagnosis::GatewayDegraded | Diagnosis::Paused
    ) {
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
        Diagnosis::LocalQueue => format!("{}.", waiting(lane)),
        Diagnosis::GatewayDegraded => {
            let why = lane.diagnosis_reason.as_deref();
            let why = why.unwrap_or("it fails or is slow");
            let queue = match lane.queued {
                0 => String::new(),
                _ => format!(" {}.", waiting(lane)),
            };
            format!("Gateway degraded: {why}. Waiting here is not the cause.{queue}")
        }
        Diagnosis::Paused => paused(lane, at),
        Diagnosis::Observe if lane.limit == 0 => {
            "Only observes: nothing is held, everything is counted.".to_owned()
        }
        Diagnosis::Observe => format!(
            "Only observes: nothing is held. A limit of {} would have {} wait now.",
            lane.limit, lane.shadow_queued
        ),
    }
}

fn paused(lane: &LaneSnapshot, at: Timestamp) -> String {
    let pauser = lane.paused_by.as_deref();
    let pauser = PausedBy::ALL
        .into_iter()
        .find(|by| Some(by.name()) == pauser)
        .map_or(String::new(), |pauser| format!(" {}", by(pauser)));
    let end = lane.paused_until.map_or(String::new(), |until| {
        // A pause that ends while the snapshot is made has nothing left.
        let left = until.duration_since(at).try_into().unwrap_or_default();
        let left = format::duration(left);
        format!(" for {left} more, until {}", format::moment(until))
    });
    format!("Paused{pauser}: nothing starts{end}; what is in flight goes on.")
}

/// How many wait, and what the first of them waits for.
fn waiting(lane: &LaneSnapshot) -> String {
    let wait = match lane.queued {
        1 => "1 waits".to_owned(),
        queued => format!("{queued} wait"),
    };
    let why = lane.waiting_for.as_deref();
    let why = why.map_or(String::new(), |why| format!(": {why}"));
    format!("{wait} on purpose{why}")
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
        let paced = LaneSnapshot {
            inflight: 5,
            queued: 1,
            waiting_for: Some("slots are free, but the pace spaces the starts".to_owned()),
            ..busy.clone()
        };
        assert_eq!(
            said(&paced),
            "1 waits on purpose: slots are free, but the pace spaces the starts."
        );
        let untold = LaneSnapshot {
            waiting_for: None,
            ..busy
        };
        assert_eq!(said(&untold), "9 wait on purpose.");
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
            ..rest
        };
        assert_eq!(
            said(&paused),
            "Paused: nothing starts; what is in flight goes on."
        );
    }

    /// A pause says whose it is and when it ends.
    #[test]
    fn a_pause_says_by_whom_and_until_when() {
        for (paused_by, pauser) in [
            ("operator", "an operator"),
            ("gateway", "its gateway (Retry-After)"),
        ] {
            let paused = LaneSnapshot {
                diagnosis: Diagnosis::Paused,
                diagnosis_reason: Some(format!("paused by {pauser}")),
                paused_by: Some(paused_by.to_owned()),
                paused_until: Some("2026-01-02T03:04:35.678Z".parse().unwrap()),
                ..samples::lane("reasoning")
            };
            assert_eq!(
                said(&paused),
                format!(
                    "Paused by {pauser}: nothing starts for 30s more, until 2026-01-02T03:04:35Z; \
                     what is in flight goes on."
                )
            );
        }
    }

    /// A18: trouble is told whether it is the diagnosis or not (yet), and a queue is told beside it.
    #[test]
    fn the_reason_of_the_diagnosis_is_told_with_it() {
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
            "Gateway degraded: first bytes take 9.0s, usually 1.2s. Waiting here is not the cause. \
             9 wait on purpose: 6 of 6 slots in use."
        );
        let empty = LaneSnapshot {
            queued: 0,
            waiting_for: None,
            ..degraded
        };
        assert!(said(&empty).ends_with("not the cause."), "{}", said(&empty));
    }
}
