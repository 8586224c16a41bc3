//! A lane's policy and its kernel, joined as the controller joins them.

use shaper_common::Class;

use super::{
    super::*,
    kernel::{Gate, Kernel, Who},
};

pub(super) const LANE: LaneId = LaneId(3);

#[derive(Debug)]
pub(super) struct World {
    pub(super) now: Ns,
    pub(super) policy: Policy,
    pub(super) kernel: Kernel,
    /// All that the policy wanted, in order.
    pub(super) done: Vec<Action>,
    pub(super) ended: Vec<Ended>,
    pub(super) changes: Vec<Change>,
    /// No two connections are of one client, unless told.
    clients: u32,
}

impl World {
    pub(super) fn new(rules: LaneRules) -> Self {
        let mut world = Self {
            now: Ns(1_000_000_000_000),
            policy: Policy::new(),
            kernel: Kernel::new(rules.clone()),
            done: Vec::new(),
            ended: Vec::new(),
            changes: Vec::new(),
            clients: 0,
        };
        world.reload(rules);
        world
    }

    /// Another controller takes over: a policy that knows nothing but what there is to find.
    pub(super) fn restart(&mut self, lasting: Option<Lasting>) {
        self.policy = Policy::new();
        self.kernel.news.clear();
        let found = Found {
            lasting,
            picture: self.kernel.picture(),
        };
        let rules = self.kernel.rules.clone();
        let mut actions = Vec::new();
        self.policy
            .adopt_lane(self.now, LANE, "lane", rules, found, &mut actions);
        self.apply(actions);
    }

    /// The lane gets these rules.
    pub(super) fn reload(&mut self, rules: LaneRules) {
        self.kernel.rules = rules.clone();
        let mut actions = Vec::new();
        self.policy
            .set_lane(self.now, LANE, "lane", rules, &mut actions);
        self.apply(actions);
    }

    /// Tells the policy something.
    pub(super) fn tell(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.policy.on_event(self.now, LANE, event, &mut actions);
        self.apply(actions);
    }

    /// Carries out actions and answers, until there is nothing more to say.
    fn apply(&mut self, actions: Vec<Action>) {
        let mut turns = 0;
        let mut todo = actions;
        while !todo.is_empty() {
            turns += 1;
            assert!(turns < 20, "policy and kernel never agree: {todo:?}");
            let answers: Vec<_> = todo
                .iter()
                .filter_map(|action| self.kernel.carry_out(self.now, action))
                .collect();
            self.done.append(&mut todo);
            for answer in answers {
                self.policy.on_event(self.now, LANE, answer, &mut todo);
            }
        }
        self.ended.extend(self.policy.drain_ended());
        let changed = self.policy.drain_changed();
        self.changes.extend(changed.map(|changed| changed.change));
        self.check_books();
    }

    /// D2 in the policy's own books.
    fn check_books(&self) {
        let view = self.view();
        let slots: u32 = view.in_flight.iter().sum();
        assert!(
            slots + view.credits <= view.limits.effective || view.credits == 0,
            "{view:?}"
        );
    }

    /// Fetches up to this many pieces of news.
    pub(super) fn deliver(&mut self, count: usize) {
        for _ in 0..count {
            let Some(event) = self.kernel.news.pop_front() else {
                break;
            };
            self.tell(event);
        }
    }

    pub(super) fn deliver_all(&mut self) {
        while !self.kernel.news.is_empty() {
            self.deliver(1);
        }
    }

    /// Time passes. The policy is woken whenever it asked for it; news that this causes is fetched only on demand.
    pub(super) fn pass_without_news(&mut self, time: Duration) {
        let until = self.now + time;
        let mut ticks = 0;
        while let Some(deadline) = self.policy.next_deadline().filter(|&at| at <= until) {
            ticks += 1;
            assert!(ticks < 100_000, "woken for nothing at {deadline:?}");
            self.now = self.now.max(deadline);
            let mut actions = Vec::new();
            self.policy.tick(self.now, &mut actions);
            self.apply(actions);
        }
        self.now = until;
    }

    /// Time passes, and all news is fetched at once.
    pub(super) fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        self.deliver_all();
        while let Some(deadline) = self.policy.next_deadline().filter(|&at| at <= until) {
            self.pass_without_news(deadline.since(self.now));
            self.deliver_all();
        }
        self.now = until;
    }

    /// A connect of a new client. The news of it is not fetched.
    pub(super) fn connect(&mut self, class: Class, account: Option<u64>) -> Option<ConnHandle> {
        self.clients += 1;
        self.connect_as(class, account, 1_000_000 + self.clients)
    }

    pub(super) fn connect_as(
        &mut self,
        class: Class,
        account: Option<u64>,
        client: u32,
    ) -> Option<ConnHandle> {
        let who = Who {
            class,
            account: account.map(AccountId),
            client: ClientId(client),
        };
        self.kernel.connect(self.now, who)
    }

    /// A connect of a new client that is not refused, and is dealt with.
    pub(super) fn arrive(&mut self, class: Class) -> ConnHandle {
        self.arrive_of(class, None)
    }

    pub(super) fn arrive_of(&mut self, class: Class, account: Option<u64>) -> ConnHandle {
        let conn = self.connect(class, account).expect("not refused");
        self.deliver_all();
        conn
    }

    /// A socket goes away, and this is dealt with.
    pub(super) fn leave(&mut self, conn: ConnHandle) {
        self.kernel.close(conn);
        self.deliver_all();
    }

    pub(super) fn is_open(&self, conn: ConnHandle) -> bool {
        self.kernel.gate(conn) == Some(Gate::Open)
    }

    pub(super) fn waits(&self, conn: ConnHandle) -> bool {
        matches!(self.kernel.gate(conn), Some(Gate::Held(_)))
    }

    pub(super) fn view(&self) -> LaneView {
        self.policy.view(self.now, LANE).expect("exists")
    }

    /// The waiters in line.
    pub(super) fn line(&self) -> Vec<ConnHandle> {
        self.policy
            .waiters(self.now, LANE)
            .map(|w| w.conn)
            .collect()
    }

    /// Ends the open connections one after the other, until nobody is left; returns the order in which waiters started.
    pub(super) fn run_dry(&mut self) -> Vec<ConnHandle> {
        let before = self.done.len();
        while let Some((&conn, _)) = self
            .kernel
            .conns
            .iter()
            .find(|(_, state)| state.gate == Gate::Open)
        {
            self.leave(conn);
        }
        self.admitted_since(before)
    }

    /// Whom the policy admitted after it had done this many things.
    pub(super) fn admitted_since(&self, done: usize) -> Vec<ConnHandle> {
        self.done[done..]
            .iter()
            .filter_map(|action| match action {
                Action::Admit { conn, .. } => Some(*conn),
                _ => None,
            })
            .collect()
    }

    /// Everybody whom the lane's shadow knows: with a slot, in line, turned away, or seen in a picture only.
    pub(super) fn in_shadow(&self) -> impl Iterator<Item = ConnHandle> {
        let shadow = self.policy.lanes[&LANE].shadow.iter();
        shadow.flat_map(|shadow| {
            let Lane { ledger, queue, .. } = &shadow.lane;
            let without_part = shadow.turned_away.iter().chain(&shadow.unheard).copied();
            ledger.conns().chain(queue.conns()).chain(without_part)
        })
    }

    /// A9, E4: nobody is left anywhere.
    pub(super) fn assert_empty(&self) {
        let view = self.view();
        assert_eq!(view.in_flight, [0; 3]);
        assert_eq!(view.queued, [0; 3]);
        assert_eq!(view.tickets, 0);
        assert_eq!(view.accounts, []);
        assert_eq!(view.oldest_wait, None);
        assert_eq!(self.kernel.word.slots(), 0);
        assert_eq!(self.kernel.queued(), 0);
        let lane = &self.policy.lanes[&LANE];
        assert_eq!(lane.leaving.len(), 0);
        assert_eq!(lane.queue.accounts().count(), 0);
        assert_eq!(lane.queue.first_connecting(), None);
        if let Some(shadow) = &lane.shadow {
            assert_eq!(self.in_shadow().count(), 0, "{shadow:?}");
            assert_eq!(shadow.lane.tickets.len() + shadow.lane.leaving.len(), 0);
        }
    }
}
