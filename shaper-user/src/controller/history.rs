//! Counting for `shaper stats`.

use std::time::Duration;

use jiff::Timestamp;
use shaper_common::Class;

use super::Controller;
use crate::{
    handle::CommandError,
    history::{Asker, Keeper, Question, Tally, WallClock, Windows},
    kernel,
    metrics::Outcome,
    policy::{Erred, LaneId, Ns},
};

/// How much of the history a crash may cost.
const HANDED_OVER: Duration = Duration::from_secs(2);

/// What is counted, and who keeps it.
#[derive(Debug)]
pub(super) struct History {
    tally: Tally,
    /// `None`: nothing is kept beyond this run.
    keeper: Option<Keeper>,
    handed_over: Ns,
}

impl History {
    pub(super) fn new() -> Self {
        let now = kernel::now();
        Self {
            tally: Tally::new(WallClock::new(now, Timestamp::now())),
            keeper: None,
            handed_over: now,
        }
    }
}

impl Controller {
    /// Has the history kept from now on; `windows` is what the keeper has of the run before.
    pub fn keep_history(&mut self, keeper: Keeper, windows: &Windows) {
        self.history.tally.resume(windows);
        self.history.keeper = Some(keeper);
    }

    /// A request started at `at` after having waited.
    pub(super) fn tally_start(&mut self, at: Ns, lane: LaneId, class: Class, wait: Duration) {
        if let Some(lane) = self.lanes.get(lane) {
            let name = &lane.config.name;
            self.history.tally.start(at, name, class, wait);
        }
    }

    /// A connection ended: for the metrics and for the history.
    pub(super) fn count_end(&mut self, at: Ns, lane: LaneId, class: Class, outcome: Outcome) {
        if let Some(lane) = self.lanes.get(lane) {
            lane.metrics.count_connection(class, outcome);
            let name = &lane.config.name;
            self.history.tally.end(at, name, class, outcome, 1);
        }
    }

    /// A gateway did something wrong: for the metrics and for the history.
    pub(super) fn count_gateway_error(&mut self, at: Ns, erred: Erred) {
        if let Some(lane) = self.lanes.get(erred.lane) {
            lane.metrics.count_gateway_error(erred.error);
            let name = &lane.config.name;
            self.history
                .tally
                .gateway_error(at, name, erred.class, erred.error);
        }
    }

    /// Takes the kernel's count of refusals over into the metrics and the history.
    pub(super) fn count_refusals(&mut self, now: Ns) {
        let Self { lanes, history, .. } = self;
        lanes.count_refusals(&self.tables, |lane, class, count| {
            let outcome = Outcome::Refused;
            history.tally.end(now, lane, class, outcome, count);
        });
    }

    /// Hands what is new over to be kept, now and then.
    pub(super) fn hand_history_over(&mut self, now: Ns) {
        self.history
            .tally
            .set_clock(WallClock::new(now, Timestamp::now()));
        if now.since(self.history.handed_over) >= HANDED_OVER {
            self.hand_all_over(now);
        }
    }

    /// Hands everything that is new over.
    fn hand_all_over(&mut self, now: Ns) {
        self.history.handed_over = now;
        self.count_refusals(now);
        let retention = self.loaded.settings.history;
        let History { tally, keeper, .. } = &mut self.history;
        let batch = tally.take(now);
        if let Some(keeper) = keeper
            && !batch.is_empty()
            && let Err(batch) = keeper.keep(batch, retention)
        {
            tally.put_back(batch);
        }
    }

    /// Has the keeper answer.
    pub(super) fn stats(&mut self, question: Question, asker: Asker) {
        self.drain();
        self.hand_all_over(kernel::now());
        let known = self.lanes.names().into_iter().map(str::to_owned).collect();
        match &self.history.keeper {
            Some(keeper) => keeper.report(question, known, asker),
            None => {
                // The asker may have given up.
                let _ = asker.send(Err(CommandError::Refused(
                    "this controller keeps no history".to_owned(),
                )));
            }
        }
    }

    /// Has all that was counted written.
    pub(super) fn finish_history(&mut self) {
        self.hand_all_over(kernel::now());
        self.history.keeper = None;
    }
}
