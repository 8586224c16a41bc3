//! What a lane's diagnosis rests on, and what its waiters wait for, in words, as far as the rest of the snapshot does not
//! tell.

use shaper_common::Class;

use crate::{
    format,
    policy::{Diagnosis, Failing, Hindrance, LaneView, Limits, Slowness, Step, Trouble},
    words,
};

/// `None`: there is nothing to add.
pub fn of(view: &LaneView) -> Option<String> {
    match view.diagnosis {
        Diagnosis::Paused => view
            .pause
            .map(|pause| format!("paused {}", words::by(pause.by))),
        _ => view.trouble.map(of_trouble),
    }
}

/// What keeps a waiter of this class and account from starting. `paced`: its lane has a pace.
pub fn of_wait(hindrance: Hindrance, class: Class, account: Option<&str>, paced: bool) -> String {
    match hindrance {
        Hindrance::Pause(by) => format!("the lane is paused {}", words::by(by)),
        Hindrance::AccountCap { in_use, cap } => {
            let account = format::printable(account.unwrap_or("?"));
            format!("account {account} has {in_use} of its {cap} slots in use")
        }
        Hindrance::ClassCap { in_use, cap } => {
            format!("class {class} has {in_use} of its {cap} slots in use")
        }
        Hindrance::Limit { in_use, limits } => format!("{in_use} of {} in use", slots(limits)),
        Hindrance::Reserve { free, reserve } => {
            format!("what is free ({free}) is within the {reserve} reserved for interactive work")
        }
        Hindrance::Spacing if paced => "slots are free, but the pace spaces the starts".to_owned(),
        Hindrance::Spacing => {
            "slots are free, but starts are spaced for a while after a pause".to_owned()
        }
    }
}

/// The slots that a lane may use, and why they are fewer than configured if they are.
pub fn slots(limits: Limits) -> String {
    let Limits {
        limit, effective, ..
    } = limits;
    let lowered = if effective < limit {
        format!(" (lowered from {limit} by adaptation)")
    } else {
        String::new()
    };
    format!("{}{lowered}", format::counted(effective, "slot"))
}

pub fn of_trouble(trouble: Trouble) -> String {
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

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;
    use crate::policy::PausedBy;

    /// A18: what waiters wait for is said in the words by which the troubleshooting page goes.
    #[test]
    fn the_troubleshooting_page_goes_by_these_words() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/troubleshooting.md");
        let page = fs::read_to_string(&path).unwrap();
        let limits = |effective| Limits {
            limit: 6,
            effective,
            reserve: 1,
        };
        let full = |effective| Hindrance::Limit {
            in_use: effective,
            limits: limits(effective),
        };
        let (free, reserve) = (1, 1);
        for (hindrance, paced, expected) in [
            (full(6), false, "6 of 6 slots in use"),
            (
                full(4),
                false,
                "4 of 4 slots (lowered from 6 by adaptation) in use",
            ),
            (
                Hindrance::Reserve { free, reserve },
                false,
                "what is free (1) is within the 1 reserved for interactive work",
            ),
            (
                Hindrance::ClassCap { in_use: 4, cap: 4 },
                false,
                "class bulk has 4 of its 4 slots in use",
            ),
            (
                Hindrance::AccountCap { in_use: 3, cap: 3 },
                false,
                "account acme has 3 of its 3 slots in use",
            ),
            (
                Hindrance::Spacing,
                true,
                "slots are free, but the pace spaces the starts",
            ),
            (
                Hindrance::Spacing,
                false,
                "slots are free, but starts are spaced for a while after a pause",
            ),
            (
                Hindrance::Pause(PausedBy::Operator),
                false,
                "the lane is paused by an operator",
            ),
            (
                Hindrance::Pause(PausedBy::Gateway),
                false,
                "the lane is paused by its gateway (Retry-After)",
            ),
        ] {
            let said = of_wait(hindrance, Class::Bulk, Some("acme"), paced);
            assert_eq!(said, expected);
            let is_a_row = page
                .lines()
                .any(|line| line.starts_with('|') && line.contains(&format!("`{said}`")));
            assert!(is_a_row, "no row of {} has {said:?}", path.display());
        }
    }

    /// E7: an account's name is its tenant's, who may put terminal escapes in it.
    #[test]
    fn an_account_cannot_send_escapes_to_the_log() {
        let capped = Hindrance::AccountCap { in_use: 1, cap: 1 };
        let said = of_wait(capped, Class::Bulk, Some("\x1b[2J"), false);
        assert!(said.starts_with("account ?[2J has"), "{said}");
    }
}
