//! Where a class and account live, and putting processes there.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use shaper_common::Class;

use crate::{
    config::Settings,
    kernel::CgroupRoot,
    systemd::{self, scope, slice::Slice},
};

/// Where processes of a class, or of an account in it, belong.
#[derive(Debug, PartialEq, Eq)]
pub enum Place {
    /// A cgroup that anybody may write to who has the permission.
    Cgroup(PathBuf),
    /// A part of systemd's tree.
    Slice(Slice),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cgroup(path) => path.display().fmt(f),
            Self::Slice(slice) => f.write_str(slice.name()),
        }
    }
}

impl Place {
    /// The place of a class, or of an account in it. A cgroup is made if absent; a slice is when somebody comes.
    ///
    /// # Errors
    /// When the class has no cgroup that is named in full, the account's name is no directory name, or the cgroup cannot
    /// be made.
    pub fn of(settings: &Settings, class: Class, account: Option<&str>) -> anyhow::Result<Self> {
        let named = &settings.classes[class.index()].cgroups;
        let Some(own) = named
            .iter()
            .find(|pattern| !pattern.contains(['*', '?', '[']))
        else {
            bail!(
                "class {class} has no cgroup of its own, only patterns\n  add one to `cgroups` under [classes.{class}] in \
                 shaper.toml, as in cgroups = [\"shaper/{class}\"]"
            );
        };
        if let Some(account) = account
            && !is_name(account)
        {
            bail!(
                "{account:?} is no account name: it becomes a cgroup, so no `/`, and not `.` or `..`"
            );
        }
        if systemd::is_booted()
            && let Some(slice) = Slice::at(own)
        {
            return Ok(Self::Slice(match account {
                Some(account) => slice.of_account(account),
                None => slice,
            }));
        }
        let relative = match account {
            None => own.clone(),
            Some(account) => format!("{own}/{account}"),
        };
        let root = CgroupRoot::find()?;
        root.create(&relative)?;
        Ok(Self::Cgroup(root.join(&relative)))
    }

    /// Moves processes there; tells of each that was moved.
    ///
    /// # Errors
    /// No such process, or not permitted.
    pub fn take(&self, pids: &[u32], mut moved: impl FnMut(u32)) -> anyhow::Result<()> {
        match self {
            Self::Cgroup(path) => {
                for pid in pids {
                    write(path, *pid)?;
                    moved(*pid);
                }
            }
            Self::Slice(slice) => {
                scope::start(slice, pids)?;
                pids.iter().copied().for_each(moved);
            }
        }
        Ok(())
    }
}

fn write(cgroup: &Path, pid: u32) -> anyhow::Result<()> {
    fs::write(cgroup.join("cgroup.procs"), pid.to_string()).with_context(|| {
        format!(
            "cannot move process {pid} into {} (does it exist, and may you write there? root may)",
            cgroup.display()
        )
    })
}

fn is_name(account: &str) -> bool {
    !account.is_empty()
        && account.len() <= 255
        && !account.contains(['/', '\n', '\0'])
        && !account.starts_with('.')
}
