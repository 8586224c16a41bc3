//! What a lane's diagnosis rests on, in words.

use crate::{
    format,
    policy::{Diagnosis, Failing, LaneView, PausedBy, Slowness, Step, Trouble},
};

/// `None`: the diagnosis says it all.
pub fn of(view: &LaneView) -> Option<String> {
    let trouble = view.trouble.map(of_trouble);
    match view.diagnosis {
        Diagnosis::Ok | Diagnosis::GatewayDegraded | Diagnosis::Observe => trouble,
        Diagnosis::Paused => view.pause.map(|pause| {
            let by = match pause.by {
                PausedBy::Operator => "by an operator",
                PausedBy::Gateway => "the gateway asked for it (Retry-After)",
            };
            by.to_owned()
        }),
        Diagnosis::LocalQueue => Some(match trouble {
            Some(trouble) => format!("{}; {trouble}", of_queue(view)),
            None => of_queue(view),
        }),
    }
}

fn of_queue(view: &LaneView) -> String {
    let slots: u32 = view.in_flight.iter().sum();
    let queued: u32 = view.queued.iter().sum();
    let effective = view.limits.effective;
    if slots >= effective {
        format!("{queued} wait while all {effective} slots are in use")
    } else {
        format!(
            "{queued} wait for the pace, a cap or the reserve: {slots} of {effective} slots are in use"
        )
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
