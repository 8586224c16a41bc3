//! What the signs of a gateway do to its lane: evidence, pauses, adaptation.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use shaper_common::Class;

use super::{
    Adapted, AnswerHead, Cause, Change, Erred, Factor, Fault, GatewayError, Ns, Sign,
    burst::Burst,
    first_byte::FirstBytes,
    lane::{Lane, Turn},
    outcomes::{Outcomes, Step},
    signal::Meaning,
};

/// What a lane knows of its gateway.
#[derive(Debug)]
pub(super) struct Health {
    pub(super) first_bytes: FirstBytes,
    pub(super) connects: Outcomes,
    pub(super) requests: Outcomes,
    burst: Burst,
}

impl Default for Health {
    fn default() -> Self {
        Self {
            first_bytes: FirstBytes::default(),
            connects: Outcomes::of(Step::Connect),
            requests: Outcomes::of(Step::Request),
            burst: Burst::default(),
        }
    }
}

/// A time in which a lane starts nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pause {
    pub until: Ns,
    pub by: PausedBy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PausedBy {
    /// `shaper pause`.
    Operator,
    /// `Retry-After`.
    Gateway,
}

impl PausedBy {
    pub const ALL: [Self; 2] = [Self::Operator, Self::Gateway];

    /// The word in files and documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Operator => "operator",
            Self::Gateway => "gateway",
        }
    }
}

impl Lane {
    pub(super) fn sign(&mut self, class: Class, sign: Sign, turn: &mut Turn<'_>) {
        let now = turn.now;
        match sign {
            Sign::Connected => {
                self.health.connects.succeeded(now);
                self.health.burst.connected();
            }
            Sign::Answered { conn, after } => {
                self.health.requests.succeeded(now);
                self.health.first_bytes.answered(now, conn, after);
                self.tally.recent.answered(now, after);
            }
            Sign::Head(head) => self.head(class, head, turn),
            Sign::Failed { conn, fault } => {
                self.health.first_bytes.ended(conn);
                self.fault(fault, now);
                self.err(class, GatewayError::Connection(fault), turn);
            }
            Sign::GaveUp { conn, after } => {
                self.health.first_bytes.gave_up(now, conn, after);
                self.tally.recent.gave_up(now);
            }
        }
    }

    fn fault(&mut self, fault: Fault, now: Ns) {
        if fault.is_of_connect() {
            self.health.connects.failed(now);
            self.health.burst.failed(now);
        } else {
            self.health.requests.failed(now);
        }
    }

    fn head(&mut self, class: Class, head: AnswerHead, turn: &mut Turn<'_>) {
        let error = match head.meaning() {
            Meaning::Fine => return,
            Meaning::ServerError => GatewayError::ServerError,
            Meaning::Throttled if self.pacer.kept_every_rate() => GatewayError::ThrottledUnderLimit,
            Meaning::Throttled => GatewayError::Throttled,
        };
        // It was taken for an answer when its first byte came.
        self.health.requests.failed_after_all(turn.now);
        self.err(class, error, turn);
        if error == GatewayError::ServerError {
            return;
        }
        let status = head.status;
        self.asked_for_less(Cause::Answer { status }, turn);
        if let Some(length) = head.retry_after {
            self.retry_after(length, turn);
        }
    }

    /// The gateway named a time before which it wants nothing (C6).
    fn retry_after(&mut self, length: Duration, turn: &mut Turn<'_>) {
        if !self.rules.observes() {
            let until = turn.now + length.min(self.rules.retry_after_max);
            let by = PausedBy::Gateway;
            self.pause(Pause { until, by }, turn);
        }
    }

    /// Lowers the limit and the rates (C7). A lane that observes has nothing to lower.
    fn asked_for_less(&mut self, cause: Cause, turn: &mut Turn<'_>) {
        if let Some(rules) = self.rules.adaptive
            && !self.rules.observes()
        {
            let from = self.limits().effective;
            let before = self.adaptation.factor();
            self.adaptation.asked_for_less(turn.now, &rules);
            self.adapted(before, from, cause, turn);
        }
    }

    /// The factor may be another now than `before`, when `from` slots could be used.
    fn adapted(&mut self, before: Factor, from: u32, cause: Cause, turn: &mut Turn<'_>) {
        let factor = self.adaptation.factor();
        if factor == before {
            return;
        }
        self.adapt();
        turn.tell(Change::Adapted(Adapted {
            cause,
            from,
            to: self.limits().effective,
            share: factor.get(),
        }));
    }

    /// Ends counts of connects that are over, and raises what calm allows.
    pub(super) fn settle_health(&mut self, turn: &mut Turn<'_>) {
        if self.health.burst.settle(turn.now) {
            self.asked_for_less(Cause::FailedConnects, turn);
        }
        if let Some(rules) = self.rules.adaptive {
            let from = self.limits().effective;
            let before = self.adaptation.factor();
            self.adaptation.recover(turn.now, &rules);
            self.adapted(before, from, Cause::Calm, turn);
        }
    }

    /// When [`settle_health`](Self::settle_health) has something to do, unless a sign comes first.
    pub(super) fn health_deadline(&self) -> Option<Ns> {
        let raise = self
            .rules
            .adaptive
            .and_then(|rules| self.adaptation.next_raise(&rules));
        [self.health.burst.ends(), raise]
            .into_iter()
            .flatten()
            .min()
    }

    fn err(&mut self, class: Class, error: GatewayError, turn: &mut Turn<'_>) {
        self.tally.recent.erred(turn.now, error);
        turn.erred.push(Erred {
            lane: turn.lane,
            class,
            error,
        });
    }
}
