//! Which cgroup a class and account mean, and putting processes there.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use shaper_common::Class;

use crate::{config::Settings, kernel::CgroupRoot};

/// The cgroup of a class, or of an account in it, made if absent.
///
/// # Errors
/// When the class has no cgroup that is named in full, the account's name is no directory name, or the cgroup cannot
/// be made.
pub fn cgroup_of(
    settings: &Settings,
    class: Class,
    account: Option<&str>,
) -> anyhow::Result<PathBuf> {
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
    let relative = match account {
        None => own.clone(),
        Some(account) if is_name(account) => format!("{own}/{account}"),
        Some(account) => {
            bail!(
                "{account:?} is no account name: it becomes a cgroup, so no `/`, and not `.` or `..`"
            )
        }
    };
    let root = CgroupRoot::find()?;
    root.create(&relative)?;
    Ok(root.join(&relative))
}

/// Moves a process into a cgroup.
///
/// # Errors
/// No such process, or not permitted.
pub fn join(cgroup: &Path, pid: u32) -> anyhow::Result<()> {
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
