//! The gateway's own count of what reached it: the number that decides whether shaper kept its promise.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use super::answer::Request;
use crate::clock::Moment;

/// What the gateway saw, shared by all its listeners.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Connections accepted since the start.
    pub accepted: usize,
    /// The most connections that had a request in service at one time. HTTP/1.1 has one request at a time on a
    /// connection, so this is the peak of concurrent requests too.
    pub peak_in_service: usize,
    /// Every request of which a byte arrived, in the order of their first bytes.
    pub requests: Vec<RequestRecord>,
    in_service: usize,
}

/// One request.
#[derive(Clone, Debug)]
pub struct RequestRecord {
    /// Empty until the head has arrived whole.
    pub request: Request,
    pub peer: SocketAddr,
    pub first_byte: Moment,
    /// When the request had arrived whole.
    pub last_byte: Option<Moment>,
    /// When the last piece of the answer was handed to the socket.
    pub answered: Option<Moment>,
    /// When it was no longer in service: answered, or found to be aborted.
    pub ended: Option<Moment>,
    pub body_bytes: usize,
    pub outcome: Outcome,
}

/// What became of a request.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    InService,
    Served,
    /// Answered with 429.
    TurnedAway,
    /// The client went away, or the gateway stopped, before the answer's end.
    Aborted,
}

impl Tally {
    pub fn served(&self) -> usize {
        self.count(Outcome::Served)
    }

    pub fn aborted(&self) -> usize {
        self.count(Outcome::Aborted)
    }

    /// The labels of the requests in the order of their first bytes.
    pub fn labels(&self) -> Vec<&str> {
        self.requests
            .iter()
            .filter_map(|record| record.request.label.as_deref())
            .collect()
    }

    /// The most requests of a kind that were in service at one time.
    pub fn peak_of(&self, kind: impl Fn(&Request) -> bool) -> usize {
        let of_kind = || self.requests.iter().filter(|record| kind(&record.request));
        let in_service_at = |at: Moment| {
            of_kind()
                .filter(|other| other.first_byte <= at && other.ended.is_none_or(|end| at < end))
                .count()
        };
        of_kind()
            .map(|record| in_service_at(record.first_byte))
            .max()
            .unwrap_or(0)
    }

    /// When the first byte of each request arrived, in order.
    pub fn arrivals(&self) -> Vec<Moment> {
        self.requests
            .iter()
            .map(|record| record.first_byte)
            .collect()
    }

    fn count(&self, outcome: Outcome) -> usize {
        self.requests
            .iter()
            .filter(|record| record.outcome == outcome)
            .count()
    }
}

/// The shared counter behind a [`Tally`].
#[derive(Clone, Debug, Default)]
pub(super) struct Meter(Arc<Mutex<Tally>>);

impl Meter {
    pub(super) fn accepted(&self) {
        self.lock().accepted += 1;
    }

    pub(super) fn tally(&self) -> Tally {
        self.lock().clone()
    }

    /// The first byte of a request has arrived.
    pub(super) fn begin(&self, peer: SocketAddr) -> InService {
        let mut tally = self.lock();
        tally.in_service += 1;
        tally.peak_in_service = tally.peak_in_service.max(tally.in_service);
        tally.requests.push(RequestRecord {
            request: Request::default(),
            peer,
            first_byte: Moment::now(),
            last_byte: None,
            answered: None,
            ended: None,
            body_bytes: 0,
            outcome: Outcome::InService,
        });
        InService {
            meter: self.clone(),
            index: tally.requests.len() - 1,
            crowd: tally.in_service,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Tally> {
        self.0
            .lock()
            .expect("nothing panics under the meter's lock")
    }
}

/// A request in service: counted until it is finished, or aborted when dropped before.
#[derive(Debug)]
pub(super) struct InService {
    meter: Meter,
    index: usize,
    crowd: usize,
}

impl InService {
    /// How many requests were in service when this one began, itself included.
    pub(super) fn crowd(&self) -> usize {
        self.crowd
    }

    /// The request has arrived whole.
    pub(super) fn arrived(&self, request: Request, body_bytes: usize) {
        let mut tally = self.meter.lock();
        let record = &mut tally.requests[self.index];
        record.request = request;
        record.last_byte = Some(Moment::now());
        record.body_bytes = body_bytes;
    }

    /// The last piece of the answer is about to be written. Called before the write, not after: the client may have
    /// read the answer, and the next request may be here, before this thread runs again.
    pub(super) fn finish(self, outcome: Outcome) {
        let mut tally = self.meter.lock();
        let record = &mut tally.requests[self.index];
        record.outcome = outcome;
        record.answered = Some(Moment::now());
    }
}

impl Drop for InService {
    fn drop(&mut self) {
        let mut tally = self.meter.lock();
        tally.in_service -= 1;
        let record = &mut tally.requests[self.index];
        record.ended = Some(Moment::now());
        if record.outcome == Outcome::InService {
            record.outcome = Outcome::Aborted;
        }
    }
}
