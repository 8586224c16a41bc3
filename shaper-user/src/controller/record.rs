//! Recording a trace of what happens: `shaper run --record`.
//!
//! The loop only hands records over; a thread writes them. A disk that is too slow costs records, never time.

use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::Path,
    sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel},
    thread::{self, JoinHandle},
    time::{Duration, Instant, SystemTime},
};

use shaper_common::{Class, ConnId, Event as KernelEvent, EventKind};
use tracing::{info, warn};

use super::{Controller, translate::conn_id};
use crate::{
    kernel,
    policy::{Ended, LaneId, Ns, Outcome},
    trace::{TraceOutcome, TraceRecord},
};

/// Records on their way to the disk: a few seconds of what a busy host does.
const BACKLOG: usize = 16_384;

/// How long a record may be missing in the file.
const FLUSH: Duration = Duration::from_secs(1);

/// Bytes of records that are written before that.
const FULL: usize = 64 * 1024;

type Record = TraceRecord<'static>;

/// Makes records of what ends, and writes them.
#[derive(Debug)]
pub struct Recorder {
    /// Requests in flight, by the index of their connection's record: bounded, even if the news of an end is lost.
    in_flight: HashMap<u32, Started>,
    /// `None`: the writer has given up.
    writer: Option<SyncSender<Record>>,
    thread: Option<JoinHandle<u64>>,
    /// Since 1970 at the monotonic clock's zero.
    epoch: Duration,
    dropped: u64,
}

#[derive(Debug)]
struct Started {
    conn: ConnId,
    at: Ns,
    record: Record,
}

impl Recorder {
    /// Appends to the file at `path`, which is made if absent. A line that a killed recording left unfinished stays a line
    /// of its own.
    ///
    /// # Errors
    /// When it cannot be opened or read, or no thread started.
    pub fn append_to(path: &Path) -> io::Result<Self> {
        let mut file = OpenOptions::new().create(true).append(true).open(path)?;
        if is_unfinished(path, &file)? {
            file.write_all(b"\n")?;
        }
        let (writer, records) = sync_channel(BACKLOG);
        let thread = thread::Builder::new()
            .name("recorder".to_owned())
            .spawn(move || write(file, &records))?;
        let wall = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Ok(Self {
            in_flight: HashMap::new(),
            writer: Some(writer),
            thread: Some(thread),
            epoch: wall.saturating_sub(kernel::now().since(Ns(0))),
            dropped: 0,
        })
    }

    /// A wait has ended. What was admitted is recorded when it gives its slot back.
    fn ended(&mut self, now: Ns, ended: &Ended, lane: &str, account: Option<String>) {
        let outcome = match ended.outcome {
            Outcome::Admitted => TraceOutcome::Served,
            Outcome::Refused(_) => TraceOutcome::Refused,
            Outcome::Expired => TraceOutcome::Expired,
            Outcome::Gone => TraceOutcome::Gone,
            Outcome::Bypassed => TraceOutcome::Bypassed,
        };
        let record = TraceRecord {
            arrival: self.epoch + now.since(Ns(0)).saturating_sub(ended.wait),
            lane: lane.to_owned().into(),
            class: ended.class,
            account: account.map(Into::into),
            wait: ended.wait,
            service: None,
            outcome,
        };
        if outcome != TraceOutcome::Served {
            self.send(record);
            return;
        }
        let conn = conn_id(ended.conn);
        let started = Started {
            conn,
            at: now,
            record,
        };
        self.in_flight.insert(conn.index, started);
    }

    /// The kernel had opened a gate by itself, earlier than the news of it was read.
    fn opened(&mut self, conn: ConnId, at: Ns) {
        let epoch = self.epoch;
        if let Some(started) = self.started(conn) {
            let wait = started.record.wait;
            started.at = at;
            started.record.arrival = epoch + at.since(Ns(0)).saturating_sub(wait);
        }
    }

    fn released(&mut self, conn: ConnId, at: Ns) {
        if self.started(conn).is_some()
            && let Some(mut started) = self.in_flight.remove(&conn.index)
        {
            started.record.service = Some(at.since(started.at));
            self.send(started.record);
        }
    }

    fn started(&mut self, conn: ConnId) -> Option<&mut Started> {
        let started = self.in_flight.get_mut(&conn.index)?;
        (started.conn == conn).then_some(started)
    }

    fn send(&mut self, record: Record) {
        let Some(writer) = &self.writer else {
            return;
        };
        match writer.try_send(record) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                if self.dropped == 0 {
                    warn!("the disk does not keep up with --record: records are dropped");
                }
                self.dropped += 1;
            }
            // The thread has said why.
            Err(TrySendError::Disconnected(_)) => self.writer = None,
        }
    }

    /// Writes what is on its way.
    pub(super) fn finish(mut self) {
        self.writer = None;
        let written = self.thread.take().and_then(|thread| thread.join().ok());
        info!(
            written = written.unwrap_or(0),
            dropped = self.dropped,
            unfinished = self.in_flight.len(),
            "the recording has ended"
        );
    }
}

/// Whether the file ends within a line.
fn is_unfinished(path: &Path, file: &File) -> io::Result<bool> {
    let kind = file.metadata()?;
    // What is no regular file, such as a FIFO, begins anew.
    if !kind.is_file() || kind.len() == 0 {
        return Ok(false);
    }
    let mut last = [0];
    File::open(path)?.read_exact_at(&mut last, kind.len() - 1)?;
    Ok(last != *b"\n")
}

/// Writes records until there are no more to come, whole lines at a time. Returns how many.
fn write(mut file: File, records: &Receiver<Record>) -> u64 {
    let mut written = 0;
    let mut lines = Vec::new();
    // By when what is in `lines` is to be in the file.
    let mut due: Option<Instant> = None;
    loop {
        let next = match due {
            None => records.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(due) => records.recv_timeout(due.saturating_duration_since(Instant::now())),
        };
        let added = match &next {
            Ok(record) => {
                written += 1;
                due.get_or_insert_with(|| Instant::now() + FLUSH);
                serde_json::to_writer(&mut lines, record).map(|()| lines.push(b'\n'))
            }
            Err(_) => Ok(()),
        };
        let ends = matches!(next, Err(RecvTimeoutError::Disconnected));
        let is_due = due.is_some_and(|due| due <= Instant::now());
        let done = added.map_err(io::Error::from).and_then(|()| {
            if ends || is_due || lines.len() >= FULL {
                file.write_all(&lines)?;
                lines.clear();
                due = None;
            }
            Ok(())
        });
        if let Err(error) = done {
            warn!(%error, "cannot write the recording: it ends here");
            return written;
        }
        if ends {
            return written;
        }
    }
}

impl Controller {
    /// Records from now on.
    pub fn record(&mut self, recorder: Recorder) {
        self.recorder = Some(recorder);
    }

    /// Records the end of a wait.
    pub(super) fn record_end(&mut self, now: Ns, ended: &Ended) {
        if let Some(recorder) = &mut self.recorder
            && let Some(lane) = self.lanes.get(ended.lane)
        {
            let account = ended.account.map(|account| self.accounts.name(account));
            recorder.ended(now, ended, &lane.config.name, account);
        }
    }

    /// Records a slot that the controller itself took back.
    pub(super) fn record_release(&mut self, now: Ns, id: ConnId) {
        if let Some(recorder) = &mut self.recorder {
            recorder.released(id, now);
        }
    }

    /// Records what the kernel tells, after the policy has heard it.
    pub(super) fn record_event(&mut self, event: &KernelEvent) {
        let Some(recorder) = &mut self.recorder else {
            return;
        };
        let at = Ns(event.ns);
        match EventKind::from_u32(event.kind) {
            Some(EventKind::Opened) => recorder.opened(event.conn(), at),
            Some(EventKind::Released) => recorder.released(event.conn(), at),
            Some(EventKind::Refused) => {
                let lane = u16::try_from(event.lane).ok().map(LaneId);
                let Some(lane) = lane.and_then(|lane| self.lanes.get(lane)) else {
                    return;
                };
                let account = self.accounts.of_cgroup(event.account_cgroup);
                recorder.send(TraceRecord {
                    arrival: recorder.epoch + at.since(Ns(0)),
                    lane: lane.config.name.clone().into(),
                    class: Class::from_index(event.class),
                    account: account.map(|account| self.accounts.name(account).into()),
                    wait: Duration::ZERO,
                    service: None,
                    outcome: TraceOutcome::Refused,
                });
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn refused(recorder: &mut Recorder) {
        recorder.send(TraceRecord {
            arrival: Duration::from_secs(1),
            lane: "reasoning".into(),
            class: Class::Bulk,
            account: None,
            wait: Duration::ZERO,
            service: None,
            outcome: TraceOutcome::Refused,
        });
    }

    /// What a killed recording left is not glued to the next one's first record, and is seen as cut off.
    #[test]
    fn a_recording_goes_on_in_a_new_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.jsonl");
        for left in ["", "{\"arrival_s\":1.0,\"lane\":\"reas"] {
            fs::write(&path, left).unwrap();
            for _ in 0..2 {
                let mut recorder = Recorder::append_to(&path).unwrap();
                refused(&mut recorder);
                recorder.finish();
            }
            let text = fs::read_to_string(&path).unwrap();
            let whole = text
                .lines()
                .filter(|line| serde_json::from_str::<TraceRecord<'_>>(line).is_ok());
            assert_eq!(whole.count(), 2, "{text}");
            assert_eq!(
                text.lines().count(),
                2 + usize::from(!left.is_empty()),
                "{text}"
            );
        }
    }

    /// A record is in the file soon, whole, also while others go on to come.
    #[test]
    fn a_recording_can_be_read_while_it_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("trace.jsonl");
        let mut recorder = Recorder::append_to(&path).unwrap();
        let deadline = Instant::now() + 20 * FLUSH;
        let text = loop {
            refused(&mut recorder);
            let text = fs::read_to_string(&path).unwrap();
            if !text.is_empty() {
                break text;
            }
            assert!(Instant::now() < deadline, "nothing is written");
            thread::sleep(FLUSH / 100);
        };
        assert!(text.ends_with("}\n"), "{text}");
        recorder.finish();
    }
}
