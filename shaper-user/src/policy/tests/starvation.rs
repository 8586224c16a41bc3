//! Nobody waits for ever, whatever others do.

use std::collections::BTreeMap as Map;

use proptest::prelude::*;
use shaper_common::Class;

use super::*;

/// A lane under siege: every slot of `class` that ends is asked for again at once, by a client that is quicker than any
/// news of it.
#[derive(Debug)]
struct Siege {
    world: World,
    class: Class,
    /// Ends of the requests in flight.
    ends: Map<(Ns, ConnHandle), ()>,
    service: Vec<Duration>,
    served: usize,
    bulk: Map<ConnHandle, Ns>,
    worst: Duration,
}

impl Siege {
    fn new(rules: LaneRules, class: Class, besiegers: usize, service: Vec<Duration>) -> Self {
        let mut siege = Self {
            world: World::new(rules),
            class,
            ends: Map::new(),
            service,
            served: 0,
            bulk: Map::new(),
            worst: Duration::ZERO,
        };
        for _ in 0..besiegers {
            siege.world.arrive(class);
        }
        siege.look();
        siege
    }

    fn bulk_arrives(&mut self) {
        let conn = self.world.arrive(Class::Bulk);
        self.bulk.insert(conn, self.world.now);
        self.look();
    }

    /// Notes who has started.
    fn look(&mut self) {
        let open: Vec<_> = self
            .world
            .kernel
            .conns
            .keys()
            .copied()
            .filter(|&conn| self.world.is_open(conn))
            .filter(|conn| !self.ends.keys().any(|(_, known)| known == conn))
            .collect();
        for conn in open {
            let takes = self.service[self.served % self.service.len()];
            self.served += 1;
            self.ends.insert((self.world.now + takes, conn), ());
            if let Some(arrived) = self.bulk.remove(&conn) {
                self.worst = self.worst.max(self.world.now.since(arrived));
            }
        }
    }

    /// The next request ends.
    fn step(&mut self) {
        let ((at, conn), ()) = self.ends.pop_first().expect("a siege has no pauses");
        self.world.pass(at.since(self.world.now));
        let besieger = self.world.kernel.conns[&conn].class == self.class;
        self.world.kernel.close(conn);
        if besieger {
            self.world.connect(self.class, None).expect("not refused");
        }
        self.world.deliver_all();
        self.look();
    }
}

proptest! {
    #![proptest_config(cases(48))]

    /// A6: under an endless flood of more urgent work, far beyond what the limit can serve, a bulk waiter waits two steps of
    /// aging and then for those who came before it, also where a reserve stands between it and the last slots.
    #[test]
    fn bulk_never_starves(
        limit in 1u32..6,
        reserve in 0u32..5,
        class in prop::sample::select(vec![Class::Interactive, Class::Default]),
        besiegers in 1usize..12,
        bulk in 1usize..6,
        service in prop::collection::vec(200u64..2000, 1..8),
    ) {
        let aging = SECOND * 10;
        let rules = LaneRules {
            interactive_reserve: reserve.min(limit - 1),
            aging,
            queue_timeout: [SECOND * 10_000; 3],
            ..rules(limit)
        };
        let longest = Duration::from_millis(*service.iter().max().unwrap());
        let service = service.into_iter().map(Duration::from_millis).collect();
        let mut siege = Siege::new(rules, class, besiegers, service);
        for _ in 0..bulk {
            siege.bulk_arrives();
            siege.step();
        }
        let bound = aging * 2 + longest * (besiegers + bulk + 2) as u32;
        let begin = siege.world.now;
        while !siege.bulk.is_empty() && siege.world.now.since(begin) <= bound {
            siege.step();
        }
        prop_assert!(siege.bulk.is_empty(), "still waiting after {bound:?}: {:?}", siege.world.view());
        prop_assert!(siege.worst <= bound, "{:?} > {bound:?}", siege.worst);
    }
}
