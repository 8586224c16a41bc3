//! A gateway that has as many hands as it has, and loses its head when too many wait.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Serves some requests at once, the others in the order in which they came; while it has more than it can bear, it
/// gets nothing done at all. Clones are the same workshop.
#[derive(Clone, Debug)]
pub struct Workshop {
    floor: Arc<Mutex<Floor>>,
}

#[derive(Debug)]
struct Floor {
    hands: usize,
    bears: usize,
    /// In the order of their arrival: who is at work, then who waits.
    jobs: VecDeque<Job>,
    next: u64,
    /// Up to when the work that was done is taken off.
    seen: Instant,
}

#[derive(Debug)]
struct Job {
    number: u64,
    left: Duration,
}

impl Workshop {
    /// Works on `hands` requests at once, and on none while there are more than `bears`.
    pub fn new(hands: usize, bears: usize) -> Self {
        Self {
            floor: Arc::new(Mutex::new(Floor {
                hands,
                bears,
                jobs: VecDeque::new(),
                next: 0,
                seen: Instant::now(),
            })),
        }
    }

    /// A request with this much work in it. It leaves when the ticket is dropped.
    pub(super) fn enter(&self, work: Duration) -> Ticket {
        let mut floor = self.lock();
        floor.catch_up();
        let number = floor.next;
        floor.next += 1;
        floor.jobs.push_back(Job { number, left: work });
        Ticket {
            workshop: self.clone(),
            number,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Floor> {
        self.floor.lock().expect("nothing panics on the floor")
    }
}

impl Floor {
    /// Takes off the work that was done since the last look. Exact as long as somebody looks whenever a job is done,
    /// comes or goes.
    fn catch_up(&mut self) {
        let now = Instant::now();
        let done = now.duration_since(self.seen);
        self.seen = now;
        if self.jobs.len() <= self.bears {
            for job in self.jobs.iter_mut().take(self.hands) {
                job.left = job.left.saturating_sub(done);
            }
        }
    }
}

/// A request in the workshop.
#[derive(Debug)]
pub(super) struct Ticket {
    workshop: Workshop,
    number: u64,
}

impl Ticket {
    /// `None`: done. Otherwise when to look again.
    pub(super) fn look(&self) -> Option<Duration> {
        /// Others come and go.
        const LONGEST: Duration = Duration::from_millis(20);
        /// The granularity of poll(2).
        const SHORTEST: Duration = Duration::from_millis(1);
        let mut floor = self.workshop.lock();
        floor.catch_up();
        let job = floor.jobs.iter().find(|job| job.number == self.number)?;
        (!job.left.is_zero()).then(|| job.left.clamp(SHORTEST, LONGEST))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut floor = self.workshop.lock();
        floor.catch_up();
        floor.jobs.retain(|job| job.number != self.number);
    }
}
