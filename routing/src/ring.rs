//! Consistent hashing with bounded loads.
//!
//! A node has [`VNODES`] points at `hash64("<node>#<i>")`; a key belongs to the first point at or after its hash,
//! wrapping. Equal positions go to the smaller node name. A walk over a subset of the nodes ends where it would on a
//! ring of that subset alone, so that one ring serves whatever is routable at the moment.
//!
//! **Invariant:** a ring is immutable; it is built by the publisher when a model's membership changes.

use std::fmt;

#[cfg(test)]
mod tests;

/// Points a node has unless told otherwise.
pub const VNODES: u32 = 160;

/// FNV-1a, 64 bits.
pub fn fnv1a64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

/// The finalizer of SplitMix64.
pub fn mix64(mut h: u64) -> u64 {
    h = (h ^ (h >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ (h >> 31)
}

/// The ring's hash.
pub fn hash64(bytes: &[u8]) -> u64 {
    mix64(fnv1a64(bytes))
}

/// Most that a node may hold before a new request: `ceil(factor * (total_load + 1) / nodes)`, factors below 1 counting
/// as 1.
pub fn capacity(factor: f64, total_load: u64, nodes: usize) -> u64 {
    let factor = if factor >= 1.0 { factor } else { 1.0 };
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // positive; saturates
    let capacity = (factor * (total_load + 1) as f64 / nodes.max(1) as f64).ceil() as u64;
    capacity
}

/// Why a ring cannot be built.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RingError {
    /// Nodes would have no points.
    NoVirtualNodes,
}

impl fmt::Display for RingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RingError::NoVirtualNodes => {
                f.write_str("a ring needs at least 1 virtual node for each node, got 0")
            }
        }
    }
}

impl std::error::Error for RingError {}

/// Points on a circle of 64-bit positions, each owned by a node. Nodes are numbers: places in the list that the ring
/// was built from.
#[derive(Debug, Clone, Default)]
pub struct Ring {
    /// Sorted.
    positions: Box<[u64]>,
    /// The node at each position.
    owners: Box<[u32]>,
}

/// Where a walk ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// The node.
    pub node: u32,
    /// It is the key's owner; otherwise the owner was at its capacity.
    pub owner: bool,
}

impl Ring {
    /// A ring of `nodes` with `vnodes` points each. A name given twice is one node, numbered by its first place.
    pub fn new<N: AsRef<str>>(nodes: &[N], vnodes: u32) -> Result<Ring, RingError> {
        if vnodes == 0 {
            return Err(RingError::NoVirtualNodes);
        }
        let mut names: Vec<(&str, u32)> =
            nodes.iter().zip(0u32..).map(|(name, place)| (name.as_ref(), place)).collect();
        names.sort_unstable();
        names.dedup_by_key(|(name, _)| *name);
        let mut points = Vec::with_capacity(names.len() * vnodes as usize);
        let mut label = String::new();
        for (rank, (name, place)) in (0u32..).zip(&names) {
            for i in 0..vnodes {
                use fmt::Write;
                label.clear();
                // Writing to a String cannot fail.
                let _ = write!(label, "{name}#{i}");
                points.push((hash64(label.as_bytes()), rank, *place));
            }
        }
        Ok(Self::from_points(points))
    }

    /// A ring of given `(position, rank, node)`; at equal positions the lower rank is met first.
    fn from_points(mut points: Vec<(u64, u32, u32)>) -> Ring {
        points.sort_unstable();
        Ring { positions: points.iter().map(|p| p.0).collect(), owners: points.iter().map(|p| p.2).collect() }
    }

    /// No node at all.
    pub fn is_empty(&self) -> bool {
        self.positions.is_empty()
    }

    /// The first node at or after `hash` for which `takes` holds, wrapping once; whether it is the first of those
    /// that are `member`s.
    pub fn walk(
        &self,
        hash: u64,
        member: impl Fn(u32) -> bool,
        takes: impl Fn(u32) -> bool,
    ) -> Option<Placed> {
        let start = self.positions.partition_point(|position| *position < hash);
        let (before, after) = self.owners.split_at(start);
        let mut owner = None;
        for node in after.iter().chain(before).copied().filter(|node| member(*node)) {
            let first = *owner.get_or_insert(node);
            if takes(node) {
                return Some(Placed { node, owner: node == first });
            }
        }
        None
    }
}
