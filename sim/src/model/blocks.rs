//! The KV cache: a pool of equal blocks, some private to a running sequence, some named by the prefix they hold.
//!
//! Invariants: private blocks and named blocks together never exceed the capacity; a named block is either held by at
//! least one sequence or stands in the LRU order, never both; only blocks in the LRU order are evicted.

use std::collections::{BTreeMap, HashMap};

#[derive(Debug)]
struct Named {
    holders: u32,
    /// Key in the LRU order while nobody holds the block.
    lru_tick: u64,
}

/// The block pool of one engine.
#[derive(Debug)]
pub struct BlockPool {
    capacity: u32,
    private: u32,
    named: HashMap<u64, Named>,
    lru: BTreeMap<u64, u64>,
    tick: u64,
    evicted: u64,
}

impl BlockPool {
    /// A pool of `capacity` empty blocks.
    pub fn new(capacity: u32) -> Self {
        Self { capacity, private: 0, named: HashMap::new(), lru: BTreeMap::new(), tick: 0, evicted: 0 }
    }

    /// Blocks in all.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Blocks that running sequences hold.
    pub fn used(&self) -> u32 {
        self.private + self.named_count() - self.idle()
    }

    /// Named blocks nobody holds: they may be hit or evicted.
    pub fn idle(&self) -> u32 {
        u32::try_from(self.lru.len()).unwrap_or(u32::MAX)
    }

    /// Blocks evicted so far.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }

    /// Takes hold of the longest cached prefix of `names`, at most `limit` blocks; returns its length.
    pub fn acquire_prefix(&mut self, names: &[u64], limit: usize) -> usize {
        let mut hits = 0;
        for name in names.iter().take(limit) {
            let Some(block) = self.named.get_mut(name) else { break };
            if block.holders == 0 {
                self.lru.remove(&block.lru_tick);
            }
            block.holders += 1;
            hits += 1;
        }
        hits
    }

    /// Takes `count` private blocks, evicting idle ones as needed; false, and nothing taken, if there are too few.
    pub fn alloc(&mut self, count: u32) -> bool {
        let free = self.capacity - self.private - self.named_count();
        if count > free + self.idle() {
            return false;
        }
        for _ in free..count {
            if let Some((_, name)) = self.lru.pop_first() {
                self.named.remove(&name);
                self.evicted += 1;
            }
        }
        self.private += count;
        true
    }

    /// Names one private block of the caller's, which holds it on; false when the name exists already (the block then
    /// stays private).
    pub fn publish(&mut self, name: u64) -> bool {
        if self.named.contains_key(&name) {
            return false;
        }
        self.private -= 1;
        self.named.insert(name, Named { holders: 1, lru_tick: 0 });
        true
    }

    /// Gives private blocks back.
    pub fn release_private(&mut self, count: u32) {
        self.private -= count;
    }

    /// Gives up the hold on the blocks of a prefix. The tail becomes older than the head, so that prefixes are eaten
    /// from their end.
    pub fn release(&mut self, names: &[u64]) {
        for name in names.iter().rev() {
            let Some(block) = self.named.get_mut(name) else { continue };
            block.holders -= 1;
            if block.holders == 0 {
                self.tick += 1;
                block.lru_tick = self.tick;
                self.lru.insert(self.tick, *name);
            }
        }
    }

    fn named_count(&self) -> u32 {
        u32::try_from(self.named.len()).unwrap_or(u32::MAX)
    }
}
