//! Writing the file without making the control loop wait for a disk.

use std::{
    fs,
    path::PathBuf,
    sync::mpsc::{Receiver, Sender, channel},
    thread::{self, JoinHandle},
};

use tracing::warn;

use super::{State, file};

/// Keeps an instance's state. What was handed over is on disk when it is dropped.
#[derive(Debug)]
pub struct StateKeeper {
    found: Option<State>,
    writer: Writer,
}

#[derive(Debug)]
enum Writer {
    /// There is nowhere to write to; that was told.
    None,
    /// Nothing has been written yet.
    Idle(PathBuf),
    Busy {
        states: Sender<State>,
        thread: JoinHandle<()>,
    },
}

impl StateKeeper {
    /// Keeps the state in `dir`, which is made if it is absent. If that cannot be, a warning says so and nothing is kept.
    /// It has no thread before there is something to write: open it while the process still has all its privileges.
    pub fn open(dir: PathBuf) -> Self {
        if let Err(error) = fs::create_dir_all(&dir) {
            warn!(dir = %dir.display(), %error, "pauses and adaptation will not survive a restart: choose another --state");
            return Self {
                found: None,
                writer: Writer::None,
            };
        }
        let path = dir.join("lanes.json");
        Self {
            found: file::read(&path),
            writer: Writer::Idle(path),
        }
    }

    /// What an earlier controller left.
    pub fn found(&self) -> Option<&State> {
        self.found.as_ref()
    }

    /// Has the state written soon.
    pub fn keep(&mut self, state: State) {
        if let Writer::Idle(path) = &self.writer {
            self.writer = start(path.clone());
        }
        if let Writer::Busy { states, .. } = &self.writer {
            // Fails only if the thread has panicked, which was told.
            let _ = states.send(state);
        }
    }
}

fn start(path: PathBuf) -> Writer {
    let (states, received) = channel();
    let thread = thread::Builder::new()
        .name("state".to_owned())
        .spawn(move || write_all(&path, &received));
    match thread {
        Ok(thread) => Writer::Busy { states, thread },
        Err(error) => {
            warn!(%error, "pauses and adaptation will not survive a restart");
            Writer::None
        }
    }
}

impl Drop for StateKeeper {
    fn drop(&mut self) {
        if let Writer::Busy { states, thread } = std::mem::replace(&mut self.writer, Writer::None) {
            drop(states);
            // A panic in it has been printed.
            let _ = thread.join();
        }
    }
}

/// Writes the latest state whenever there is one, until nobody can hand over any more.
fn write_all(path: &std::path::Path, states: &Receiver<State>) {
    let mut told = false;
    while let Ok(state) = states.recv() {
        let latest = states.try_iter().last().unwrap_or(state);
        match file::replace(path, &latest) {
            Ok(()) => told = false,
            Err(error) if !told => {
                told = true;
                warn!(%error, "pauses and adaptation are not kept for the next start");
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::{
        policy::{Factor, Lasting, Ns},
        state::Instant,
    };

    fn lowered_to(share: f64) -> State {
        let now = Instant {
            ns: Ns(1_000_000_000_000),
            wall: Timestamp::UNIX_EPOCH,
        };
        let lasting = Lasting {
            factor: Factor::new(share),
            calm_since: now.ns,
            pause: None,
        };
        State::of(now, [("reasoning", lasting)])
    }

    /// C7: the last state of one controller is what the next one finds.
    #[test]
    fn the_next_one_finds_what_was_kept_last() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("default");
        for share in [0.7, 0.5] {
            let mut keeper = StateKeeper::open(path.clone());
            for step in 0..100 {
                keeper.keep(lowered_to(1.0 - f64::from(step) / 200.0));
            }
            keeper.keep(lowered_to(share));
            drop(keeper);
            assert_eq!(
                StateKeeper::open(path.clone()).found(),
                Some(&lowered_to(share))
            );
        }
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_not_fatal() {
        let mut keeper = StateKeeper::open("/proc/nowhere".into());
        keeper.keep(lowered_to(0.7));
        assert_eq!(keeper.found(), None);
    }
}
