//! Where a class and account live, and putting processes there.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, bail};
use shaper_common::Class;

use crate::{
    config::{Settings, account, is_pattern},
    kernel::CgroupRoot,
    systemd::{self, scope, slice::Slice},
};

/// Where processes of a class, or of an account in it, belong.
#[derive(Debug, PartialEq, Eq)]
pub struct Place {
    cgroup: PathBuf,
    /// The part of systemd's tree that the cgroup is. If it is none, anybody may write to it who has the permission.
    slice: Option<Slice>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.slice {
            Some(slice) => f.write_str(slice.name()),
            None => self.cgroup.display().fmt(f),
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
        let (relative, slice) = find(settings, class, account, systemd::is_booted())?;
        let root = CgroupRoot::find()?;
        if slice.is_none() {
            root.create(&relative)?;
        }
        Ok(Self {
            cgroup: root.join(&relative),
            slice,
        })
    }

    /// The cgroup, which systemd may not have made yet.
    pub fn cgroup(&self) -> &Path {
        &self.cgroup
    }

    /// Moves processes there; tells of each that was moved.
    ///
    /// # Errors
    /// No such process, or not permitted.
    pub fn take(&self, pids: &[u32], mut moved: impl FnMut(u32)) -> anyhow::Result<()> {
        if let Some(slice) = &self.slice {
            scope::start(slice, pids)?;
            pids.iter().copied().for_each(moved);
            return Ok(());
        }
        for pid in pids {
            write(&self.cgroup, *pid)?;
            moved(*pid);
        }
        Ok(())
    }
}

/// The cgroup below the cgroup2 mount, and the slice that it is where systemd runs the host.
fn find(
    settings: &Settings,
    class: Class,
    account: Option<&str>,
    by_systemd: bool,
) -> anyhow::Result<(String, Option<Slice>)> {
    let named = &settings.classes[class.index()].cgroups;
    let Some(own) = named.iter().find(|cgroup| !is_pattern(cgroup)) else {
        bail!(
            "class {class} has no cgroup of its own, only patterns\n  add one to `cgroups` under [classes.{class}] in \
             shaper.toml, as in cgroups = [\"shaper/{class}\"]"
        );
    };
    let slice = if by_systemd { Slice::at(own) } else { None };
    let Some(account) = account else {
        return Ok((own.clone(), slice));
    };
    if !account::is_name(account) {
        bail!("{account:?} is no account name: {}", account::RULE);
    }
    let slice = slice.map(|slice| slice.of_account(account));
    let below = slice.as_ref().map_or(account, Slice::name);
    Ok((format!("{own}/{below}"), slice))
}

fn write(cgroup: &Path, pid: u32) -> anyhow::Result<()> {
    fs::write(cgroup.join("cgroup.procs"), pid.to_string()).with_context(|| {
        format!(
            "cannot move process {pid} into {} (does it exist, and may you write there? root may)",
            cgroup.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Files, Origin, TextFile};

    /// Whether an account of this name can have a cap of its own in a lane.
    fn has_cap(name: &str) -> bool {
        let lane = TextFile {
            path: "lanes.d/a.toml".into(),
            text: format!(
                "endpoints = [\"10.0.0.1:1\"]\nmax_inflight = 0\naccount.overrides = {{ {} = 1 }}",
                serde_json::Value::from(name)
            ),
        };
        let files = Files {
            origin: Origin::Embedded,
            settings: None,
            lanes: vec![lane],
        };
        Config::parse(&files).is_ok()
    }

    /// One rule: who can be put into an account can have a cap there, and the other way round.
    #[test]
    fn an_account_has_the_same_names_wherever_it_is_named() {
        for (name, is_one) in [
            ("acme", true),
            ("my team", true),
            (".hidden", true),
            ("...", true),
            (&"x".repeat(255), true),
            ("", false),
            (".", false),
            ("..", false),
            ("a/b", false),
            ("a\nb", false),
            (&"x".repeat(256), false),
        ] {
            let found = find(&Settings::default(), Class::Bulk, Some(name), false);
            assert_eq!(found.is_ok(), is_one, "{name:?}: {found:?}");
            assert_eq!(has_cap(name), is_one, "{name:?}");
            if let Err(error) = found {
                assert!(error.to_string().contains("255 bytes"), "{error}");
            }
        }
    }

    #[test]
    fn a_place_is_a_cgroup_or_a_slice() {
        let mut settings = Settings::default();
        let cgroups = &mut settings.classes[Class::Bulk.index()].cgroups;
        *cgroups = vec![
            "box/*.scope".into(),
            "box/shaper.slice/shaper-bulk.slice".into(),
        ];
        for (account, by_systemd, cgroup, slice) in [
            (None, false, "", None),
            (Some("a-b"), false, "/a-b", None),
            (None, true, "", Some("shaper-bulk.slice")),
            (
                Some("a-b"),
                true,
                "/shaper-bulk-a\\x2db.slice",
                Some("shaper-bulk-a\\x2db.slice"),
            ),
        ] {
            let found = find(&settings, Class::Bulk, account, by_systemd).unwrap();
            assert_eq!(
                found.0,
                format!("box/shaper.slice/shaper-bulk.slice{cgroup}")
            );
            assert_eq!(found.1.as_ref().map(Slice::name), slice);
        }
    }
}
