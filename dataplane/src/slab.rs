//! Connections by [`Token`]: an index that is reused and a generation that is not, so that a late event for a closed
//! connection never reaches the one that took its place.
//!
//! Clients and upstream connections live in two slabs (so that both ends of an exchange can be borrowed at once) that
//! share the driver's index space: clients take the even indices, upstream connections the odd ones.

use crate::driver::Token;

/// Which slab a token belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A client's connection.
    Client = 0,
    /// A connection to an engine.
    Upstream = 1,
}

/// The kind of connection that a token names.
pub fn kind_of(token: Token) -> Kind {
    if token.index() & 1 == 0 { Kind::Client } else { Kind::Upstream }
}

struct Entry<T> {
    generation: u32,
    value: Option<Box<T>>,
}

/// A table of boxed values by generation-checked token.
pub struct Slab<T> {
    kind: Kind,
    entries: Vec<Entry<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    /// An empty slab for one kind of connection.
    pub fn new(kind: Kind) -> Self {
        Slab { kind, entries: Vec::new(), free: Vec::new() }
    }

    /// Values held.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Nothing held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn slot(&self, token: Token) -> usize {
        (token.index() >> 1) as usize
    }

    /// Stores a value under a fresh token.
    pub fn insert(&mut self, value: Box<T>) -> Token {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: 0, value: None });
            u32::try_from(self.entries.len() - 1).expect("fewer than 2^31 connections")
        });
        let entry = &mut self.entries[slot as usize];
        entry.generation = entry.generation.wrapping_add(1);
        entry.value = Some(value);
        Token::new(slot << 1 | self.kind as u32, entry.generation)
    }

    /// The value, if the token is current.
    pub fn get(&self, token: Token) -> Option<&T> {
        let entry = self.entries.get(self.slot(token))?;
        if entry.generation != token.generation() && !crate::planted!(GenerationIgnored) {
            return None;
        }
        entry.value.as_deref()
    }

    /// The value, if the token is current.
    pub fn get_mut(&mut self, token: Token) -> Option<&mut T> {
        let slot = self.slot(token);
        let entry = self.entries.get_mut(slot)?;
        if entry.generation != token.generation() && !crate::planted!(GenerationIgnored) {
            crate::mark!(stale_token);
            return None;
        }
        entry.value.as_deref_mut()
    }

    /// Removes the value, if the token is current.
    pub fn remove(&mut self, token: Token) -> Option<Box<T>> {
        let slot = self.slot(token);
        let entry = self.entries.get_mut(slot)?;
        if entry.generation != token.generation() && !crate::planted!(GenerationIgnored) {
            return None;
        }
        let value = entry.value.take()?;
        self.free.push(token.index() >> 1);
        Some(value)
    }

    /// Tokens of all values held, for sweeps at shutdown and reload.
    pub fn tokens(&self) -> Vec<Token> {
        let occupied = self.entries.iter().zip(0u32..).filter(|(entry, _)| entry.value.is_some());
        occupied.map(|(entry, slot)| Token::new(slot << 1 | self.kind as u32, entry.generation)).collect()
    }
}
