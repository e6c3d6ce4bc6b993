//! The provided buffers of a ring: one mapping, shared by all connections, touched only as far as it is used.
//!
//! ```text
//! mapping   | entries of the buffer ring, page-aligned | buffer 0 | buffer 1 | ...
//! entry     | address 8 | length 4 | buffer id 2 | reserved 2; in entry 0 the ring's tail |
//! ```
//!
//! A buffer is always in exactly one place: the kernel's ring, the stack of spare ones, a [`Chain`] of a connection, or
//! a [`Lent`]. The kernel writes only to buffers in its ring; giving one back moves the ring's tail. Whoever holds a
//! `Lent` keeps the mapping.
//!
//! The kernel goes round its ring, so every buffer in it is filled in turn, however few are needed at once. It gets as
//! many as the load takes, so that those stay in the processor's caches: twice as many each time it runs out, half as
//! many when it has long needed less than a quarter.

#![allow(unsafe_code)] // memory shared with the kernel

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::io;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::BufRingEntry;

const PAGE_BYTES: usize = 4096;
/// No buffer.
const NONE: u16 = u16::MAX;
/// Buffers in the kernel's ring at first, and at least.
const OFFERED_MIN: u16 = 16;
/// Receives over which the need for buffers is watched.
const WATCH: u32 = 4096;
/// Between the end of a buffer and the next one's start: so that their first bytes, which are used most, do not all
/// fall into the same sets of the cache.
const STAGGER_BYTES: usize = 11 * 64;

#[derive(Debug, Clone, Copy)]
struct Meta {
    /// Received bytes.
    len: u32,
    /// The next of a chain.
    next: u16,
}

/// See the module.
pub(super) struct Pool {
    base: NonNull<u8>,
    mapped_bytes: usize,
    buffers_at: usize,
    buffer_bytes: u32,
    /// A power of two.
    count: u16,
    tail: Cell<u16>,
    /// Buffers the kernel may fill, as far as its completions were seen.
    available: Cell<u16>,
    /// As many as it is to have.
    offered: Cell<u16>,
    /// Those it need not have, last in, first out.
    spare: RefCell<Vec<u16>>,
    /// The least that were available since the last look, and receives since.
    low: Cell<u16>,
    watched: Cell<u32>,
    meta: Box<[Cell<Meta>]>,
}

impl Pool {
    /// `count` buffers (a power of two, at most 32,768) of `buffer_bytes`, none yet in the ring.
    pub(super) fn new(count: u16, buffer_bytes: u32) -> io::Result<Rc<Pool>> {
        assert!(count.is_power_of_two() && buffer_bytes > 0);
        let entry_bytes = usize::from(count) * size_of::<BufRingEntry>();
        let buffers_at = entry_bytes.next_multiple_of(PAGE_BYTES);
        let bytes = usize::try_from(buffer_bytes).map_err(io::Error::other)?;
        let mapped_bytes = buffers_at + usize::from(count) * (bytes + STAGGER_BYTES);
        let (access, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new anonymous mapping, wherever the kernel likes, cannot overlap anything of ours.
        let base = unsafe { mmap_anonymous(ptr::null_mut(), mapped_bytes, access, private) }?;
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        let meta = vec![Cell::new(Meta { len: 0, next: NONE }); usize::from(count)].into_boxed_slice();
        Ok(Rc::new(Pool {
            base,
            mapped_bytes,
            buffers_at,
            buffer_bytes,
            count,
            tail: Cell::new(0),
            available: Cell::new(0),
            offered: Cell::new(OFFERED_MIN.min(count)),
            spare: RefCell::new((0..count).rev().collect()),
            low: Cell::new(0),
            watched: Cell::new(0),
            meta,
        }))
    }

    /// Puts as many buffers into the ring as the kernel is to have. First after the kernel was told of it.
    pub(super) fn fill(&self) {
        while self.available.get() < self.offered.get() {
            let Some(buffer) = self.spare.borrow_mut().pop() else { break };
            self.offer(buffer);
        }
    }

    /// The kernel found no buffer: it is to have more.
    pub(super) fn ran_out(&self) {
        self.offered.set(self.offered.get().saturating_mul(2).min(self.count));
        self.fill();
    }

    /// Where the ring's entries are.
    pub(super) fn ring_address(&self) -> u64 {
        self.base.as_ptr().expose_provenance() as u64
    }

    pub(super) fn count(&self) -> u16 {
        self.count
    }

    pub(super) fn buffer_bytes(&self) -> u32 {
        self.buffer_bytes
    }

    pub(super) fn available(&self) -> u16 {
        self.available.get()
    }

    /// Buffers that nobody holds.
    pub(super) fn free(&self) -> u16 {
        self.available.get() + u16::try_from(self.spare.borrow().len()).unwrap_or(u16::MAX)
    }

    /// The kernel took a buffer out of its ring and put `len` bytes into it.
    pub(super) fn taken(&self, buffer: u16, len: u32) {
        assert!(
            buffer < self.count && len <= self.buffer_bytes,
            "the kernel names buffer {buffer}, {len} bytes"
        );
        debug_assert!(self.available.get() > 0);
        let available = self.available.get().wrapping_sub(1);
        self.available.set(available);
        self.low.set(self.low.get().min(available));
        self.watched.set(self.watched.get() + 1);
        if self.watched.get() == WATCH {
            let offered = self.offered.get();
            let needed = offered.saturating_sub(self.low.get());
            if offered > OFFERED_MIN && needed < offered / 4 {
                self.offered.set((offered / 2).max(OFFERED_MIN));
            }
            self.watched.set(0);
            self.low.set(available);
        }
        self.meta[usize::from(buffer)].set(Meta { len, next: NONE });
    }

    /// Takes a buffer back, for the kernel if it is to have more.
    pub(super) fn give_back(&self, buffer: u16) {
        debug_assert!(buffer < self.count && self.free() < self.count, "given back twice");
        if self.available.get() < self.offered.get() {
            self.offer(buffer);
        } else {
            self.spare.borrow_mut().push(buffer);
        }
    }

    /// The buffer is the kernel's.
    fn offer(&self, buffer: u16) {
        let tail = self.tail.get();
        let offset = self.offset(buffer);
        // SAFETY: within the mapping. The entry is beyond the tail, so the kernel does not look at it, and there is
        // room for it: no more buffers exist than entries. The setters leave the reserved field, the tail of entry 0.
        unsafe {
            let address = self.base.as_ptr().add(offset);
            let entry = &mut *self.entries().add(usize::from(tail & (self.count - 1)));
            entry.set_addr(address.expose_provenance() as u64);
            entry.set_len(self.buffer_bytes);
            entry.set_bid(buffer);
        }
        let tail = tail.wrapping_add(1);
        self.tail.set(tail);
        self.available.set(self.available.get() + 1);
        // SAFETY: the tail is in the first entry, which lives as long as the mapping, is aligned, and is written by
        // nobody else; the kernel reads it atomically. Release: the entry above is seen before the tail.
        unsafe {
            let shared = BufRingEntry::tail(self.entries()).cast_mut();
            AtomicU16::from_ptr(shared).store(tail, Ordering::Release);
        }
    }

    fn entries(&self) -> *mut BufRingEntry {
        self.base.as_ptr().cast::<BufRingEntry>()
    }

    /// Where a buffer begins in the mapping.
    fn offset(&self, buffer: u16) -> usize {
        let bytes = usize::try_from(self.buffer_bytes).unwrap_or(0);
        self.buffers_at + usize::from(buffer) * (bytes + STAGGER_BYTES)
    }

    /// The bytes received into a buffer that is not in the kernel's ring.
    fn bytes(&self, buffer: u16) -> &[u8] {
        let len = usize::try_from(self.meta[usize::from(buffer)].get().len).unwrap_or(0);
        let offset = self.offset(buffer);
        // SAFETY: within the mapping (both were checked by `taken`), initialised (an anonymous mapping is zeroed), and
        // written by nobody: the kernel writes to buffers in its ring alone, and this one is in a chain or lent.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset), len) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `new`; nothing borrows from it, for every borrower holds the pool. The ring that
        // knew it is gone too, or it would hold the pool (see `Ring`).
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.mapped_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Buffers of one connection in the order received. Emptied before it is dropped.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chain {
    first: u16,
    last: u16,
    count: u16,
}

impl Default for Chain {
    fn default() -> Self {
        Chain { first: NONE, last: NONE, count: 0 }
    }
}

impl Chain {
    pub(super) fn len(self) -> u16 {
        self.count
    }

    pub(super) fn is_empty(self) -> bool {
        self.count == 0
    }

    /// Adds a buffer that was just taken.
    pub(super) fn push(&mut self, pool: &Pool, buffer: u16) {
        if self.count == 0 {
            self.first = buffer;
        } else {
            let last = &pool.meta[usize::from(self.last)];
            last.set(Meta { next: buffer, ..last.get() });
        }
        self.last = buffer;
        self.count += 1;
    }

    /// Takes the first buffer.
    pub(super) fn pop(&mut self, pool: &Rc<Pool>) -> Option<Lent> {
        if self.count == 0 {
            return None;
        }
        let buffer = self.first;
        self.first = pool.meta[usize::from(buffer)].get().next;
        self.count -= 1;
        Some(Lent(Bytes::Buffer(Rc::clone(pool), buffer)))
    }
}

/// Received bytes: a provided buffer, given back when dropped, or bytes that were moved out of one.
pub struct Lent(Bytes);

enum Bytes {
    Buffer(Rc<Pool>, u16),
    Moved(Vec<u8>),
}

impl Lent {
    /// Bytes that are in no buffer of the pool.
    pub(super) fn moved(bytes: Vec<u8>) -> Lent {
        Lent(Bytes::Moved(bytes))
    }
}

impl Deref for Lent {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Buffer(pool, buffer) => pool.bytes(*buffer),
            Bytes::Moved(bytes) => bytes,
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Bytes::Buffer(pool, buffer) = &self.0 {
            pool.give_back(*buffer);
        }
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lent").field(&self.len()).finish()
    }
}
