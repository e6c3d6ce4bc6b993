//! Random schedules of arrivals, ends, cancels, late requests and lost engines over shards that talk by mail, as they
//! do in the data plane: whatever happens, and in whatever order mail is read.

use crate::admission::{Bounds, Credits, Desk, Gate, Ticket, Verdict};
use proptest::prelude::*;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

const BANDS: usize = 4;
const BOUNDS: Bounds = Bounds { per_band: 6, total: 10 };
const TTL: u64 = 40;

#[derive(Debug, Clone)]
enum Step {
    Arrive {
        shard: usize,
        band: usize,
        tenant: usize,
    },
    /// The client of one that waits or runs goes.
    Gone {
        which: usize,
    },
    /// One that runs ends.
    End {
        which: usize,
    },
    Time {
        by: u64,
    },
    /// An engine is lost or comes back: the limits of a pool change.
    Limits {
        pool: usize,
        top: u32,
    },
    /// The owner, or a shard, reads its mail.
    Owner {
        shard: usize,
    },
    Shard {
        shard: usize,
    },
}

fn step(shards: usize) -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..shards, 0..BANDS, 0..3usize)
            .prop_map(|(shard, band, tenant)| Step::Arrive { shard, band, tenant }),
        2 => any::<usize>().prop_map(|which| Step::Gone { which }),
        4 => any::<usize>().prop_map(|which| Step::End { which }),
        2 => (1..30u64).prop_map(|by| Step::Time { by }),
        1 => (0..2usize, 0..6u32).prop_map(|(pool, top)| Step::Limits { pool, top }),
        5 => (0..shards).prop_map(|shard| Step::Owner { shard }),
        5 => (0..shards).prop_map(|shard| Step::Shard { shard }),
    ]
}

/// Where a request is, as its own shard knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    Parked,
    Running { pool: usize },
    Ended,
    Refused,
    Gone,
}

enum ToOwner {
    Park { id: usize, band: usize, tenant: Arc<str>, since: u64 },
    Cancel { id: usize },
    Look,
}

#[derive(Clone, Copy)]
enum ToShard {
    Granted { id: usize, pool: usize },
    Refused { id: usize },
}

struct World {
    now: u64,
    pools: Vec<Arc<Credits>>,
    gate: Arc<Gate>,
    desk: Desk<usize>,
    tickets: HashMap<usize, Ticket>,
    to_owner: Vec<VecDeque<ToOwner>>,
    to_shard: Vec<VecDeque<ToShard>>,
    /// By id: shard and state.
    requests: Vec<(usize, At)>,
}

impl World {
    fn new(shards: usize) -> World {
        let gate = Arc::<Gate>::default();
        let world = World {
            now: 0,
            pools: vec![Arc::default(), Arc::default()],
            desk: Desk::new(BANDS, BOUNDS, Arc::clone(&gate)),
            gate,
            tickets: HashMap::new(),
            to_owner: (0..shards).map(|_| VecDeque::new()).collect(),
            to_shard: (0..shards).map(|_| VecDeque::new()).collect(),
            requests: Vec::new(),
        };
        world.limit(0, 4);
        world.limit(1, 2);
        world
    }

    /// Lower bands get less.
    fn limit(&self, pool: usize, top: u32) {
        let limits = [top, top * 3 / 4, top / 2, top / 4];
        self.pools[pool].set(&limits, 0.0, top);
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Arrive { shard, band, tenant } => self.arrive(shard, band, tenant),
            Step::Gone { which } => {
                if let Some(id) = self.pick(which, |at| matches!(at, At::Parked | At::Running { .. })) {
                    self.gone(id);
                }
            }
            Step::End { which } => {
                if let Some(id) = self.pick(which, |at| matches!(at, At::Running { .. })) {
                    self.end(id, At::Ended);
                }
            }
            Step::Time { by } => self.now += by,
            Step::Limits { pool, top } => {
                self.limit(pool, top);
                self.to_owner[0].push_back(ToOwner::Look);
            }
            Step::Owner { shard } => {
                if let Some(mail) = self.to_owner[shard].pop_front() {
                    self.owner(mail);
                }
            }
            Step::Shard { shard } => {
                if let Some(mail) = self.to_shard[shard].pop_front() {
                    self.shard(mail);
                }
            }
        }
        let queue = self.desk.queue();
        assert!(queue.len() <= BOUNDS.total, "all of the queue");
        assert!((0..BANDS).all(|band| queue.waiting(band) <= BOUNDS.per_band), "a band of the queue");
        assert_eq!((0..BANDS).map(|band| queue.waiting(band)).sum::<usize>(), queue.len());
        assert!((0..BANDS).all(|band| queue.waiting(band) == self.gate.waiting(band) as usize));
    }

    fn pick(&self, which: usize, fits: impl Fn(At) -> bool) -> Option<usize> {
        let fitting: Vec<usize> = (0..self.requests.len()).filter(|id| fits(self.requests[*id].1)).collect();
        (!fitting.is_empty()).then(|| fitting[which % fitting.len()])
    }

    fn arrive(&mut self, shard: usize, band: usize, tenant: usize) {
        let id = self.requests.len();
        let free = |pool: &Arc<Credits>| pool.try_take(band);
        let pool = if self.gate.must_wait(band) { None } else { self.pools.iter().position(free) };
        if let Some(pool) = pool {
            self.requests.push((shard, At::Running { pool }));
        } else {
            self.requests.push((shard, At::Parked));
            let (tenant, since) = (format!("t{tenant}").into(), self.now);
            self.to_owner[shard].push_back(ToOwner::Park { id, band, tenant, since });
        }
    }

    fn gone(&mut self, id: usize) {
        let (shard, at) = self.requests[id];
        if at == At::Parked {
            self.requests[id].1 = At::Gone;
            self.to_owner[shard].push_back(ToOwner::Cancel { id });
        } else {
            self.end(id, At::Gone);
        }
    }

    fn end(&mut self, id: usize, as_what: At) {
        let (shard, At::Running { pool }) = self.requests[id] else { panic!("{id} does not run") };
        self.requests[id].1 = as_what;
        self.release(shard, pool);
    }

    fn release(&mut self, shard: usize, pool: usize) {
        self.pools[pool].release();
        if self.gate.anyone_waits() && self.gate.tell() {
            self.to_owner[shard].push_back(ToOwner::Look);
        }
    }

    fn owner(&mut self, mail: ToOwner) {
        let mut verdicts = Vec::new();
        match mail {
            ToOwner::Park { id, band, tenant, since } => {
                match self.desk.arrive(band, &tenant, (since, since + TTL), id, &mut verdicts) {
                    Ok(ticket) => drop(self.tickets.insert(id, ticket)),
                    Err((id, _)) => self.refuse(id),
                }
            }
            ToOwner::Cancel { id } => {
                if let Some(ticket) = self.tickets.remove(&id) {
                    self.desk.cancel(ticket);
                }
            }
            ToOwner::Look => {}
        }
        self.desk.serve(&self.pools, self.now, &mut verdicts);
        self.check_order(&verdicts);
        for verdict in verdicts {
            match verdict {
                Verdict::Granted(waiting, pool) => {
                    assert!(waiting.deadline > self.now, "granted too late");
                    self.verdict(waiting.item);
                    let shard = self.requests[waiting.item].0;
                    self.to_shard[shard].push_back(ToShard::Granted { id: waiting.item, pool });
                }
                Verdict::Expired(waiting) => {
                    assert!(waiting.deadline <= self.now, "expired too early");
                    self.refuse(waiting.item);
                }
                Verdict::Displaced(waiting, _) => self.refuse(waiting.item),
            }
        }
    }

    /// The ticket is used up: a second verdict would not find it.
    fn verdict(&mut self, id: usize) {
        assert!(self.tickets.remove(&id).is_some(), "{id} has two verdicts");
    }

    fn refuse(&mut self, id: usize) {
        self.tickets.remove(&id);
        let shard = self.requests[id].0;
        self.to_shard[shard].push_back(ToShard::Refused { id });
    }

    /// Grants go from the highest band down, and nobody is left waiting who could go.
    fn check_order(&self, verdicts: &[Verdict<usize>]) {
        let granted = verdicts.iter().filter_map(|verdict| match verdict {
            Verdict::Granted(waiting, _) => Some(waiting.band),
            _ => None,
        });
        assert!(granted.is_sorted(), "a lower band went before a higher one");
        for band in (0..BANDS).filter(|band| self.desk.queue().waiting(*band) > 0) {
            let free = self.pools.iter().any(|pool| pool.admitted() < pool.limit(band));
            assert!(!free, "band {band} waits beside a credit");
        }
    }

    fn shard(&mut self, mail: ToShard) {
        match mail {
            ToShard::Granted { id, pool } => match self.requests[id] {
                (_, At::Parked) => self.requests[id].1 = At::Running { pool },
                // Its client went while the grant was on its way.
                (shard, At::Gone) => self.release(shard, pool),
                (_, at) => panic!("{id} is granted and {at:?}"),
            },
            ToShard::Refused { id } => match self.requests[id].1 {
                At::Parked => self.requests[id].1 = At::Refused,
                At::Gone => {}
                at => panic!("{id} is refused and {at:?}"),
            },
        }
    }

    fn read_all(&mut self) {
        while self.to_owner.iter().any(|mail| !mail.is_empty()) || self.to_shard.iter().any(|m| !m.is_empty())
        {
            for shard in 0..self.to_owner.len() {
                self.step(&Step::Owner { shard });
                self.step(&Step::Shard { shard });
            }
        }
    }

    /// Everything that runs ends; then everybody has had an answer, and nothing is counted anywhere.
    fn wind_down(&mut self) {
        self.limit(0, 4);
        self.to_owner[0].push_back(ToOwner::Look);
        self.read_all();
        while let Some(id) = self.pick(0, |at| matches!(at, At::Running { .. })) {
            self.end(id, At::Ended);
            self.read_all();
        }
        assert_eq!(self.pick(0, |at| at == At::Parked), None, "somebody is left waiting");
        assert!(self.desk.queue().is_empty() && self.tickets.is_empty() && !self.gate.anyone_waits());
        assert_eq!(self.desk.queue().next_deadline(), None);
        assert!(self.pools.iter().all(|pool| pool.admitted() == 0), "a credit is lost");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_lost_and_nothing_happens_twice(
        (shards, steps) in (1..5usize).prop_flat_map(|shards| {
            (Just(shards), proptest::collection::vec(step(shards), 0..300))
        })
    ) {
        let mut world = World::new(shards);
        for step in &steps {
            world.step(step);
        }
        world.wind_down();
    }
}
