//! From the lines of a trace to arrivals in order.

use std::{
    collections::{BTreeMap, HashMap},
    io::{self, BufRead},
    time::Duration,
};

use shaper_common::Class;

use crate::{
    config::LaneConfig,
    policy::{AccountId, LaneId},
    trace::{TraceOutcome, TraceRecord},
};

/// One request to come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// Since the first arrival of the trace.
    pub(super) at: Duration,
    /// For how long it will have its slot.
    pub(super) service: Duration,
    /// How long its client waits before it gives up, if it does.
    pub(super) patience: Option<Duration>,
    pub(super) account: Option<AccountId>,
    pub(super) lane: LaneId,
    pub(super) class: Class,
}

/// All requests of a trace, the earliest first.
#[derive(Debug, Default)]
pub struct Workload {
    pub(super) arrivals: Vec<Arrival>,
    pub(super) accounts: HashMap<AccountId, String>,
    /// Requests to lanes that the configuration does not have, by the lane's name.
    pub(super) unknown: BTreeMap<String, u64>,
    /// Requests without a service time, for which the mean of their lane stands in.
    pub(super) assumed: u64,
    /// Lines that were left out because they end before their record does, as the last one of a killed recording.
    pub(super) cut_lines: u64,
    /// The number of the first of these, from 1.
    pub(super) first_cut_line: Option<u64>,
}

/// Why a trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    #[error("cannot be read: {0}")]
    Read(#[from] io::Error),
    #[error(
        "line {line}: {reason}\n  help: one JSON object a line with arrival_s, lane, priority and service_s, as in \
         {{\"arrival_s\":12.5,\"lane\":\"reasoning\",\"priority\":\"bulk\",\"service_s\":3.2}}"
    )]
    Line { line: u64, reason: String },
    #[error(
        "no request of lane {lane} has a service time\n  help: add service_s to the requests that were served; the mean \
         of those stands in for the others"
    )]
    NoServiceTime { lane: String },
    #[error(
        "has no request to any of the configured lanes ({known})\n  help: name the configuration that it was recorded \
         under, or one with lanes of the same names, with --config"
    )]
    NothingToDo { known: String },
}

impl Workload {
    /// Requests in it, those of unknown lanes not counted.
    pub fn request_count(&self) -> u64 {
        self.arrivals.len() as u64
    }

    /// Reads a trace line by line; empty lines are skipped, lines that are cut off are left out and counted, and the order of
    /// the lines does not matter. `progress` is told the bytes read so far, now and then.
    ///
    /// # Errors
    /// [`TraceError`], at the first line that is wrong.
    pub fn read(
        mut trace: impl BufRead,
        lanes: &[LaneConfig],
        mut progress: impl FnMut(u64),
    ) -> Result<Self, TraceError> {
        const LINES_A_STEP: u64 = 10_000;
        let mut reading = Reading::new(lanes);
        // Bytes: a line may be cut off within a character.
        let mut line = Vec::new();
        let mut bytes = 0;
        for number in 1.. {
            line.clear();
            let length = trace.read_until(b'\n', &mut line)?;
            if length == 0 {
                break;
            }
            bytes += length as u64;
            if number % LINES_A_STEP == 0 {
                progress(bytes);
            }
            // Without its end: a line that is cut off within a string would be one with a newline in it.
            let text = line.trim_ascii();
            if text.is_empty() {
                continue;
            }
            match serde_json::from_slice(text) {
                Ok(record) => reading.take(&record),
                Err(error) if error.is_eof() => reading.workload.leave_out(number),
                Err(error) => {
                    return Err(TraceError::Line {
                        line: number,
                        reason: error.to_string(),
                    });
                }
            }
        }
        reading.finish(lanes)
    }

    fn leave_out(&mut self, line: u64) {
        self.cut_lines += 1;
        self.first_cut_line.get_or_insert(line);
    }
}

/// A trace half read.
struct Reading {
    lanes: HashMap<String, LaneId>,
    ids: HashMap<(Class, String), AccountId>,
    workload: Workload,
    /// Service time and number of the served requests, by lane.
    served: HashMap<LaneId, (Duration, u32)>,
    /// Arrivals that lack a service time.
    lacking: Vec<usize>,
}

impl Reading {
    fn new(lanes: &[LaneConfig]) -> Self {
        let lanes = (0..).zip(lanes);
        Self {
            lanes: lanes
                .map(|(id, lane)| (lane.name.clone(), LaneId(id)))
                .collect(),
            ids: HashMap::new(),
            workload: Workload::default(),
            served: HashMap::new(),
            lacking: Vec::new(),
        }
    }

    fn take(&mut self, record: &TraceRecord<'_>) {
        let Some(&lane) = self.lanes.get(&*record.lane) else {
            *self
                .workload
                .unknown
                .entry(record.lane.clone().into_owned())
                .or_default() += 1;
            return;
        };
        match record.service {
            Some(service) => {
                let (sum, count) = self.served.entry(lane).or_default();
                *sum += service;
                *count += 1;
            }
            None => self.lacking.push(self.workload.arrivals.len()),
        }
        let account = record
            .account
            .as_deref()
            .map(|name| self.account(record.class, name));
        self.workload.arrivals.push(Arrival {
            at: record.arrival,
            service: record.service.unwrap_or_default(),
            patience: (record.outcome == TraceOutcome::Gone).then_some(record.wait),
            account,
            lane,
            class: record.class,
        });
    }

    /// An account is a cgroup below that of a class: one name in two classes is two accounts.
    fn account(&mut self, class: Class, name: &str) -> AccountId {
        let next = AccountId(self.ids.len() as u64 + 1);
        let id = *self.ids.entry((class, name.to_owned())).or_insert(next);
        if id == next {
            self.workload.accounts.insert(id, name.to_owned());
        }
        id
    }

    fn finish(self, lanes: &[LaneConfig]) -> Result<Workload, TraceError> {
        let Self {
            mut workload,
            served,
            lacking,
            ..
        } = self;
        workload.assumed = lacking.len() as u64;
        for index in lacking {
            let arrival = &mut workload.arrivals[index];
            let Some((sum, count)) = served.get(&arrival.lane) else {
                return Err(TraceError::NoServiceTime {
                    lane: lanes[usize::from(arrival.lane.0)].name.clone(),
                });
            };
            arrival.service = *sum / *count;
        }
        workload.arrivals.sort_by_key(|arrival| arrival.at);
        let Some(first) = workload.arrivals.first().map(|arrival| arrival.at) else {
            let known: Vec<_> = lanes.iter().map(|lane| lane.name.as_str()).collect();
            return Err(TraceError::NothingToDo {
                known: known.join(", "),
            });
        };
        for arrival in &mut workload.arrivals {
            arrival.at -= first;
        }
        Ok(workload)
    }
}
