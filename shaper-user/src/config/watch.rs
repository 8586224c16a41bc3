//! Noticing that the files of a configuration have changed.
//!
//! A hint, not a promise: a file behind a symbolic link, a network file system and a watch that the kernel refuses tell
//! nothing. Whoever wants certainty sends SIGHUP, which needs nothing of this.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use notify::{
    EventKind, RecommendedWatcher, RecursiveMode, Watcher as _,
    event::{AccessKind, AccessMode},
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout, timeout_at},
};
use tracing::{debug, warn};

use super::files::LANES_DIR;

/// Silence after a change that means that its author is done: editors and `cp` write a file in several steps.
const SETTLED: Duration = Duration::from_millis(300);

/// A file that is written without a pause is read at last.
const LONGEST_BURST: Duration = Duration::from_secs(3);

/// Time between two looks whether the watched directories are still the ones at their paths.
const CHECK: Duration = Duration::from_secs(5);

/// Watches one configuration directory, which may come, go and be replaced.
#[derive(Debug)]
pub struct Watch {
    dir: PathBuf,
    touched: Arc<Notify>,
    armed: Option<Armed>,
    /// Whether it has been reported that nothing can be watched.
    reported: bool,
}

#[derive(Debug)]
struct Armed {
    /// Watches until it is dropped.
    _watcher: RecommendedWatcher,
    identity: Identity,
}

/// Which directories were at the watched paths: device and inode, `None` for one that was absent.
type Identity = [Option<(u64, u64)>; 2];

impl Watch {
    pub fn new(dir: PathBuf) -> Self {
        let mut watch = Self {
            dir,
            touched: Arc::new(Notify::new()),
            armed: None,
            reported: false,
        };
        watch.arm();
        watch
    }

    /// Returns when something in the directory has changed and has been quiet since. Nothing is lost if the future is
    /// dropped before it is done.
    pub async fn changed(&mut self) {
        loop {
            let told = timeout(CHECK, self.touched.notified()).await.is_ok();
            if told {
                self.settle().await;
            }
            let replaced = self.arm_again();
            if told || replaced {
                return;
            }
        }
    }

    /// Waits for the end of a burst of changes.
    async fn settle(&self) {
        let end = Instant::now() + LONGEST_BURST;
        loop {
            let quiet = sleep(SETTLED);
            tokio::select! {
                () = quiet => return,
                more = timeout_at(end, self.touched.notified()) => if more.is_err() { return },
            }
        }
    }

    /// Watches what is at the paths now, if that is not what is watched already. `true`: it was not.
    fn arm_again(&mut self) -> bool {
        let identity = identity(&self.dir);
        if self
            .armed
            .as_ref()
            .is_some_and(|armed| armed.identity == identity)
        {
            return false;
        }
        // A watch that could not be set tells nothing of what has happened since.
        let was_armed = self.armed.is_some();
        self.arm();
        was_armed || self.armed.is_some()
    }

    fn arm(&mut self) {
        self.armed = None;
        let identity = identity(&self.dir);
        match watcher(&self.dir, self.touched.clone()) {
            Ok(watcher) => {
                debug!(dir = %self.dir.display(), "watching the configuration");
                self.reported = false;
                self.armed = Some(Armed {
                    _watcher: watcher,
                    identity,
                });
            }
            Err(error) if !self.reported => {
                self.reported = true;
                warn!(
                    dir = %self.dir.display(), %error,
                    "cannot watch the configuration: send SIGHUP after a change"
                );
            }
            Err(error) => debug!(%error, "still cannot watch the configuration"),
        }
    }
}

fn watcher(dir: &Path, touched: Arc<Notify>) -> notify::Result<RecommendedWatcher> {
    let inside = dir.to_owned();
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let concerns_us = match event {
            Ok(event) => {
                is_change(&event.kind)
                    && (event.need_rescan()
                        || event.paths.iter().any(|path| path.starts_with(&inside)))
            }
            // Of an error only a fresh look can tell what it hid.
            Err(_) => true,
        };
        if concerns_us {
            touched.notify_one();
        }
    })?;
    // The directory above tells when the directory itself comes or is replaced.
    if let Some(above) = dir.parent().filter(|above| above.is_dir()) {
        watcher.watch(above, RecursiveMode::NonRecursive)?;
    }
    for path in watched(dir).iter().filter(|path| path.is_dir()) {
        watcher.watch(path, RecursiveMode::NonRecursive)?;
    }
    Ok(watcher)
}

/// Reading the files must not look like a change to them.
fn is_change(kind: &EventKind) -> bool {
    match kind {
        EventKind::Access(access) => *access == AccessKind::Close(AccessMode::Write),
        _ => true,
    }
}

fn watched(dir: &Path) -> [PathBuf; 2] {
    [dir.to_owned(), dir.join(LANES_DIR)]
}

fn identity(dir: &Path) -> Identity {
    watched(dir).map(|path| {
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.dev(), metadata.ino()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(4);

    fn directory() -> (tempfile::TempDir, PathBuf) {
        let above = tempfile::tempdir().unwrap();
        let dir = above.path().join("config");
        fs::create_dir_all(dir.join(LANES_DIR)).unwrap();
        (above, dir)
    }

    async fn is_told(watch: &mut Watch) -> bool {
        timeout(SOON, watch.changed()).await.is_ok()
    }

    #[tokio::test]
    async fn a_burst_of_changes_is_told_once_and_reading_is_none() {
        let (_above, dir) = directory();
        let mut watch = Watch::new(dir.clone());
        let file = dir.join(LANES_DIR).join("a.toml");
        for text in ["max", "max_inflight", "max_inflight = 3"] {
            fs::write(&file, text).unwrap();
        }
        assert!(is_told(&mut watch).await);
        fs::read_to_string(&file).unwrap();
        let again = timeout(2 * SETTLED, watch.changed()).await;
        assert!(again.is_err(), "told twice, or of a read");
    }

    /// Configuration management replaces whole directories; a watch follows an inode and would stay with the old one.
    #[tokio::test]
    async fn a_replaced_directory_is_told_and_watched() {
        let (above, dir) = directory();
        let mut watch = Watch::new(dir.clone());
        fs::rename(&dir, above.path().join("old")).unwrap();
        fs::create_dir_all(dir.join(LANES_DIR)).unwrap();
        assert!(is_told(&mut watch).await, "of the replacement");
        fs::write(dir.join(LANES_DIR).join("a.toml"), "").unwrap();
        assert!(is_told(&mut watch).await, "of a change in the new one");
    }

    #[tokio::test]
    async fn a_directory_that_comes_later_is_told() {
        let above = tempfile::tempdir().unwrap();
        let dir = above.path().join("config");
        let mut watch = Watch::new(dir.clone());
        fs::write(above.path().join("unrelated"), "").unwrap();
        fs::create_dir_all(dir.join(LANES_DIR)).unwrap();
        assert!(is_told(&mut watch).await);
    }
}
