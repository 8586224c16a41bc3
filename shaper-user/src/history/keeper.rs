//! The thread that keeps the history: the controller's loop hands it what is new, and never waits for a disk.
//!
//! What cannot be written waits in memory, and is tried again; a store that is damaged is set aside.

use std::{
    fs, mem,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, channel, sync_channel},
    thread,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use tokio::sync::oneshot;
use tracing::{info, warn};

use super::{
    Question, Report,
    hour::Hour,
    store::{Store, StoreError},
    tally::{Batch, News, Windows, add_news},
};
use crate::handle::CommandError;

/// Jobs that wait for the thread at once.
const JOBS: usize = 16;

/// Time between two tries to write what could not be written.
const AGAIN: Duration = Duration::from_secs(10);

/// How long the start waits for the windows of the run before. A disk that takes longer costs them, and nothing else.
const OPENING: Duration = Duration::from_secs(5);

/// How long the end waits for what is to be written.
const CLOSING: Duration = Duration::from_secs(5);

/// Who asked for a report.
pub type Asker = oneshot::Sender<Result<Report, CommandError>>;

#[derive(Debug)]
enum Job {
    Keep {
        batch: Batch,
        retention: Duration,
    },
    Report {
        question: Question,
        /// Lanes there are, whether anything has happened in them or not.
        known: Vec<String>,
        asker: Asker,
    },
}

/// The loop's end of the thread. Dropping it waits, for a bounded time, until all is written.
#[derive(Debug)]
pub struct Keeper {
    jobs: Option<SyncSender<Job>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Keeper {
    /// Starts the thread over the store at `path`, and waits a bounded time for what it had of the run before.
    ///
    /// # Errors
    /// When no thread can be started. A store that cannot be used is no error but a warning: the history is in memory
    /// then, of the last two days.
    pub fn start(path: &Path) -> std::io::Result<(Self, Windows)> {
        let (jobs, receiver) = sync_channel(JOBS);
        let (opened, windows) = channel();
        let mut shelf = Shelf::new(path);
        let thread = thread::Builder::new()
            .name("history".to_owned())
            .spawn(move || {
                // Whoever waits for it may have given up.
                let _ = opened.send(shelf.windows());
                shelf.run(&receiver);
            })?;
        let windows = windows.recv_timeout(OPENING).unwrap_or_else(|_| {
            warn!(
                "{} was not open after {} s: a peak that spans this restart may be missed",
                path.display(),
                OPENING.as_secs()
            );
            Windows::new()
        });
        let keeper = Self {
            jobs: Some(jobs),
            thread: Some(thread),
        };
        Ok((keeper, windows))
    }

    /// Hands over what is new.
    ///
    /// # Errors
    /// Gives it back if the thread is busy.
    pub fn keep(&self, batch: Batch, retention: Duration) -> Result<(), Batch> {
        match self.send(Job::Keep { batch, retention }) {
            Ok(()) => Ok(()),
            Err(Job::Keep { batch, .. }) => Err(batch),
            // It is the same job.
            Err(Job::Report { .. }) => Ok(()),
        }
    }

    /// Has a question answered, after what was handed over before.
    pub fn report(&self, question: Question, known: Vec<String>, asker: Asker) {
        let job = Job::Report {
            question,
            known,
            asker,
        };
        if let Err(Job::Report { asker, .. }) = self.send(job) {
            // The asker may have given up.
            let _ = asker.send(Err(CommandError::Refused(
                "the history does not answer: the disk of the state directory is too slow, see the log".to_owned(),
            )));
        }
    }

    fn send(&self, job: Job) -> Result<(), Job> {
        match &self.jobs {
            Some(jobs) => jobs.try_send(job).map_err(|error| match error {
                TrySendError::Full(job) | TrySendError::Disconnected(job) => job,
            }),
            None => Err(job),
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.jobs = None;
        let begun = Instant::now();
        while self
            .thread
            .as_ref()
            .is_some_and(|thread| !thread.is_finished())
        {
            if begun.elapsed() > CLOSING {
                warn!(
                    "the disk of the state directory does not answer: the last seconds of the history are lost"
                );
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Answers a question from a store that no controller has open.
///
/// # Errors
/// Any [`StoreError`]; the store is as it was.
pub fn read(path: &Path, question: &Question) -> Result<Report, StoreError> {
    let now = Timestamp::now();
    let first = first_hour(now, question.since);
    let found = guarded(path, || Store::read(path, first))?;
    Ok(Report::new(now, first, of_lane(found, question), None))
}

fn first_hour(now: Timestamp, since: Duration) -> Hour {
    Hour::at(now.checked_sub(since).unwrap_or(Timestamp::UNIX_EPOCH))
}

fn of_lane(mut found: News, question: &Question) -> News {
    if let Some(wanted) = &question.lane {
        found.retain(|(_, lane), _| lane == wanted);
    }
    found
}

/// The thread's own: the store, and what waits to be written.
#[derive(Debug)]
struct Shelf {
    path: PathBuf,
    store: Option<Store>,
    /// Why there is no store, or why it took nothing the last time.
    problem: Option<String>,
    unwritten: Batch,
    retention: Duration,
    tried: Instant,
}

impl Shelf {
    fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            store: None,
            problem: None,
            unwritten: Batch::default(),
            retention: Duration::MAX,
            tried: Instant::now(),
        }
    }

    fn run(&mut self, jobs: &Receiver<Job>) {
        loop {
            match jobs.recv_timeout(AGAIN) {
                Ok(Job::Keep { batch, retention }) => {
                    self.retention = retention;
                    add_news(&mut self.unwritten.news, batch.news);
                    self.unwritten.windows = batch.windows.or(self.unwritten.windows.take());
                    if self.problem.is_none() || self.tried.elapsed() >= AGAIN {
                        self.write();
                    }
                }
                Ok(Job::Report {
                    question,
                    known,
                    asker,
                }) => {
                    // Whoever asked may have given up.
                    let _ = asker.send(self.report(&question, known));
                }
                Err(RecvTimeoutError::Timeout) if self.problem.is_some() => self.write(),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        if !self.unwritten.is_empty() {
            self.write();
        }
    }

    fn windows(&mut self) -> Windows {
        self.attempt(Store::windows).unwrap_or_default()
    }

    fn write(&mut self) {
        let batch = mem::take(&mut self.unwritten);
        let kept_hours = self.retention.as_secs() / 3600;
        let oldest = Hour::at(Timestamp::now()).before(kept_hours);
        if self.attempt(|store| store.write(&batch, oldest)).is_none() {
            self.unwritten = batch;
        }
    }

    fn report(&mut self, question: &Question, known: Vec<String>) -> Result<Report, CommandError> {
        let now = Timestamp::now();
        let first = first_hour(now, question.since);
        let mut found = self.attempt(|store| store.since(first)).unwrap_or_default();
        for ((hour, lane), new) in &self.unwritten.news {
            if *hour >= first {
                found.entry((*hour, lane.clone())).or_default().merge(new);
            }
        }
        let found = of_lane(found, question);
        match &question.lane {
            Some(lane) if found.is_empty() && !known.contains(lane) => {
                Err(CommandError::UnknownLane {
                    lane: lane.clone(),
                    known,
                })
            }
            _ => Ok(Report::new(now, first, found, self.problem.clone())),
        }
    }

    /// Does something with the store, which is opened if it is not. What goes wrong is told once, until it works again.
    fn attempt<T>(&mut self, work: impl Fn(&Store) -> Result<T, StoreError>) -> Option<T> {
        self.tried = Instant::now();
        let store = match self.store.take() {
            Some(store) => Ok(store),
            None => open(&self.path),
        };
        let done = store.and_then(|store| {
            let done = guarded(&self.path, || work(&store))?;
            self.store = Some(store);
            Ok(done)
        });
        match done {
            Ok(done) => {
                if self.problem.take().is_some() {
                    info!("the history is written again: {}", self.path.display());
                }
                Some(done)
            }
            Err(error) => {
                if self.problem.is_none() {
                    warn!(
                        "the history is not written, and kept in memory until it is: {error}; tried again every {} s",
                        AGAIN.as_secs()
                    );
                }
                self.problem = Some(error.to_string());
                None
            }
        }
    }
}

/// Opens the store; one that is damaged is set aside, and a new one begun.
fn open(path: &Path) -> Result<Store, StoreError> {
    match guarded(path, || Store::open(path)) {
        Err(StoreError::Damaged { reason, .. }) => {
            let aside = path.with_extension("damaged");
            fs::rename(path, &aside).map_err(|source| StoreError::Io {
                path: path.to_owned(),
                source,
            })?;
            warn!(
                "the history was damaged ({reason}): it is set aside as {}, and a new one begins",
                aside.display()
            );
            Store::open(path)
        }
        opened => opened,
    }
}

/// What is in a damaged file may be too much for the store's own code: then it is damaged, and no more than that.
fn guarded<T>(path: &Path, work: impl FnOnce() -> Result<T, StoreError>) -> Result<T, StoreError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(StoreError::Damaged {
            path: path.to_owned(),
            reason: "reading it ended in a panic".to_owned(),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::LaneHour;
    use shaper_common::Class;

    const KEEP: Duration = Duration::from_secs(90 * 86_400);
    const LANE: &str = "reasoning";

    fn starts(hour: Hour, count: u64) -> Batch {
        let mut lane = LaneHour::default();
        lane.classes.get_mut(Class::Bulk).starts = count;
        Batch {
            news: News::from([((hour, LANE.to_owned()), lane)]),
            windows: None,
        }
    }

    fn this_hour() -> Hour {
        Hour::at(Timestamp::now())
    }

    fn ask(keeper: &Keeper, lane: Option<&str>) -> Result<Report, CommandError> {
        let question = Question {
            lane: lane.map(str::to_owned),
            since: Duration::from_secs(86_400),
        };
        let (asker, answer) = oneshot::channel();
        keeper.report(question, vec!["idle".to_owned()], asker);
        answer.blocking_recv().unwrap()
    }

    fn starts_told(report: &Report) -> u64 {
        report
            .lanes
            .iter()
            .map(|lane| lane.total.total.starts)
            .sum()
    }

    /// C11: what was counted before a restart and after it is one history.
    #[test]
    fn a_history_outlives_its_keeper() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history.redb");
        for run in 1..=3 {
            let (keeper, _) = Keeper::start(&path).unwrap();
            keeper.keep(starts(this_hour(), 2), KEEP).unwrap();
            let report = ask(&keeper, None).unwrap();
            assert_eq!(starts_told(&report), run * 2);
            assert_eq!(report.problem, None);
        }
        let question = Question {
            lane: None,
            since: Duration::from_secs(7200),
        };
        assert_eq!(starts_told(&read(&path, &question).unwrap()), 6);
    }

    #[test]
    fn a_lane_that_nobody_knows_is_an_error_that_names_those_there_are() {
        let directory = tempfile::tempdir().unwrap();
        let (keeper, _) = Keeper::start(&directory.path().join("history.redb")).unwrap();
        keeper.keep(starts(this_hour(), 2), KEEP).unwrap();
        assert!(
            ask(&keeper, Some(LANE)).is_ok(),
            "gone from the configuration"
        );
        assert!(ask(&keeper, Some("idle")).unwrap().lanes.is_empty());
        let error = ask(&keeper, Some("typo")).unwrap_err().to_string();
        assert!(error.contains("typo") && error.contains("idle"), "{error}");
    }

    #[test]
    fn a_damaged_store_is_set_aside_and_a_new_one_begun() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history.redb");
        fs::write(&path, b"this was a history once").unwrap();
        let (keeper, _) = Keeper::start(&path).unwrap();
        keeper.keep(starts(this_hour(), 1), KEEP).unwrap();
        let report = ask(&keeper, None).unwrap();
        assert_eq!((starts_told(&report), report.problem), (1, None));
        let aside = fs::read(directory.path().join("history.damaged")).unwrap();
        assert_eq!(aside, b"this was a history once");
    }

    /// A state directory that is a file: nothing can be written, everything goes on.
    #[test]
    fn without_a_disk_the_history_is_in_memory_and_says_so() {
        let directory = tempfile::tempdir().unwrap();
        let blocked = directory.path().join("state");
        fs::write(&blocked, b"").unwrap();
        let (keeper, _) = Keeper::start(&blocked.join("history.redb")).unwrap();
        for _ in 0..3 {
            keeper.keep(starts(this_hour(), 1), KEEP).unwrap();
        }
        let report = ask(&keeper, None).unwrap();
        assert_eq!(starts_told(&report), 3);
        let problem = report.problem.unwrap();
        assert!(problem.contains("state"), "{problem}");
    }

    #[test]
    fn what_is_older_than_the_retention_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let (keeper, _) = Keeper::start(&directory.path().join("history.redb")).unwrap();
        keeper.keep(starts(this_hour().before(5), 1), KEEP).unwrap();
        assert_eq!(starts_told(&ask(&keeper, None).unwrap()), 1);
        let two_hours = Duration::from_secs(7200);
        keeper.keep(starts(this_hour(), 1), two_hours).unwrap();
        assert_eq!(starts_told(&ask(&keeper, None).unwrap()), 1);
    }
}
