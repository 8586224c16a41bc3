//! Telling the log of those who were turned away: which limit it was, the counts at that moment, the setting to change.

use shaper_common::Class;
use tracing::info;

use super::{Controller, quota::PERIOD, reason};
use crate::{
    config::{LaneConfig, keys::lane as key},
    format,
    policy::{Expiry, Hindrance, LaneId, Ns, OpenConn, PausedBy},
};

impl Controller {
    /// B5: a connect found the queue full. Before the policy hears of it.
    pub(super) fn tell_refusal(&mut self, now: Ns, lane: LaneId, conn: &OpenConn) {
        let account = conn.account.map(|account| self.accounts.name(account));
        let Some(active) = self.lanes.get_mut(lane) else {
            return;
        };
        if !active.refusal_lines.allows(now) {
            return;
        }
        let Some(view) = self.policy.view(now, lane) else {
            return;
        };
        let config = &active.config;
        let queued: u32 = view.queued.iter().sum();
        let in_flight: u32 = view.in_flight.iter().sum();
        info!(
            lane = config.name,
            class = %conn.class,
            account = account.as_deref().map(format::printable).as_deref(),
            pid = conn.client.0,
            errno = config.on_full.errno_name(),
            queued,
            in_flight,
            "refused: the queue is full, {} = {}; {} of {} in use; raise `{}` or `{}` in {}",
            key::MAX_QUEUE.path,
            config.rules.max_queue,
            in_flight,
            reason::slots(view.limits),
            key::MAX_QUEUE.path,
            key::MAX_INFLIGHT.path,
            config.file().display(),
        );
    }

    /// A11: a waiter has waited as long as its class may.
    pub(super) fn tell_expiry(&mut self, now: Ns, expiry: &Expiry) {
        let account = expiry.account.map(|account| self.accounts.name(account));
        let account = account.as_deref();
        let Some(active) = self.lanes.get_mut(expiry.lane) else {
            return;
        };
        if !active.expiry_lines.allows(now) {
            return;
        }
        let config = &active.config;
        let paced = config.rules.pace.is_some();
        let why = reason::of_wait(expiry.hindrance, expiry.class, account, paced);
        let remedy = remedy(expiry.hindrance, config, expiry.class, account);
        info!(
            lane = config.name,
            class = %expiry.class,
            account = account.map(format::printable).as_deref(),
            pid = expiry.client.0,
            wait = %format::duration(expiry.wait),
            position = expiry.position,
            queued = expiry.queued,
            in_flight = expiry.in_flight,
            "queue timeout: the waiter is ended; {why}; {remedy} `{}` in {}",
            config.queue_timeout_key(expiry.class),
            config.file().display(),
        );
    }

    /// Says how much has happened without a line of its own.
    pub(super) fn tell_left_out(&mut self, now: Ns) {
        for (_, lane) in self.lanes.iter_mut() {
            let name = &lane.config.name;
            let told = [
                (
                    &mut lane.refusal_lines,
                    "were refused",
                    "`shaper_refusals_total` counts all",
                ),
                (
                    &mut lane.expiry_lines,
                    "were ended by their queue timeout",
                    "`shaper_queue_timeouts_total` counts all",
                ),
                (
                    &mut lane.told.lines,
                    "pauses and changes of the limit came",
                    "`shaper status` shows what is in force",
                ),
            ];
            for (quota, what, whole) in told {
                if let Some(left_out) = quota.take_left_out(now) {
                    info!(
                        lane = name,
                        left_out,
                        "in {} or longer, {left_out} more {what} than are told one by one; {whole}",
                        format::duration(PERIOD),
                    );
                }
            }
        }
    }
}

/// What to do besides raising a waiter's queue timeout, as the beginning of that sentence.
fn remedy(
    hindrance: Hindrance,
    config: &LaneConfig,
    class: Class,
    account: Option<&str>,
) -> String {
    let raise = |key: &str| format!("raise `{key}` or");
    match hindrance {
        Hindrance::Pause(PausedBy::Operator) => {
            format!("end that with `shaper resume {}`, or raise", config.name)
        }
        Hindrance::Pause(PausedBy::Gateway) => {
            format!("lower `{}` or raise", key::RETRY_AFTER_MAX.path)
        }
        Hindrance::AccountCap { .. } => {
            let overrides = &config.rules.account_overrides;
            let is_override = account.is_some_and(|account| overrides.contains_key(account));
            raise(if is_override {
                key::ACCOUNT_OVERRIDES.path
            } else {
                key::ACCOUNT_MAX_INFLIGHT.path
            })
        }
        Hindrance::ClassCap { .. } => raise(&key::CLASS_MAX_INFLIGHT.path_for(class)),
        Hindrance::Limit { .. } => raise(key::MAX_INFLIGHT.path),
        Hindrance::Reserve { .. } => {
            format!("lower `{}` or raise", key::INTERACTIVE_RESERVE.path)
        }
        Hindrance::Spacing if config.rules.pace.is_some() => "loosen `pace` or raise".to_owned(),
        Hindrance::Spacing => "raise".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{Config, Files, Origin, TextFile},
        policy::Limits,
    };

    fn lane(more: &str) -> LaneConfig {
        let text = format!(
            "endpoints = [\"10.1.2.3:8000\"]\nmax_inflight = 6\nmax_queue = 9\nqueue_timeout = \"1m\"\n{more}"
        );
        let files = Files {
            origin: Origin::Embedded,
            settings: None,
            lanes: vec![TextFile {
                path: "lanes.d/a.toml".into(),
                text,
            }],
        };
        Config::parse(&files).unwrap().lanes.remove(0)
    }

    fn explained(hindrance: Hindrance, more: &str) -> String {
        let lane = lane(more);
        let (class, account) = (Class::Bulk, Some("acme"));
        let why = reason::of_wait(hindrance, class, account, lane.rules.pace.is_some());
        let remedy = remedy(hindrance, &lane, class, account);
        format!("{why}; {remedy} `{}`", lane.queue_timeout_key(class))
    }

    /// A11, B5: which limit, the counts, and the key to change.
    #[test]
    fn each_hindrance_names_the_key_that_lifts_it() {
        let limits = |effective| Limits {
            limit: 6,
            effective,
            reserve: 1,
        };
        let full = |effective| Hindrance::Limit {
            in_use: effective,
            limits: limits(effective),
        };
        let account = Hindrance::AccountCap { in_use: 3, cap: 3 };
        for (hindrance, more, expected) in [
            (
                full(6),
                "",
                "6 of 6 slots in use; raise `max_inflight` or `queue_timeout`",
            ),
            (
                full(4),
                "[class.bulk]\nqueue_timeout = \"2m\"",
                "4 of 4 slots (lowered from 6 by adaptation) in use; raise `max_inflight` or `class.bulk.queue_timeout`",
            ),
            (
                Hindrance::ClassCap { in_use: 4, cap: 4 },
                "[class.default]\nqueue_timeout = \"2m\"",
                "class bulk has 4 of its 4 slots in use; raise `class.bulk.max_inflight` or `queue_timeout`",
            ),
            (
                account,
                "",
                "account acme has 3 of its 3 slots in use; raise `account.max_inflight` or `queue_timeout`",
            ),
            (
                account,
                "[account]\noverrides = { acme = 3 }",
                "account acme has 3 of its 3 slots in use; raise `account.overrides` or `queue_timeout`",
            ),
            (
                Hindrance::Reserve {
                    free: 1,
                    reserve: 1,
                },
                "",
                "what is free (1) is within the 1 reserved for interactive work; lower `interactive_reserve` or raise \
                 `queue_timeout`",
            ),
            (
                Hindrance::Pause(PausedBy::Operator),
                "",
                "the lane is paused by an operator; end that with `shaper resume a`, or raise `queue_timeout`",
            ),
            (
                Hindrance::Pause(PausedBy::Gateway),
                "",
                "the lane is paused by its gateway (Retry-After); lower `retry_after_max` or raise `queue_timeout`",
            ),
            (
                Hindrance::Spacing,
                "[pace]\nper_minute = 1",
                "slots are free, but the pace spaces the starts; loosen `pace` or raise `queue_timeout`",
            ),
            (
                Hindrance::Spacing,
                "",
                "slots are free, but starts are spaced for a while after a pause; raise `queue_timeout`",
            ),
        ] {
            assert_eq!(explained(hindrance, more), expected);
        }
    }
}
