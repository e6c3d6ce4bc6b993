//! Buffers that requests borrow from their shard: a request in steady state allocates nothing, and a connection between
//! requests still holds nothing.

/// Buffers kept.
const KEPT: usize = 64;
/// A buffer that has grown beyond this is freed: one large request must not pin its size.
const KEPT_BYTES: usize = 16 * 1024;
/// Room of a fresh buffer: most heads and small bodies fit.
const FRESH_BYTES: usize = 1024;

/// Spare buffers, last in, first out: the warmest is lent next.
#[derive(Debug, Default)]
pub struct Spares(Vec<Vec<u8>>);

impl Spares {
    /// An empty buffer.
    pub fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_else(|| Vec::with_capacity(FRESH_BYTES))
    }

    /// Takes a buffer back, whatever it holds.
    pub fn give(&mut self, mut buffer: Vec<u8>) {
        if self.0.len() < KEPT && (1..=KEPT_BYTES).contains(&buffer.capacity()) {
            buffer.clear();
            self.0.push(buffer);
        }
    }

    /// Buffers held.
    #[cfg(test)]
    pub fn held(&self) -> usize {
        self.0.len()
    }
}
