//! One authority (C1): who governs an instance, and who governs which cgroups.
//!
//! `/run/shaper/INSTANCE.lock` is locked by the instance's controller as long as it lives, and says who that is. What it
//! says stays when the controller goes and its programs stay: the next one, or `shaper detach`, reads there what has to be
//! taken over or removed.

use std::{
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
    thread::sleep,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::{
    lock_file::{LockError, LockFile},
    paths::{Instance, RUN_DIR},
};

/// What an instance's lock file says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Of the controller that wrote this.
    pub pid: u32,
    /// Its control socket.
    pub control: PathBuf,
    /// Where its configuration comes from.
    pub config: String,
    /// The cgroups that its programs are attached to.
    pub governed: Vec<PathBuf>,
    /// The cgroups that it made, the outermost first.
    pub created: Vec<PathBuf>,
}

/// Why an instance could not be had.
#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error(
        "another controller, {who}, has instance {instance}: stop it, or give this one a name of its own with --instance"
    )]
    Taken { instance: Instance, who: Box<Who> },
    #[error("cannot lock {}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

/// The controller that holds a lock, for people.
#[derive(Debug)]
pub struct Who(Option<Record>);

impl Who {
    /// Its control socket; `None`: it has only just begun.
    pub fn control(&self) -> Option<&Path> {
        self.0.as_ref().map(|record| record.control.as_path())
    }
}

impl std::fmt::Display for Who {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.0 {
            Some(record) => write!(
                f,
                "process {} with the control socket {} and the configuration from {}",
                record.pid,
                record.control.display(),
                record.config
            ),
            None => f.write_str("just starting"),
        }
    }
}

/// The right to govern an instance. When it is dropped, the lock file goes, unless something of the instance stays.
#[derive(Debug)]
pub struct Authority {
    /// `None` while it is dropped.
    lock: Option<LockFile>,
    stays: bool,
    dir: PathBuf,
    instance: Instance,
    record: Record,
}

impl Authority {
    /// Claims the instance.
    ///
    /// # Errors
    /// [`ClaimError::Taken`] while a controller of it lives.
    pub fn claim(instance: &Instance) -> Result<Self, ClaimError> {
        Self::claim_in(Path::new(RUN_DIR), instance)
    }

    fn claim_in(dir: &Path, instance: &Instance) -> Result<Self, ClaimError> {
        let path = lock_path(dir, instance);
        let io_error = |source| ClaimError::Io {
            path: path.clone(),
            source,
        };
        fs::create_dir_all(dir).map_err(io_error)?;
        let mut lock = LockFile::claim(&path).map_err(|error| match error {
            LockError::Held(text) => ClaimError::Taken {
                instance: instance.clone(),
                who: Box::new(Who(serde_json::from_str(&text).ok())),
            },
            LockError::Io(source) => io_error(source),
        })?;
        let text = lock.read().map_err(io_error)?;
        // Damaged or of another version: nothing is known then.
        let record = serde_json::from_str(&text).unwrap_or_default();
        Ok(Self {
            lock: Some(lock),
            // What an earlier one noted, until it is known that nothing of it stays.
            stays: !text.is_empty(),
            dir: dir.to_owned(),
            instance: instance.clone(),
            record,
        })
    }

    /// What was written last: by an earlier controller at first.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Writes down who has it now. What an earlier one made and governs stays noted.
    ///
    /// # Errors
    /// Of the lock file, with its path.
    pub fn take(&mut self, control: &Path, config: String) -> io::Result<()> {
        self.record.pid = std::process::id();
        self.record.control = control.to_owned();
        self.record.config = config;
        self.write()
    }

    /// Notes the cgroups that are governed and those that were made.
    ///
    /// # Errors
    /// Of the lock file, with its path.
    pub fn note_cgroups(
        &mut self,
        governed: Vec<PathBuf>,
        created: Vec<PathBuf>,
    ) -> io::Result<()> {
        if (&self.record.governed, &self.record.created) == (&governed, &created) {
            return Ok(());
        }
        self.record.governed = governed;
        self.record.created = created;
        self.write()
    }

    fn write(&mut self) -> io::Result<()> {
        let text = serde_json::to_string(&self.record).map_err(io::Error::other)?;
        let path = lock_path(&self.dir, &self.instance);
        let Some(lock) = &mut self.lock else {
            return Ok(());
        };
        lock.write(&text)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }

    /// Whether something of the instance outlives this, so that what is noted of it must, too.
    pub fn set_stays(&mut self, stays: bool) {
        self.stays = stays;
    }

    /// Waits, for `patience` at most, until no other instance is about to attach programs: between a look at who governs a
    /// cgroup and attaching to it, nobody else may do the same.
    ///
    /// # Errors
    /// Of the lock file; `TimedOut`.
    pub fn attaching(&self, patience: Duration) -> io::Result<Attaching> {
        // No instance has a name with a dot.
        let path = self.dir.join(".attaching.lock");
        let deadline = Instant::now() + patience;
        loop {
            match LockFile::claim(&path) {
                Ok(lock) => return Ok(Attaching(Some(lock))),
                Err(LockError::Held(_)) if Instant::now() < deadline => {
                    sleep(Duration::from_millis(10));
                }
                Err(LockError::Held(_)) => {
                    let message =
                        format!("{}: another instance does not let go of it", path.display());
                    return Err(io::Error::new(ErrorKind::TimedOut, message));
                }
                Err(LockError::Io(error)) => return Err(error),
            }
        }
    }

    /// The instance that governs `cgroup`, one above it or one below it, as far as its lock file says; for people.
    pub fn governor_of(&self, cgroup: &Path) -> String {
        let related = |path: &PathBuf| path.starts_with(cgroup) || cgroup.starts_with(path);
        let records = records_in(&self.dir).unwrap_or_default();
        let mut others = records.into_iter().filter_map(|(instance, record)| {
            (instance != self.instance && record.governed.iter().any(related))
                .then(|| format!("instance {instance} ({})", Who(Some(record))))
        });
        others
            .next()
            .unwrap_or_else(|| "another instance of shaper".to_owned())
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        if let Some(lock) = self.lock.take()
            && !self.stays
        {
            lock.remove();
            // Others may have theirs there.
            let _ = fs::remove_dir(&self.dir);
        }
    }
}

/// What the lock files of all instances say. Takes none of the locks, so it is in nobody's way; what it finds may be what a
/// controller that is gone has left.
///
/// # Errors
/// When one cannot be read, with its path: they are for root.
pub fn records() -> io::Result<Vec<(Instance, Record)>> {
    records_in(Path::new(RUN_DIR))
}

fn records_in(dir: &Path) -> io::Result<Vec<(Instance, Record)>> {
    let told = |path: &Path, error: io::Error| {
        io::Error::new(error.kind(), format!("{}: {error}", path.display()))
    };
    let files = match fs::read_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        files => files.map_err(|error| told(dir, error))?,
    };
    let mut records = Vec::new();
    for file in files.flatten() {
        let path = file.path();
        let name = path.file_name().and_then(|name| name.to_str());
        // Others have locks there: of a control socket, of those who attach.
        let Some(Ok(instance)) = name
            .and_then(|name| name.strip_suffix(".lock"))
            .map(str::parse)
        else {
            continue;
        };
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            text => text.map_err(|error| told(&path, error))?,
        };
        // Nothing yet, damaged, or of another version.
        let Some(record) = text.lines().next().map(serde_json::from_str) else {
            continue;
        };
        records.extend(record.ok().map(|record| (instance, record)));
    }
    Ok(records)
}

fn lock_path(dir: &Path, instance: &Instance) -> PathBuf {
    dir.join(format!("{instance}.lock"))
}

/// Nobody else attaches programs while this lives.
#[derive(Debug)]
pub struct Attaching(Option<LockFile>);

impl Drop for Attaching {
    fn drop(&mut self) {
        if let Some(lock) = self.0.take() {
            lock.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(name: &str) -> Instance {
        name.parse().unwrap()
    }

    fn claim(dir: &Path, name: &str) -> Authority {
        Authority::claim_in(dir, &instance(name)).unwrap()
    }

    /// C1: a second controller refuses to start and says where the first is.
    #[test]
    fn the_second_one_is_told_of_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let mut first = claim(dir.path(), "gpu");
        first
            .take(Path::new("/run/shaper/gpu.sock"), "/etc/shaper".to_owned())
            .unwrap();
        let error = Authority::claim_in(dir.path(), &instance("gpu")).unwrap_err();
        let pid = format!("process {}", std::process::id());
        for word in ["gpu", "/run/shaper/gpu.sock", "/etc/shaper", &pid] {
            assert!(error.to_string().contains(word), "{word}: {error}");
        }
        claim(dir.path(), "another");
    }

    /// A lock file that a dead controller left is no obstacle, and what it says is not lost.
    #[test]
    fn what_a_dead_controller_noted_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let made = vec![PathBuf::from("/cgroup/shaper")];
        let mut first = claim(dir.path(), "gpu");
        first.note_cgroups(made.clone(), made.clone()).unwrap();
        first.set_stays(true);
        drop(first);
        let mut second = claim(dir.path(), "gpu");
        second.take(Path::new("s"), "c".to_owned()).unwrap();
        assert_eq!(second.record().created, made);
        second.set_stays(true);
        drop(second);
        fs::write(dir.path().join("gpu.lock"), "damaged").unwrap();
        assert_eq!(claim(dir.path(), "gpu").record(), &Record::default());
    }

    #[test]
    fn the_governor_of_a_cgroup_is_found_above_and_below() {
        let dir = tempfile::tempdir().unwrap();
        let mut gpu = claim(dir.path(), "gpu");
        gpu.note_cgroups(vec!["/c/shaper/bulk".into()], Vec::new())
            .unwrap();
        let other = claim(dir.path(), "other");
        for related in ["/c/shaper/bulk", "/c/shaper", "/c/shaper/bulk/acme"] {
            let governor = other.governor_of(Path::new(related));
            assert!(governor.contains("instance gpu"), "{governor}");
        }
        assert!(!other.governor_of(Path::new("/c/else")).contains("gpu"));
    }

    /// A look at who governs is in nobody's way: the locks stay where they are.
    #[test]
    fn what_is_noted_is_read_without_a_lock() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(records_in(&dir.path().join("absent")).unwrap(), []);
        let mut gpu = claim(dir.path(), "gpu");
        assert_eq!(records_in(dir.path()).unwrap(), [], "just begun");
        gpu.note_cgroups(vec!["/c/bulk".into()], Vec::new())
            .unwrap();
        fs::write(dir.path().join("gpu.sock.lock"), "1234").unwrap();
        fs::write(dir.path().join("damaged.lock"), "{").unwrap();
        let read = records_in(dir.path()).unwrap();
        assert_eq!(read, [(instance("gpu"), gpu.record().clone())]);
    }

    #[test]
    fn nothing_is_left_of_an_instance_that_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("shaper");
        let authority = claim(&run, "gpu");
        drop(authority.attaching(Duration::ZERO).unwrap());
        drop(authority);
        assert!(!run.exists());
    }
}
