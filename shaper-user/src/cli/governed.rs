//! Whether what is put into a cgroup is governed there.

use std::{io, path::Path};

use crate::{
    authority::{self, Record},
    control,
    kernel::bpffs,
    paths::Instance,
};

/// What lock files and control sockets tell of a cgroup.
#[derive(Debug, PartialEq, Eq)]
pub enum Governed {
    /// A controller of this instance governs it.
    By(Instance),
    /// Nobody does; why, and what to do.
    No(String),
    /// It cannot be told, and why not.
    Unknown(String),
}

impl Governed {
    /// Looks for a controller that governs `cgroup`. One of `instance` is meant to.
    pub fn look(cgroup: &Path, instance: &Instance) -> Self {
        let found = authority::records().and_then(|records| {
            let mut found = Vec::new();
            for (instance, record) in records {
                let state = State::of(&instance, &record)?;
                found.push((instance, record, state));
            }
            Ok(found)
        });
        match found {
            Ok(found) => judge(cgroup, instance, &found),
            Err(error) => Self::Unknown(error.to_string()),
        }
    }
}

/// What has become of the controller that wrote a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Runs,
    /// It is gone, and its programs stay.
    HasLeftPins,
    IsGone,
}

impl State {
    fn of(instance: &Instance, record: &Record) -> io::Result<Self> {
        // Without a socket's path, it had not begun.
        if !record.control.as_os_str().is_empty() && control::is_listening(&record.control)? {
            return Ok(Self::Runs);
        }
        let bpffs = bpffs::find().map_err(io::Error::other)?;
        let pinned = bpffs.is_some_and(|bpffs| instance.pin_dir(&bpffs).exists());
        Ok(if pinned {
            Self::HasLeftPins
        } else {
            Self::IsGone
        })
    }
}

fn judge(cgroup: &Path, instance: &Instance, found: &[(Instance, Record, State)]) -> Governed {
    let governs = |record: &Record| record.governed.iter().any(|path| cgroup.starts_with(path));
    let runs = |state: &State| *state == State::Runs;
    let governor = found
        .iter()
        .find(|(_, record, state)| runs(state) && governs(record));
    if let Some((governor, ..)) = governor {
        return Governed::By(governor.clone());
    }
    let meant = found.iter().find(|(name, ..)| name == instance);
    let why = match meant {
        Some((_, record, State::Runs)) => format!(
            "instance {instance}, with the configuration from {}, governs other cgroups: use its --config",
            record.config
        ),
        Some((_, record, State::HasLeftPins)) if governs(record) => format!(
            "the controller of instance {instance} is gone, and until the next one `on_controller_loss` has its way"
        ),
        _ if found.iter().any(|(.., state)| runs(state)) => format!(
            "no controller of instance {instance} runs: start it with `shaper run`, or name another with --instance"
        ),
        _ => "no controller runs: start it with `shaper run`".to_owned(),
    };
    Governed::No(format!("nothing governs {}: {why}", cgroup.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(governed: &str) -> Record {
        Record {
            config: "/srv/shaper".into(),
            governed: vec![governed.into()],
            ..Record::default()
        }
    }

    fn judged(found: &[(&str, &str, State)]) -> Governed {
        let found: Vec<_> = found
            .iter()
            .map(|(name, governed, state)| (name.parse().unwrap(), record(governed), *state))
            .collect();
        judge(
            Path::new("/c/shaper/bulk/acme"),
            &Instance::default(),
            &found,
        )
    }

    #[test]
    fn a_cgroup_is_governed_by_whoever_runs_and_is_attached_above() {
        for above in ["/c", "/c/shaper/bulk", "/c/shaper/bulk/acme"] {
            let found = [
                ("default", "/c/else", State::Runs),
                ("gpu", above, State::Runs),
            ];
            assert_eq!(judged(&found), Governed::By("gpu".parse().unwrap()));
        }
    }

    #[test]
    fn what_is_not_governed_says_why() {
        for (found, why) in [
            (&[][..], "no controller runs"),
            (
                &[("default", "/c/shaper/bulk", State::IsGone)],
                "no controller runs",
            ),
            (
                &[("default", "/c/shaper/bulk", State::HasLeftPins)],
                "`on_controller_loss`",
            ),
            (
                &[("default", "/c/shaper/bul", State::Runs)],
                "instance default, with the configuration from /srv/shaper, governs other cgroups",
            ),
            (
                &[("gpu", "/c/shaper/default", State::Runs)],
                "no controller of instance default runs",
            ),
        ] {
            match judged(found) {
                Governed::No(told) => {
                    assert!(told.starts_with("nothing governs /c/shaper/bulk/acme: "));
                    assert!(told.contains(why), "{told}");
                }
                other => panic!("{found:?}: {other:?}"),
            }
        }
    }
}
