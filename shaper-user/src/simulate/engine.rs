//! The discrete-event loop: arrivals in order, ends of requests in a heap, and the policy's own deadlines.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
};

use super::{
    kernel::{Asker, Decision, KernelLane},
    report::{Meter, Report},
    workload::{Arrival, Workload},
};
use crate::{
    config::LaneConfig,
    policy::{
        Action, AdmitFailure, ClientId, ConnHandle, Event, HeldConn, LaneId, LaneRules, Ns,
        OpenConn, Policy, Stage,
    },
};

/// When the made-up clock begins: late enough that no window of the policy reaches back before it.
const START: Ns = Ns(3_600_000_000_000);

/// Runs the workload under the rules of `lanes`, a limit on trial (`enforce = false`) as one that is kept. `progress` is
/// told the arrivals handled so far, now and then.
pub fn simulate(
    workload: &Workload,
    lanes: &[LaneConfig],
    mut progress: impl FnMut(u64),
) -> Report {
    const ARRIVALS_A_STEP: usize = 10_000;
    let mut engine = Engine::new(workload, lanes);
    for (index, arrival) in workload.arrivals.iter().enumerate() {
        let now = START + arrival.at;
        engine.run_until(now);
        engine.arrive(now, index, arrival);
        if index % ARRIVALS_A_STEP == 0 {
            progress(index as u64);
        }
    }
    engine.run_until(Ns(u64::MAX));
    engine.meter.into_report(engine.last, workload, lanes)
}

/// The rules, with their limit kept if there is one: what it would do is the question.
fn kept(rules: &LaneRules) -> LaneRules {
    LaneRules {
        enforce: true,
        ..rules.clone()
    }
}

/// What happens to a request that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happening {
    /// Its service ends. Before anything else of that instant: its slot serves the next.
    Finishes,
    /// Its client gives up, if it still waits.
    GivesUp,
}

struct Engine<'a> {
    workload: &'a Workload,
    policy: Policy,
    kernel: Vec<KernelLane>,
    /// Instant, what, and the index of the arrival, which is also its connection.
    agenda: BinaryHeap<Reverse<(Ns, Happening, usize)>>,
    /// Waiters, by the index of their arrival.
    waiting: HashMap<usize, Asker>,
    actions: Vec<Action>,
    meter: Meter,
    /// The end of the last request.
    last: Ns,
}

impl<'a> Engine<'a> {
    fn new(workload: &'a Workload, lanes: &[LaneConfig]) -> Self {
        let mut engine = Self {
            workload,
            policy: Policy::new(),
            kernel: lanes
                .iter()
                .map(|lane| KernelLane::new(&kept(&lane.rules)))
                .collect(),
            agenda: BinaryHeap::new(),
            waiting: HashMap::new(),
            actions: Vec::new(),
            meter: Meter::new(START, lanes.len()),
            last: START,
        };
        for (account, name) in &workload.accounts {
            engine.policy.name_account(*account, name);
        }
        for (id, lane) in (0..).map(LaneId).zip(lanes) {
            engine.policy.set_lane(
                START,
                id,
                &lane.name,
                kept(&lane.rules),
                &mut engine.actions,
            );
        }
        engine.carry_out(START);
        engine
    }

    /// Handles everything that is due up to `end`, that instant included.
    fn run_until(&mut self, end: Ns) {
        loop {
            let happening = self.agenda.peek().map(|Reverse((at, _, _))| *at);
            let deadline = self.policy.next_deadline();
            let Some(now) = [happening, deadline].into_iter().flatten().min() else {
                return;
            };
            if now > end {
                return;
            }
            if happening == Some(now)
                && let Some(Reverse((_, happening, index))) = self.agenda.pop()
            {
                self.happen(now, happening, index);
            } else {
                self.policy.tick(now, &mut self.actions);
                self.carry_out(now);
            }
        }
    }

    fn arrive(&mut self, now: Ns, index: usize, arrival: &Arrival) {
        let asker = Asker {
            class: arrival.class,
            account: arrival.account,
            cap: arrival
                .account
                .and_then(|account| self.policy.account_cap(arrival.lane, account)),
        };
        self.meter.arrived(arrival.lane, arrival.class);
        let open = open(now, index, arrival);
        let event = match self.kernel_lane(arrival.lane).connect(asker) {
            Decision::Open => {
                self.begin(now, index);
                Event::Opened(open)
            }
            Decision::Hold => {
                self.waiting.insert(index, asker);
                if let Some(patience) = arrival.patience {
                    self.plan(now + patience, Happening::GivesUp, index);
                }
                Event::Held(HeldConn {
                    conn: open.conn,
                    class: open.class,
                    account: open.account,
                    client: open.client,
                    stage: Stage::Connect,
                    since: now,
                })
            }
            Decision::Refuse => {
                self.meter.refused(arrival.lane, arrival.class);
                Event::Refused { class: open.class }
            }
        };
        self.tell(now, arrival.lane, event);
    }

    fn happen(&mut self, now: Ns, happening: Happening, index: usize) {
        let arrival = self.workload.arrivals[index];
        let conn = handle(index);
        match happening {
            Happening::Finishes => {
                let asker = Asker {
                    class: arrival.class,
                    account: arrival.account,
                    cap: None,
                };
                let refunded = self.kernel_lane(arrival.lane).release(asker);
                self.last = now;
                self.tell(now, arrival.lane, Event::Released { conn, refunded });
            }
            Happening::GivesUp if self.leave(arrival.lane, index) => {
                self.tell(now, arrival.lane, Event::Gone { conn });
            }
            Happening::GivesUp => {}
        }
    }

    /// A request begins: it holds its slot for its service time.
    fn begin(&mut self, now: Ns, index: usize) {
        let Arrival { lane, service, .. } = self.workload.arrivals[index];
        let slots = self.kernel_lane(lane).slots();
        self.meter.began(lane, slots, service);
        self.plan(now + service, Happening::Finishes, index);
    }

    fn plan(&mut self, at: Ns, happening: Happening, index: usize) {
        self.agenda.push(Reverse((at, happening, index)));
    }

    /// A waiter leaves the queue without a slot. `false`: it does not wait.
    fn leave(&mut self, lane: LaneId, index: usize) -> bool {
        let Some(asker) = self.waiting.remove(&index) else {
            return false;
        };
        self.kernel_lane(lane).leave_queue(asker.class);
        true
    }

    fn tell(&mut self, now: Ns, lane: LaneId, event: Event) {
        self.policy.on_event(now, lane, event, &mut self.actions);
        self.carry_out(now);
    }

    fn carry_out(&mut self, now: Ns) {
        while !self.actions.is_empty() {
            for action in std::mem::take(&mut self.actions) {
                self.act(now, action);
            }
        }
        for ended in self.policy.drain_ended() {
            self.meter.ended(&ended);
        }
    }

    fn act(&mut self, now: Ns, action: Action) {
        match action {
            Action::Admit {
                lane, conn, floor, ..
            } => self.admit(now, lane, conn, floor),
            // The wait goes on all the same.
            Action::PassConnect { .. } => {}
            Action::Expire(expiry) => {
                self.leave(expiry.lane, index(expiry.conn));
                let gone = Event::Gone { conn: expiry.conn };
                self.policy
                    .on_event(now, expiry.lane, gone, &mut self.actions);
            }
            // Only a lane that observes does so, and it has no waiters here.
            Action::LetGo { lane, conn } => drop(self.leave(lane, index(conn))),
            Action::SetLimits { lane, limits } => self.kernel_lane(lane).set_limits(limits),
            Action::SetCredits {
                lane,
                credits,
                refunds,
            } => {
                let outstanding = self.kernel_lane(lane).set_credits(credits, refunds);
                let credits = Event::Credits { outstanding };
                self.policy.on_event(now, lane, credits, &mut self.actions);
            }
            Action::SetBarrier { lane, barrier } => self.kernel_lane(lane).set_barrier(barrier),
        }
    }

    fn admit(&mut self, now: Ns, lane: LaneId, conn: ConnHandle, floor: u32) {
        let index = index(conn);
        let why = match self.waiting.get(&index).copied() {
            Some(asker) if self.kernel_lane(lane).admit(asker, floor) => {
                self.waiting.remove(&index);
                self.begin(now, index);
                return;
            }
            Some(_) => AdmitFailure::NoRoom,
            None => AdmitFailure::Gone,
        };
        let failed = Event::AdmitFailed { conn, why };
        self.policy.on_event(now, lane, failed, &mut self.actions);
    }

    fn kernel_lane(&mut self, lane: LaneId) -> &mut KernelLane {
        &mut self.kernel[usize::from(lane.0)]
    }
}

fn open(now: Ns, index: usize, arrival: &Arrival) -> OpenConn {
    OpenConn {
        conn: handle(index),
        class: arrival.class,
        account: arrival.account,
        // Each request a process of its own: nobody takes over another's place.
        client: ClientId(index as u32),
        since: now,
    }
}

fn handle(index: usize) -> ConnHandle {
    ConnHandle(index as u64)
}

fn index(conn: ConnHandle) -> usize {
    conn.0 as usize
}
