//! The class cgroups: made if absent, followed while they come and go, attached to.

use std::{
    collections::{HashMap, HashSet},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use shaper_common::{CLASS_COUNT, CgroupClass, Class};
use tracing::{info, warn};

use crate::{
    authority::Authority,
    config::{ClassConfig, Scope, is_pattern},
    kernel::{CgroupId, CgroupRoot, KernelError, Programs, Tables, id_of, topmost},
};

/// How long another instance may take to look at cgroups and attach to them while this one starts.
const START_PATIENCE: Duration = Duration::from_secs(5);

/// The cgroups that stand for classes, and where the programs are attached.
#[derive(Debug)]
pub struct ClassCgroups {
    root: CgroupRoot,
    scope: Scope,
    patterns: [Vec<String>; CLASS_COUNT],
    known: HashMap<PathBuf, (CgroupId, Class)>,
    attached: HashMap<PathBuf, CgroupId>,
    /// Made by us or an earlier controller of the instance, the outermost first.
    created: Vec<PathBuf>,
    authority: Authority,
    /// How long another instance may take to attach to its cgroups. Nothing once the loop runs: it tries again soon, and
    /// must not miss its heartbeat.
    patience: Duration,
}

impl ClassCgroups {
    pub fn new(
        root: CgroupRoot,
        scope: Scope,
        classes: &[ClassConfig; CLASS_COUNT],
        authority: Authority,
    ) -> Self {
        Self {
            root,
            scope,
            patterns: classes.each_ref().map(|class| class.cgroups.clone()),
            known: HashMap::new(),
            attached: HashMap::new(),
            created: authority.record().created.clone(),
            authority,
            patience: START_PATIENCE,
        }
    }

    /// Takes over what an earlier controller attached.
    ///
    /// # Errors
    /// When the programs cannot be replaced.
    pub fn adopt(&mut self, programs: &mut Programs) -> Result<(), KernelError> {
        self.attached.extend(programs.take_over(&self.root)?);
        Ok(())
    }

    /// Forgets what an earlier controller knew of cgroups that stand for no class.
    pub fn forget_others(&self, tables: &mut Tables) {
        let stand_for_one: HashSet<_> = Class::ALL
            .into_iter()
            .flat_map(|class| self.expand(class))
            .filter_map(|path| id_of(&path).ok())
            .collect();
        for id in tables.class_cgroups() {
            if !stand_for_one.contains(&id) {
                tables.remove_class(id);
            }
        }
    }

    /// Other cgroups stand for the classes from the next [`ClassCgroups::refresh`] on. Those named in full are made.
    ///
    /// # Errors
    /// [`KernelError::Cgroup`] naming the directory; nothing has changed then.
    pub fn change(&mut self, classes: &[ClassConfig; CLASS_COUNT]) -> Result<(), KernelError> {
        let patterns = classes.each_ref().map(|class| class.cgroups.clone());
        let before = std::mem::replace(&mut self.patterns, patterns);
        self.create().inspect_err(|_| self.patterns = before)
    }

    /// Makes the class cgroups that are named in full and absent.
    ///
    /// # Errors
    /// [`KernelError::Cgroup`] naming the directory.
    pub fn create(&mut self) -> Result<(), KernelError> {
        for pattern in self
            .patterns
            .iter()
            .flatten()
            .filter(|pattern| !is_pattern(pattern))
        {
            let created = self.root.create(pattern)?;
            self.created.retain(|path| !created.contains(path));
            self.created.extend(created);
        }
        self.note();
        Ok(())
    }

    /// Finds the cgroups that there are now, tells the programs what they stand for, and attaches where that is new.
    ///
    /// # Errors
    /// When a cgroup cannot be read or attached to; the others are governed all the same. One that disappeared meanwhile is
    /// no error.
    pub fn refresh(
        &mut self,
        tables: &mut Tables,
        programs: &mut Programs,
    ) -> Result<(), KernelError> {
        let mut present = HashMap::new();
        for class in Class::ALL {
            for path in self.expand(class) {
                let Ok(id) = id_of(&path) else { continue };
                let level = self.root.level(&path);
                if self.known.get(&path) != Some(&(id, class)) {
                    tables.set_class(
                        id,
                        CgroupClass {
                            class: class as u32,
                            level,
                        },
                    )?;
                    info!(%class, cgroup = %path.display(), "class cgroup");
                }
                present.insert(path, (id, class));
            }
        }
        for (path, (id, _)) in &self.known {
            if present.get(path).is_none_or(|(now, _)| now != id) {
                tables.remove_class(*id);
                if id_of(path).is_ok_and(|now| now == *id) {
                    warn!(
                        cgroup = %path.display(),
                        "stands for no class any more; until `shaper detach`, its processes count as class default"
                    );
                }
            }
        }
        self.known = present;
        let attached = self.attach(programs);
        self.note();
        self.patience = Duration::ZERO;
        attached
    }

    /// Writes down what is governed and what was made, for whoever comes next.
    fn note(&mut self) {
        let mut governed: Vec<_> = self.attached.keys().cloned().collect();
        governed.sort();
        let noted = self.authority.note_cgroups(governed, self.created.clone());
        if let Err(error) = noted {
            warn!(%error, "what this controller governs is not written down: `shaper detach` may leave class cgroups");
        }
    }

    /// Attaches wherever it can; the first error counts.
    fn attach(&mut self, programs: &mut Programs) -> Result<(), KernelError> {
        let mut points: Vec<_> = self.known.keys().cloned().collect();
        if self.scope == Scope::Host {
            points = vec![self.root.path().to_owned()];
        }
        let points = topmost(&points);
        // The kernel detaches from a cgroup that is removed, and only then: one that stands for no class any more keeps
        // its programs, and must not get them a second time when it stands for one again.
        self.attached.retain(|path, id| {
            let there = id_of(path).is_ok_and(|now| now == *id);
            if !there {
                programs.detach(path);
            }
            there
        });
        let mut result = Ok(());
        for path in points {
            if self.attached.keys().any(|there| path.starts_with(there)) {
                continue;
            }
            let attached = id_of(&path).and_then(|id| {
                self.attach_alone(&path, programs)?;
                Ok(id)
            });
            let id = match attached {
                Ok(id) => id,
                Err(_) if !path.exists() => continue,
                Err(error) => {
                    result = result.and(Err(error));
                    continue;
                }
            };
            // What was attached below would run twice.
            self.attached.retain(|below, _| {
                let covered = below.starts_with(&path);
                if covered {
                    programs.detach(below);
                }
                !covered
            });
            self.attached.insert(path, id);
        }
        result
    }

    /// Attaches to a cgroup that no other instance governs.
    fn attach_alone(&self, path: &Path, programs: &mut Programs) -> Result<(), KernelError> {
        let _attaching =
            self.authority
                .attaching(self.patience)
                .map_err(|source| KernelError::Cgroup {
                    path: path.to_owned(),
                    action: "make sure that nobody else governs",
                    source,
                })?;
        if programs.is_governed_by_others(path)? {
            return Err(KernelError::Governed {
                cgroup: path.to_owned(),
                by: self.authority.governor_of(path),
            });
        }
        programs.attach(path)
    }

    /// Whether every process of the host is governed, whatever its cgroup.
    pub fn all_of_the_host(&self) -> bool {
        self.scope == Scope::Host
    }

    /// The class cgroups that there are.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.known.keys().cloned().collect()
    }

    /// Removes the cgroups that were made for the classes and are empty, and gives the instance up.
    pub fn leave(self) {
        remove_unused(&self.created);
    }

    /// Whether something of the instance outlives this controller.
    pub fn set_stays(&mut self, stays: bool) {
        self.authority.set_stays(stays);
    }

    fn expand(&self, class: Class) -> Vec<PathBuf> {
        let patterns = &self.patterns[class.index()];
        patterns
            .iter()
            .flat_map(|pattern| {
                let path = self.root.join(pattern);
                if is_pattern(pattern) {
                    glob_dirs(&path)
                } else {
                    vec![path]
                }
            })
            .collect()
    }
}

/// Removes cgroups that nobody uses.
pub fn remove_unused(created: &[PathBuf]) {
    for path in created.iter().rev() {
        // Busy: somebody uses it, so it stays.
        let _ = fs::remove_dir(path);
    }
}

fn glob_dirs(pattern: &Path) -> Vec<PathBuf> {
    match glob::glob(&pattern.to_string_lossy()) {
        Ok(paths) => paths.flatten().filter(|path| path.is_dir()).collect(),
        Err(error) => {
            warn!(pattern = %pattern.display(), %error, "this cgroup pattern cannot be read");
            Vec::new()
        }
    }
}
