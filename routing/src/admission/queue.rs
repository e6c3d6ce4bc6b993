//! What waits for a model: bands, and in each band tenants that take turns.
//!
//! **Invariants:** a tenant's requests keep their order; tenants of a band are served in turn, whatever each has
//! waiting. No band grows past its bound, nor all together past theirs: at a band's bound, whoever has most there
//! loses the newest for a tenant that has less; at the total, the lowest band loses its newest for a higher one.

use crate::Nanos;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

/// How much may wait for one model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Requests of one band.
    pub per_band: usize,
    /// Requests of all bands.
    pub total: usize,
}

/// Which bound was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    /// That of its band.
    Band,
    /// That of all bands.
    Total,
}

/// Names what waits; later ones are larger. Never used twice by one queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

/// A request that waits, or has just stopped to.
#[derive(Debug, PartialEq, Eq)]
pub struct Waiting<T> {
    /// Its name here.
    pub ticket: Ticket,
    /// Its band's place; 0 is the highest.
    pub band: usize,
    /// Whose it is.
    pub tenant: Arc<str>,
    /// Since when.
    pub since: Nanos,
    /// Until when at most.
    pub deadline: Nanos,
    /// What the caller knows it by.
    pub item: T,
}

/// A request that was put in line.
#[derive(Debug)]
pub struct Placed<T> {
    /// Its name here.
    pub ticket: Ticket,
    /// Who had to go for it, and by which bound.
    pub displaced: Option<(Waiting<T>, Bound)>,
}

/// Requests of one band.
#[derive(Debug)]
struct Line<T> {
    /// By tenant, in order of arrival. No tenant has none.
    tenants: HashMap<Arc<str>, BTreeMap<Ticket, Waiting<T>>>,
    /// Each of the tenants once, the next to be served first.
    turns: VecDeque<Arc<str>>,
    /// Tenants by how many they have.
    sizes: BTreeSet<(usize, Arc<str>)>,
    /// All of them.
    tickets: BTreeMap<Ticket, Arc<str>>,
}

impl<T> Default for Line<T> {
    fn default() -> Self {
        Line {
            tenants: HashMap::new(),
            turns: VecDeque::new(),
            sizes: BTreeSet::new(),
            tickets: BTreeMap::new(),
        }
    }
}

impl<T> Line<T> {
    fn len(&self) -> usize {
        self.tickets.len()
    }

    fn count(&self, tenant: &str) -> usize {
        self.tenants.get(tenant).map_or(0, BTreeMap::len)
    }

    fn resize(&mut self, tenant: &Arc<str>, from: usize, to: usize) {
        if from > 0 {
            self.sizes.remove(&(from, Arc::clone(tenant)));
        }
        if to > 0 {
            self.sizes.insert((to, Arc::clone(tenant)));
        }
    }

    fn put(&mut self, waiting: Waiting<T>) {
        let tenant = Arc::clone(&waiting.tenant);
        let count = self.count(&tenant);
        self.resize(&tenant, count, count + 1);
        if count == 0 {
            self.turns.push_back(Arc::clone(&tenant));
        }
        self.tickets.insert(waiting.ticket, Arc::clone(&tenant));
        self.tenants.entry(tenant).or_default().insert(waiting.ticket, waiting);
    }

    fn take(&mut self, ticket: Ticket) -> Option<Waiting<T>> {
        let tenant = self.tickets.remove(&ticket)?;
        let count = self.count(&tenant);
        let waiting = self.tenants.get_mut(&tenant)?.remove(&ticket);
        self.resize(&tenant, count, count - 1);
        if count == 1 {
            self.tenants.remove(&tenant);
            self.turns.retain(|other| *other != tenant);
        }
        waiting
    }

    /// The oldest of the tenant whose turn it is.
    fn next(&mut self) -> Option<Waiting<T>> {
        let tenant = self.turns.front().cloned()?;
        let ticket = *self.tenants.get(&tenant)?.first_key_value()?.0;
        // It goes to the end before its request is taken, so that it is still found if that was its last.
        self.turns.rotate_left(1);
        self.take(ticket)
    }

    fn newest_of_longest(&self) -> Option<(usize, Ticket)> {
        let (count, tenant) = self.sizes.last()?;
        Some((*count, *self.tenants.get(tenant)?.last_key_value()?.0))
    }
}

/// What waits for one model.
#[derive(Debug)]
pub struct Queue<T> {
    lines: Vec<Line<T>>,
    bands: HashMap<Ticket, usize>,
    deadlines: BTreeSet<(Nanos, Ticket)>,
    bounds: Bounds,
    next: u64,
}

impl<T> Queue<T> {
    /// Nothing waits, in any of `bands` bands.
    pub fn new(bands: usize, bounds: Bounds) -> Self {
        Queue {
            lines: (0..bands).map(|_| Line::default()).collect(),
            bands: HashMap::new(),
            deadlines: BTreeSet::new(),
            bounds,
            next: 0,
        }
    }

    /// Bands, empty ones included.
    pub fn bands(&self) -> usize {
        self.lines.len()
    }

    /// Requests waiting.
    pub fn len(&self) -> usize {
        self.bands.len()
    }

    /// Nothing waits.
    pub fn is_empty(&self) -> bool {
        self.bands.is_empty()
    }

    /// Requests waiting in `band`.
    pub fn waiting(&self, band: usize) -> usize {
        self.lines.get(band).map_or(0, Line::len)
    }

    /// Since when the oldest of `band` waits.
    pub fn oldest(&self, band: usize) -> Option<Nanos> {
        let line = self.lines.get(band)?;
        let (ticket, tenant) = line.tickets.first_key_value()?;
        Some(line.tenants.get(tenant)?.get(ticket)?.since)
    }

    /// When the first of them has waited too long.
    pub fn next_deadline(&self) -> Option<Nanos> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Puts a request in line; gives it back with the bound that keeps it out. A band that does not exist is the
    /// lowest.
    pub fn push(
        &mut self,
        band: usize,
        tenant: &Arc<str>,
        (since, deadline): (Nanos, Nanos),
        item: T,
    ) -> Result<Placed<T>, (T, Bound)> {
        let band = band.min(self.lines.len().saturating_sub(1));
        let displaced = match self.make_room(band, tenant) {
            Ok(displaced) => displaced,
            Err(bound) => return Err((item, bound)),
        };
        let ticket = Ticket(self.next);
        self.next += 1;
        self.bands.insert(ticket, band);
        self.deadlines.insert((deadline, ticket));
        let tenant = Arc::clone(tenant);
        self.lines[band].put(Waiting { ticket, band, tenant, since, deadline, item });
        Ok(Placed { ticket, displaced })
    }

    fn make_room(&mut self, band: usize, tenant: &str) -> Result<Option<(Waiting<T>, Bound)>, Bound> {
        let Some(line) = self.lines.get(band) else { return Err(Bound::Band) };
        if line.len() >= self.bounds.per_band {
            return self
                .take_from_longest(band, tenant)
                .map(|gone| (gone, Bound::Band))
                .map(Some)
                .ok_or(Bound::Band);
        }
        if self.len() < self.bounds.total {
            return Ok(None);
        }
        // The newest have waited least, and are furthest from their turn.
        let lowest = (band + 1..self.lines.len()).rev().find(|lower| self.lines[*lower].len() > 0);
        let gone = match lowest.and_then(|lower| self.lines[lower].tickets.last_key_value()) {
            Some((newest, _)) => {
                let newest = *newest;
                self.cancel(newest)
            }
            None => self.take_from_longest(band, tenant),
        };
        gone.map(|gone| Some((gone, Bound::Total))).ok_or(Bound::Total)
    }

    /// The newest of whoever has most in `band`, if that is more than `tenant` would have then.
    fn take_from_longest(&mut self, band: usize, tenant: &str) -> Option<Waiting<T>> {
        let line = &self.lines[band];
        let (most, newest) = line.newest_of_longest()?;
        if most <= line.count(tenant) + 1 {
            return None;
        }
        self.cancel(newest)
    }

    /// Takes the next request of `band`: the oldest of the tenant whose turn it is.
    pub fn pop(&mut self, band: usize) -> Option<Waiting<T>> {
        let waiting = self.lines.get_mut(band)?.next()?;
        self.forget(&waiting);
        Some(waiting)
    }

    /// Takes a request out of the line, wherever it stands; `None` if it has left.
    pub fn cancel(&mut self, ticket: Ticket) -> Option<Waiting<T>> {
        let band = *self.bands.get(&ticket)?;
        let waiting = self.lines[band].take(ticket)?;
        self.forget(&waiting);
        Some(waiting)
    }

    /// Takes one that has waited too long at `now`.
    pub fn expire(&mut self, now: Nanos) -> Option<Waiting<T>> {
        let (at, ticket) = *self.deadlines.first()?;
        if at > now { None } else { self.cancel(ticket) }
    }

    fn forget(&mut self, waiting: &Waiting<T>) {
        self.bands.remove(&waiting.ticket);
        self.deadlines.remove(&(waiting.deadline, waiting.ticket));
    }
}
