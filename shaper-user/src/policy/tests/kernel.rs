//! A model of the kernel's side of one lane: its word, its gates, and the news of them, which waits until it is fetched.

use std::collections::{BTreeMap, VecDeque};

use shaper_common::{CLASS_COUNT, Class, SlotWord};

use super::super::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gate {
    Held(Stage),
    Open,
    Parked,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Conn {
    pub(super) gate: Gate,
    pub(super) class: Class,
    pub(super) account: Option<AccountId>,
    pub(super) client: ClientId,
    /// When it began to wait, if it ever did.
    pub(super) since: Ns,
    /// When it got its last slot.
    pub(super) opened: Ns,
}

/// Somebody who connects.
#[derive(Clone, Copy, Debug)]
pub(super) struct Who {
    pub(super) class: Class,
    pub(super) account: Option<AccountId>,
    pub(super) client: ClientId,
}

#[derive(Debug)]
pub(super) struct Kernel {
    pub(super) word: SlotWord,
    pub(super) rules: LaneRules,
    pub(super) barrier: Option<Class>,
    pub(super) conns: BTreeMap<ConnHandle, Conn>,
    pub(super) news: VecDeque<Event>,
    /// When each request started.
    pub(super) starts: Vec<Ns>,
    /// Requests that were made on each connection, refused ones left out.
    pub(super) requests: BTreeMap<ConnHandle, u32>,
    next: u64,
}

impl Kernel {
    pub(super) fn new(rules: LaneRules) -> Self {
        Self {
            word: SlotWord::idle(rules.max_inflight),
            rules,
            barrier: None,
            conns: BTreeMap::new(),
            news: VecDeque::new(),
            starts: Vec::new(),
            requests: BTreeMap::new(),
            next: 1,
        }
    }

    /// A connect: `None` if it is refused.
    pub(super) fn connect(&mut self, now: Ns, who: Who) -> Option<ConnHandle> {
        let opens = self.may_open(who);
        if !opens && self.queued() >= self.rules.max_queue {
            self.news.push_back(Event::Refused { class: who.class });
            return None;
        }
        let conn = ConnHandle(self.next);
        self.next += 1;
        let Who {
            class,
            account,
            client,
        } = who;
        self.conns.insert(
            conn,
            Conn {
                gate: Gate::Parked,
                class,
                account,
                client,
                since: now,
                opened: now,
            },
        );
        self.request(now, conn, opens, Stage::Connect);
        Some(conn)
    }

    /// A request on a parked connection.
    pub(super) fn wake(&mut self, now: Ns, conn: ConnHandle) {
        let Conn {
            class,
            account,
            client,
            ..
        } = self.conns[&conn];
        let opens = self.may_open(Who {
            class,
            account,
            client,
        });
        self.request(now, conn, opens, Stage::Request);
    }

    fn request(&mut self, now: Ns, conn: ConnHandle, opens: bool, stage: Stage) {
        *self.requests.entry(conn).or_default() += 1;
        let floor = self.floor(self.conns[&conn].class);
        if opens {
            let class = self.conns[&conn].class;
            assert!(
                self.rules.observes() || self.leaves_reserve(class),
                "A4: {class} work took the reserve of {:?}",
                self.word
            );
            self.word = if self.rules.observes() {
                self.word.force()
            } else {
                self.word.spend(floor).expect("looked before")
            };
            self.set_gate(conn, Gate::Open);
            self.conns.get_mut(&conn).expect("exists").opened = now;
            self.starts.push(now);
            let open = self.as_open(conn);
            self.news.push_back(match stage {
                Stage::Connect => Event::Opened(open),
                Stage::Request => Event::Resumed(open),
            });
        } else {
            self.set_gate(conn, Gate::Held(stage));
            self.conns.get_mut(&conn).expect("exists").since = now;
            self.news.push_back(Event::Held(self.as_held(conn, stage)));
        }
        self.check();
    }

    pub(super) fn may_open(&self, who: Who) -> bool {
        if self.rules.observes() {
            return true;
        }
        let behind_somebody = self
            .conns
            .values()
            .any(|other| matches!(other.gate, Gate::Held(_)) && other.class <= who.class);
        !behind_somebody
            && self.barrier.is_none_or(|barrier| who.class < barrier)
            && self.below_caps(who.class, who.account)
            && self.word.spend(self.floor(who.class)).is_some()
    }

    /// The slot comes back; the connection stays.
    pub(super) fn park(&mut self, conn: ConnHandle) {
        self.set_gate(conn, Gate::Parked);
        self.release(conn);
    }

    fn release(&mut self, conn: ConnHandle) {
        let before = self.word;
        self.word = before.release(self.queued() == 0);
        self.news.push_back(Event::Released {
            conn,
            refunded: self.word.credits() > before.credits(),
        });
        self.check();
    }

    /// The response on a parked connection goes on.
    pub(super) fn overrun(&mut self, conn: ConnHandle) {
        self.word = self.word.force();
        self.set_gate(conn, Gate::Open);
        self.news.push_back(Event::Overrun(self.as_open(conn)));
        self.check();
    }

    /// The socket disappears.
    pub(super) fn close(&mut self, conn: ConnHandle) {
        match self.conns.remove(&conn).expect("exists").gate {
            Gate::Open => self.release(conn),
            Gate::Held(_) => self.news.push_back(Event::Gone { conn }),
            Gate::Parked => {}
        }
    }

    /// Carries out an action and returns what the policy must hear of it.
    pub(super) fn carry_out(&mut self, now: Ns, action: &Action) -> Option<Event> {
        let answer = match *action {
            Action::Admit {
                conn, class, floor, ..
            } => {
                assert_eq!(self.conns.get(&conn).map_or(class, |c| c.class), class);
                self.admit(now, conn, floor)
                    .err()
                    .map(|why| Event::AdmitFailed { conn, why })
            }
            Action::PassConnect { conn, .. } => {
                if let Some(Gate::Held(_)) = self.gate(conn) {
                    self.set_gate(conn, Gate::Held(Stage::Request));
                }
                None
            }
            Action::Expire(Expiry { conn, .. }) => {
                if let Some(Gate::Held(_)) = self.gate(conn) {
                    self.close(conn);
                }
                None
            }
            Action::LetGo { conn, .. } => {
                self.conns.remove(&conn);
                None
            }
            Action::SetLimits { limits, .. } => {
                self.set_budget(limits);
                None
            }
            Action::SetCredits {
                credits, refunds, ..
            } => {
                self.word = self.word.with_credits(credits).with_refunds(refunds);
                Some(Event::Credits {
                    outstanding: self.word.credits(),
                })
            }
            Action::SetBarrier { barrier, .. } => {
                self.barrier = barrier;
                None
            }
        };
        self.check();
        answer
    }

    fn admit(&mut self, now: Ns, conn: ConnHandle, floor: u32) -> Result<(), AdmitFailure> {
        let Some(Gate::Held(_)) = self.gate(conn) else {
            return Err(AdmitFailure::Gone);
        };
        let Conn { class, account, .. } = self.conns[&conn];
        if self.rules.observes() {
            self.word = self.word.force();
        } else {
            if !self.below_caps(class, account) || !self.leaves_reserve(class) {
                return Err(AdmitFailure::NoRoom);
            }
            self.word = self.word.admit(floor).ok_or(AdmitFailure::NoRoom)?;
        }
        self.set_gate(conn, Gate::Open);
        self.conns.get_mut(&conn).expect("exists").opened = now;
        self.starts.push(now);
        Ok(())
    }

    /// Whether one more of this class leaves interactive work its reserve.
    fn leaves_reserve(&self, class: Class) -> bool {
        let others = self.slots_of(Class::Default) + self.slots_of(Class::Bulk);
        class == Class::Interactive || others + self.floor(class) < self.word.budget()
    }

    /// The controller wrote new limits.
    fn set_budget(&mut self, limits: Limits) {
        self.word = self.word.with_budget(limits.effective);
        self.check();
    }

    pub(super) fn picture(&self) -> Picture {
        let mut picture = Picture {
            credits: self.word.credits(),
            ..Picture::default()
        };
        for (&conn, state) in &self.conns {
            match state.gate {
                Gate::Open => picture.open.push(self.as_open(conn)),
                Gate::Held(stage) => picture.held.push(self.as_held(conn, stage)),
                Gate::Parked => {}
            }
        }
        picture
    }

    pub(super) fn gate(&self, conn: ConnHandle) -> Option<Gate> {
        self.conns.get(&conn).map(|state| state.gate)
    }

    pub(super) fn slots_of(&self, class: Class) -> u32 {
        self.count(|conn| conn.gate == Gate::Open && conn.class == class)
    }

    pub(super) fn below_caps(&self, class: Class, account: Option<AccountId>) -> bool {
        let of_class = self.slots_of(class);
        let of_account = self.count(|conn| conn.gate == Gate::Open && conn.account == account);
        self.rules.class_cap[class.index()].is_none_or(|cap| of_class < cap)
            && (account.is_none() || self.rules.account_cap.is_none_or(|cap| of_account < cap))
    }

    pub(super) fn floor(&self, class: Class) -> u32 {
        match class {
            Class::Interactive => 0,
            Class::Default | Class::Bulk => self.rules.reserve_within(self.word.budget()),
        }
    }

    pub(super) fn queued(&self) -> u32 {
        self.count(|conn| matches!(conn.gate, Gate::Held(_)))
    }

    fn count(&self, which: impl Fn(&Conn) -> bool) -> u32 {
        self.conns.values().filter(|conn| which(conn)).count() as u32
    }

    fn set_gate(&mut self, conn: ConnHandle, gate: Gate) {
        self.conns.get_mut(&conn).expect("exists").gate = gate;
    }

    fn as_open(&self, conn: ConnHandle) -> OpenConn {
        let state = &self.conns[&conn];
        OpenConn {
            conn,
            class: state.class,
            account: state.account,
            client: state.client,
            since: state.opened,
        }
    }

    fn as_held(&self, conn: ConnHandle, stage: Stage) -> HeldConn {
        let state = &self.conns[&conn];
        HeldConn {
            conn,
            class: state.class,
            account: state.account,
            client: state.client,
            stage,
            since: state.since,
        }
    }

    /// D2: credits and slots stay within the budget, and the word says what the gates say.
    fn check(&self) {
        let word = self.word;
        assert!(
            word.slots() + word.credits() <= word.budget() || word.credits() == 0,
            "{word:?}"
        );
        let open = self.count(|conn| conn.gate == Gate::Open);
        assert_eq!(word.slots(), open, "{word:?}");
    }

    /// In flight by class.
    pub(super) fn in_flight(&self) -> [u32; CLASS_COUNT] {
        Class::ALL.map(|class| self.slots_of(class))
    }
}
