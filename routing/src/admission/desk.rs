//! The owner's side: the queue of a model, and granting from it.

use super::queue::{Bound, Placed, Queue, Ticket, Waiting};
use super::{Bounds, Credits, Gate};
use crate::Nanos;
use std::sync::Arc;

/// What became of a request that waited.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict<T> {
    /// It has a credit of the pool at this place among those offered.
    Granted(Waiting<T>, usize),
    /// It has waited too long.
    Expired(Waiting<T>),
    /// Another one needed its place, at this bound.
    Displaced(Waiting<T>, Bound),
}

/// The queue of one model. One shard owns it.
#[derive(Debug)]
pub struct Desk<T> {
    queue: Queue<T>,
    gate: Arc<Gate>,
}

impl<T> Desk<T> {
    /// Nothing waits. The gate must have no other desk.
    pub fn new(bands: usize, bounds: Bounds, gate: Arc<Gate>) -> Self {
        let desk = Desk { queue: Queue::new(bands, bounds), gate };
        (0..super::BANDS_MAX).for_each(|band| desk.gate.set_waiting(band, 0));
        desk
    }

    /// What waits.
    pub fn queue(&self) -> &Queue<T> {
        &self.queue
    }

    /// Whose gate it keeps.
    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// Puts a request in line; gives it back with the bound that keeps it out. [`Desk::serve`] must follow: it may
    /// have come for a credit that was released meanwhile.
    pub fn arrive(
        &mut self,
        band: usize,
        tenant: &Arc<str>,
        times: (Nanos, Nanos),
        item: T,
        verdicts: &mut Vec<Verdict<T>>,
    ) -> Result<Ticket, (T, Bound)> {
        let Placed { ticket, displaced } = self.queue.push(band, tenant, times, item)?;
        if let Some((gone, bound)) = displaced {
            self.publish(gone.band);
            verdicts.push(Verdict::Displaced(gone, bound));
        }
        self.publish(band.min(self.queue.bands() - 1));
        Ok(ticket)
    }

    /// Takes a request out of the line; `None` if it has had its verdict.
    pub fn cancel(&mut self, ticket: Ticket) -> Option<Waiting<T>> {
        let gone = self.queue.cancel(ticket)?;
        self.publish(gone.band);
        Some(gone)
    }

    /// Takes any request out of the line, the highest band's first; for when the desk is given up.
    pub fn dismiss(&mut self) -> Option<Waiting<T>> {
        let gone = (0..self.queue.bands()).find_map(|band| self.queue.pop(band))?;
        self.publish(gone.band);
        Some(gone)
    }

    /// Refuses what has waited too long, then grants what `pools` (the preferred first) have credits for.
    pub fn serve(&mut self, pools: &[Arc<Credits>], now: Nanos, verdicts: &mut Vec<Verdict<T>>) {
        self.gate.look();
        while let Some(late) = self.queue.expire(now) {
            self.publish(late.band);
            verdicts.push(Verdict::Expired(late));
        }
        for band in 0..self.queue.bands() {
            while self.queue.waiting(band) > 0 {
                let Some(place) = pools.iter().position(|pool| pool.try_take(band)) else { break };
                match self.queue.pop(band) {
                    Some(next) => verdicts.push(Verdict::Granted(next, place)),
                    None => pools[place].release(),
                }
                self.publish(band);
            }
        }
    }

    fn publish(&self, band: usize) {
        self.gate.set_waiting(band, self.queue.waiting(band));
    }
}

impl<T> Drop for Desk<T> {
    fn drop(&mut self) {
        (0..super::BANDS_MAX).for_each(|band| self.gate.set_waiting(band, 0));
    }
}
