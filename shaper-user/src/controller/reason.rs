//! What a lane's diagnosis rests on, in words, as far as the rest of the snapshot does not tell.

use crate::{
    format,
    policy::{Diagnosis, Failing, LaneView, PausedBy, Slowness, Step, Trouble},
};

/// `None`: there is nothing to add.
pub fn of(view: &LaneView) -> Option<String> {
    match view.diagnosis {
        Diagnosis::Paused => {
            let by_gateway = view
                .pause
                .is_some_and(|pause| pause.by == PausedBy::Gateway);
            by_gateway.then(|| "the gateway asked for it (Retry-After)".to_owned())
        }
        _ => view.trouble.map(of_trouble),
    }
}

fn of_trouble(trouble: Trouble) -> String {
    match trouble {
        Trouble::Slow(Slowness { now, usual }) => format!(
            "first bytes take {}, usually {}",
            format::duration(now),
            format::duration(usual)
        ),
        Trouble::Failing(Failing { step, failed, of }) => {
            let what = match step {
                Step::Connect => "connects",
                Step::Request => "answers",
            };
            format!("{failed} of the last {of} {what} failed")
        }
    }
}
