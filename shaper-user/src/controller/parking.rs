//! When a connection gives its slot back although it stays open.

use std::{collections::HashMap, time::Duration};

use shaper_common::{ConnId, Gate};

use super::schedule::Schedule;
use crate::{
    kernel::{ConnView, Tables},
    policy::{LaneId, Ns},
};

/// Silence after what looks like the end of a chunked stream.
const AFTER_HINT: Duration = Duration::from_millis(20);

/// Silence on a connection that has sent nothing as long as a request.
const UNUSED: Duration = Duration::from_secs(1);

/// Silence after payload that was either something that a gateway sends before its answer, which may take its time, or a
/// whole answer that came at once: TLS session tickets one by one, the settings of HTTP/2.
pub(super) const UNSURE: Duration = Duration::from_secs(30);

/// An answer that comes so long after such a thing is worth the patience. A head and its body are not so far apart.
const WORTH_PATIENCE: Duration = Duration::from_secs(10);

/// The same silence in a lane in which that has happened.
const UNSURE_BUT_WARNED: Duration = Duration::from_secs(600);

/// How long that is known.
const WARNED_FOR: Duration = Duration::from_secs(3600);

/// How long an admitted request may take to leave: TCP's own timer, should no probe get through, is at most 120 s away
/// (`TCP_RTO_MAX`).
const ON_ITS_WAY: Duration = Duration::from_secs(130);

/// The longest that a guess is widened to.
const GUESS_MAX: Duration = Duration::from_secs(60);

/// Time without an overrun after which a widened guess is narrowed by one step.
const GUESS_MEMORY: Duration = Duration::from_secs(600);

/// What is known of an open connection, as far as it matters here.
#[derive(Clone, Copy, Debug)]
struct Facts {
    /// A request is unanswered.
    busy: bool,
    /// TCP has begun to connect.
    dialled: bool,
    established: bool,
    /// The response is complete by its own length.
    complete: bool,
    /// Something longer than `wake_bytes` has been sent.
    sent_long: bool,
    /// When the slot was taken, or the connection made, whichever is later.
    began: Ns,
    tx: Ns,
    rx: Ns,
    end_hint: Ns,
    /// When payload came that may have been the answer; 0: none did.
    unsure: Ns,
    /// Request bytes that were held have not left yet.
    on_its_way: bool,
}

/// What to do with an open connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It keeps its slot; look again then, or when something happens.
    Keep { until: Option<Ns> },
    /// Its slot goes back. `guess`: more of the response may come.
    Park { guess: bool },
}

impl Facts {
    fn of(view: &ConnView) -> Self {
        let record = &view.record;
        Self {
            busy: view.word.is_busy(),
            dialled: record.tuple.remote_port != 0,
            established: view.is_established(),
            complete: view.response_is_complete(),
            sent_long: record.sent_long != 0,
            began: Ns(record.established_ns.max(record.admitted_ns.load())),
            tx: Ns(record.tx_ns),
            rx: Ns(record.rx_ns),
            end_hint: Ns(record.end_hint_ns),
            unsure: Ns(record.unsure_ns),
            on_its_way: !view.is_moving(),
        }
    }

    /// `unsure`: the silence after which what may have been the answer is taken for it.
    fn judge(&self, now: Ns, idle_release: Duration, unsure: Duration) -> Verdict {
        let mut look_again = None;
        let mut wait = |until: Ns| {
            look_again = Some(look_again.map_or(until, |other: Ns| other.min(until)));
            until <= now
        };
        if self.on_its_way && now < self.began + ON_ITS_WAY {
            return Verdict::Keep {
                until: Some(now + UNUSED),
            };
        }
        // Since the slot was taken, at the earliest: a request that was admitted is still on its way here.
        let silent_since = self.began.max(self.tx).max(self.rx);
        if !self.dialled {
            // The connect failed before TCP began, for want of a route or a port; the socket may be kept all the same.
            if wait(self.began + UNUSED) {
                return Verdict::Park { guess: false };
            }
        } else if self.established && !self.sent_long {
            // Opened ahead of need. Parked for sure: what is longer asks for a slot, and an answer to something short is
            // no overrun.
            if wait(silent_since + UNUSED) {
                return Verdict::Park { guess: false };
            }
        } else if !self.busy {
            let answered = self.rx > self.began;
            if answered && self.complete {
                return Verdict::Park { guess: false };
            }
            if answered && self.end_hint == self.rx && wait(self.rx + AFTER_HINT) {
                return Verdict::Park { guess: true };
            }
            if self.established && wait(silent_since + idle_release) {
                return Verdict::Park { guess: true };
            }
        }
        if self.busy && self.unsure > self.began && wait(self.unsure + unsure) {
            return Verdict::Park { guess: true };
        }
        // However long the gateway thinks.
        Verdict::Keep { until: look_again }
    }
}

/// How much longer than `idle_release` a lane waits, because its responses pause.
#[derive(Clone, Copy, Debug)]
struct Guess {
    doublings: u32,
    last_overrun: Ns,
}

/// A connection that has just given its slot back.
#[derive(Clone, Copy, Debug)]
pub struct ParkedNow {
    pub id: ConnId,
    pub lane: LaneId,
}

/// A connection that has a slot.
#[derive(Clone, Copy, Debug)]
struct Open {
    lane: LaneId,
    /// When the request began that was unanswered at the last look; 0: none was.
    unanswered: Ns,
}

impl Open {
    /// Whether a request has begun since the last look and is unanswered.
    fn has_begun(&mut self, view: &ConnView) -> bool {
        let unanswered = match view.word.is_busy() {
            true => Ns(view.record.request_ns),
            false => Ns(0),
        };
        let before = std::mem::replace(&mut self.unanswered, unanswered);
        unanswered != Ns(0) && unanswered != before
    }
}

/// The connections that have a slot, and when to look at each.
#[derive(Debug, Default)]
pub struct Parking {
    open: HashMap<ConnId, Open>,
    looks: Schedule,
    /// Requests have begun of which nobody has told.
    begun: bool,
    guesses: HashMap<LaneId, Guess>,
    /// When an answer last came long after something that had looked like one.
    warned: HashMap<LaneId, Ns>,
}

impl Parking {
    /// `id` has taken a slot.
    pub fn watch(&mut self, now: Ns, lane: LaneId, id: ConnId) {
        self.open.entry(id).or_insert_with(|| {
            self.looks.set(id, now);
            Open {
                lane,
                unanswered: Ns(0),
            }
        });
    }

    /// Whether requests have begun, since the last call, of which the kernel does not tell.
    pub fn take_begun(&mut self) -> bool {
        std::mem::take(&mut self.begun)
    }

    /// Those that have a slot.
    pub fn open(&self) -> impl Iterator<Item = ConnId> {
        self.open.keys().copied()
    }

    /// Something has happened on `id` that may end its use of the slot.
    pub fn look_soon(&mut self, id: ConnId, at: Ns) {
        self.looks.hasten(id, at);
    }

    /// The end of the response on `id` seems to have come at `at`, which is told late where nobody wants the slot.
    pub fn end_hint(&mut self, at: Ns, id: ConnId) {
        self.look_soon(id, at + AFTER_HINT);
    }

    /// `id` has no slot any more.
    pub fn forget(&mut self, id: ConnId) {
        self.open.remove(&id);
        self.looks.remove(id);
    }

    /// Keeps only what `open` says has a slot.
    pub fn retain(&mut self, open: impl Fn(ConnId) -> bool) {
        self.open.retain(|id, _| open(*id));
        self.looks.retain(open);
    }

    /// A response went on after its connection had been parked: the lane's guesses become wider.
    ///
    /// Once for all connections that were parked before they became so: the first overrun already is the lesson of the
    /// others.
    pub fn overrun(&mut self, now: Ns, lane: LaneId, configured: Duration) {
        let learnt = self.widened(now, lane, configured);
        match self.guesses.get_mut(&lane) {
            Some(guess) if now.since(guess.last_overrun) < learnt => {}
            Some(guess) => {
                guess.doublings += 1;
                guess.last_overrun = now;
            }
            None => {
                let first = Guess {
                    doublings: 1,
                    last_overrun: now,
                };
                self.guesses.insert(lane, first);
            }
        }
    }

    /// An answer began in `lane`, so long after something that might have been it; zero: there was no such thing.
    pub fn answered(&mut self, now: Ns, lane: LaneId, doubtful: Duration) {
        if doubtful >= WORTH_PATIENCE {
            self.warned.insert(lane, now);
        }
    }

    /// `lane` is no more; another may have its number.
    pub fn forget_lane(&mut self, lane: LaneId) {
        self.warned.remove(&lane);
        self.guesses.remove(&lane);
    }

    fn unsure(&self, now: Ns, lane: LaneId) -> Duration {
        match self.warned.get(&lane) {
            Some(at) if now.since(*at) < WARNED_FOR => UNSURE_BUT_WARNED,
            _ => UNSURE,
        }
    }

    /// Parks what is idle; `idle_release` is the lane's setting.
    pub fn tick(
        &mut self,
        now: Ns,
        tables: &Tables,
        idle_release: impl Fn(LaneId) -> Option<Duration>,
    ) -> Vec<ParkedNow> {
        let mut parked = Vec::new();
        for id in self.looks.take_due(now) {
            let open = self.open.get_mut(&id);
            let view = tables.view(id).filter(|view| view.gate() == Gate::Open);
            let (Some(open), Some(view)) = (open, view) else {
                self.open.remove(&id);
                continue;
            };
            let lane = open.lane;
            self.begun |= open.has_begun(&view);
            let Some(configured) = idle_release(lane) else {
                self.open.remove(&id);
                continue;
            };
            let idle_release = self.widened(now, lane, configured);
            let unsure = self.unsure(now, lane);
            let until = match Facts::of(&view).judge(now, idle_release, unsure) {
                Verdict::Park { guess } if tables.park(&view, guess) => {
                    self.open.remove(&id);
                    parked.push(ParkedNow { id, lane });
                    continue;
                }
                // It moved at this very moment.
                Verdict::Park { .. } => Some(now + AFTER_HINT),
                Verdict::Keep { until } => until,
            };
            // What happens next on the connection happens in the kernel, which tells only of some of it.
            let at_last = now + idle_release;
            self.looks
                .set(id, until.map_or(at_last, |until| until.min(at_last)));
        }
        parked
    }

    pub fn next_deadline(&self) -> Option<Ns> {
        self.looks.next()
    }

    fn widened(&mut self, now: Ns, lane: LaneId, configured: Duration) -> Duration {
        let Some(guess) = self.guesses.get_mut(&lane) else {
            return configured;
        };
        if now.since(guess.last_overrun) >= GUESS_MEMORY {
            guess.doublings = guess.doublings.saturating_sub(1);
            guess.last_overrun = now;
        }
        let widened = configured.saturating_mul(1 << guess.doublings.min(16));
        // A setting above the bound stands.
        widened.min(GUESS_MAX.max(configured))
    }
}

#[cfg(test)]
mod tests {
    use shaper_common::GateWord;

    use super::*;

    const IDLE: Duration = Duration::from_secs(2);
    const SECOND: u64 = 1_000_000_000;

    fn answered() -> Facts {
        Facts {
            busy: false,
            dialled: true,
            established: true,
            complete: false,
            sent_long: true,
            began: Ns(SECOND),
            tx: Ns(2 * SECOND),
            rx: Ns(5 * SECOND),
            end_hint: Ns(0),
            unsure: Ns(0),
            on_its_way: false,
        }
    }

    /// A8: a kept-alive connection gives its slot back when it has been silent after a response.
    #[test]
    fn silence_after_a_response_parks_on_a_guess() {
        assert_eq!(
            answered().judge(Ns(7 * SECOND), IDLE, UNSURE),
            Verdict::Park { guess: true }
        );
        let early = answered().judge(Ns(7 * SECOND - 1), IDLE, UNSURE);
        assert_eq!(
            early,
            Verdict::Keep {
                until: Some(Ns(7 * SECOND))
            }
        );
    }

    /// A7: an unanswered request keeps its slot however long the gateway thinks.
    #[test]
    fn an_unanswered_request_is_never_parked() {
        let facts = Facts {
            busy: true,
            ..answered()
        };
        assert_eq!(
            facts.judge(Ns(3600 * SECOND), IDLE, UNSURE),
            Verdict::Keep { until: None }
        );
    }

    #[test]
    fn what_may_have_been_the_answer_is_taken_for_it_after_a_while() {
        let facts = Facts {
            busy: true,
            unsure: Ns(5 * SECOND),
            ..answered()
        };
        let at = Ns(5 * SECOND) + UNSURE;
        assert_eq!(
            facts.judge(Ns(6 * SECOND), IDLE, UNSURE),
            Verdict::Keep { until: Some(at) }
        );
        assert_eq!(facts.judge(at, IDLE, UNSURE), Verdict::Park { guess: true });
    }

    /// A7: where gateways are known to send something before their answers, a thinking one keeps its slot for longer.
    #[test]
    fn a_lane_is_warned_by_an_answer_behind_what_looked_like_one() {
        let lane = LaneId(3);
        let mut parking = Parking::default();
        assert_eq!(parking.unsure(Ns(SECOND), lane), UNSURE);
        parking.answered(Ns(SECOND), lane, Duration::from_millis(1));
        assert_eq!(parking.unsure(Ns(SECOND), lane), UNSURE, "head and body");
        parking.answered(Ns(SECOND), lane, WORTH_PATIENCE);
        let late = Ns(SECOND) + WARNED_FOR;
        assert_eq!(parking.unsure(Ns(2 * SECOND), lane), UNSURE_BUT_WARNED);
        assert_eq!(parking.unsure(Ns(2 * SECOND), LaneId(4)), UNSURE);
        assert_eq!(parking.unsure(late, lane), UNSURE);
        parking.forget_lane(lane);
        assert_eq!(parking.unsure(Ns(2 * SECOND), lane), UNSURE);
        let facts = Facts {
            busy: true,
            unsure: Ns(5 * SECOND),
            ..answered()
        };
        let at = Ns(5 * SECOND) + UNSURE;
        assert_eq!(
            facts.judge(at, IDLE, UNSURE_BUT_WARNED),
            Verdict::Keep {
                until: Some(Ns(5 * SECOND) + UNSURE_BUT_WARNED)
            }
        );
    }

    /// B10: a response that ends by its own length gives the slot back at once, for sure.
    #[test]
    fn a_complete_response_parks_for_sure() {
        let facts = Facts {
            complete: true,
            ..answered()
        };
        assert_eq!(
            facts.judge(Ns(5 * SECOND), IDLE, UNSURE),
            Verdict::Park { guess: false }
        );
    }

    #[test]
    fn the_end_of_a_chunked_stream_parks_after_20_ms_of_silence() {
        let facts = Facts {
            end_hint: Ns(5 * SECOND),
            ..answered()
        };
        let at = Ns(5 * SECOND) + AFTER_HINT;
        assert_eq!(facts.judge(at, IDLE, UNSURE), Verdict::Park { guess: true });
        assert_eq!(
            facts.judge(Ns(5 * SECOND), IDLE, UNSURE),
            Verdict::Keep { until: Some(at) }
        );
        // More came after it: no end.
        let facts = Facts {
            rx: Ns(5 * SECOND + 1),
            ..facts
        };
        assert_eq!(
            facts.judge(at, IDLE, UNSURE),
            Verdict::Keep {
                until: Some(Ns(7 * SECOND + 1))
            }
        );
    }

    /// A8: a connection opened ahead of need costs nothing after a second, answered or not.
    #[test]
    fn a_connection_that_sent_nothing_long_is_parked_for_sure() {
        for busy in [false, true] {
            let facts = Facts {
                sent_long: false,
                busy,
                ..answered()
            };
            assert_eq!(
                facts.judge(Ns(6 * SECOND), IDLE, UNSURE),
                Verdict::Park { guess: false }
            );
        }
        let silent = Facts {
            sent_long: false,
            tx: Ns(0),
            rx: Ns(0),
            ..answered()
        };
        assert_eq!(
            silent.judge(Ns(2 * SECOND), IDLE, UNSURE),
            Verdict::Park { guess: false }
        );
        let connecting = Facts {
            established: false,
            ..silent
        };
        assert_eq!(
            connecting.judge(Ns(100 * SECOND), IDLE, UNSURE),
            Verdict::Keep { until: None }
        );
    }

    /// E4: a connect that failed before TCP began strands no slot, even if its socket is kept.
    #[test]
    fn a_connect_that_never_began_gives_its_slot_back() {
        let failed = Facts {
            dialled: false,
            established: false,
            sent_long: false,
            rx: Ns(0),
            tx: Ns(0),
            ..answered()
        };
        assert_eq!(
            failed.judge(Ns(2 * SECOND), IDLE, UNSURE),
            Verdict::Park { guess: false }
        );
    }

    /// A7: a request that has just been admitted is not mistaken for the silence before it.
    #[test]
    fn a_fresh_admission_is_not_parked_for_its_past() {
        let admitted = Ns(100 * SECOND);
        for facts in [
            Facts {
                began: admitted,
                ..answered()
            },
            Facts {
                began: admitted,
                end_hint: Ns(5 * SECOND),
                ..answered()
            },
            Facts {
                began: admitted,
                complete: true,
                ..answered()
            },
        ] {
            let verdict = facts.judge(admitted, IDLE, UNSURE);
            assert_eq!(
                verdict,
                Verdict::Keep {
                    until: Some(admitted + IDLE)
                },
                "{facts:?}"
            );
        }
    }

    /// A10: an admitted request keeps its slot until TCP sends it, even if that takes TCP's longest timer.
    #[test]
    fn a_request_that_has_not_left_yet_is_not_parked() {
        for sent_long in [false, true] {
            let facts = Facts {
                on_its_way: true,
                sent_long,
                ..answered()
            };
            let verdict = facts.judge(Ns(100 * SECOND), IDLE, UNSURE);
            let until = Some(Ns(101 * SECOND));
            assert_eq!(verdict, Verdict::Keep { until });
            assert!(matches!(
                facts.judge(Ns(200 * SECOND), IDLE, UNSURE),
                Verdict::Park { .. }
            ));
        }
    }

    /// A18: requests begin without a word, also one after the other between two looks.
    #[test]
    fn a_request_that_has_begun_is_noticed_once() {
        let mut view = ConnView {
            id: ConnId {
                index: 0,
                generation: 1,
            },
            word: GateWord::new(1, Gate::Open),
            // SAFETY: all fields are integers.
            record: unsafe { std::mem::zeroed() },
        };
        let mut open = Open {
            lane: LaneId(3),
            unanswered: Ns(0),
        };
        assert!(!open.has_begun(&view));
        for began in [SECOND, 2 * SECOND] {
            view.word = view.word.with_busy(true);
            view.record.request_ns = began;
            assert!(open.has_begun(&view));
            assert!(!open.has_begun(&view));
        }
        view.word = view.word.with_busy(false);
        assert!(!open.has_begun(&view));
    }

    #[test]
    fn overruns_widen_a_lanes_guess_and_time_narrows_it() {
        let lane = LaneId(3);
        let mut parking = Parking::default();
        let mut now = Ns(SECOND);
        assert_eq!(parking.widened(now, lane, IDLE), IDLE);
        parking.overrun(now, lane, IDLE);
        now = now + 2 * IDLE;
        parking.overrun(now, lane, IDLE);
        assert_eq!(parking.widened(now, lane, IDLE), 4 * IDLE);
        assert_eq!(parking.widened(now, LaneId(4), IDLE), IDLE);
        for _ in 0..40 {
            now = now + GUESS_MAX;
            parking.overrun(now, lane, IDLE);
        }
        assert_eq!(parking.widened(now, lane, IDLE), GUESS_MAX);
        assert_eq!(parking.widened(now, lane, 2 * GUESS_MAX), 2 * GUESS_MAX);
        let mut parking = Parking::default();
        parking.overrun(Ns(0), lane, IDLE);
        assert_eq!(parking.widened(Ns(0) + GUESS_MEMORY, lane, IDLE), IDLE);
    }

    /// Twenty streams that pause together are one lesson, not twenty.
    #[test]
    fn streams_that_pause_together_widen_the_guess_once() {
        let lane = LaneId(3);
        let mut parking = Parking::default();
        for ms in 0..20 {
            let now = Ns(SECOND) + Duration::from_millis(ms);
            parking.overrun(now, lane, IDLE);
        }
        assert_eq!(parking.widened(Ns(2 * SECOND), lane, IDLE), 2 * IDLE);
    }
}
