//! The engine's model: continuous batching over a block-level prefix cache, pure and in virtual time.
//!
//! A sequence waits (FIFO) until the batch has room and its prompt's blocks fit; prefills, sharing `prefill_tps`
//! evenly with the other prefilling sequences and skipping what the prefix cache holds; waits the fixed `ttft` more;
//! then decodes a token each `itl`, an interval that grows with the batch. When a decoding sequence needs a block and
//! none is left, the latest admitted sequence is preempted: it loses its blocks, goes back to the queue's head and
//! prefills again, without repeating tokens.
//!
//! The caller owns the clock: [`Model::submit`], [`Model::cancel`] and [`Model::advance`] are told the time, which may
//! not run backwards, and [`Model::next_event_at`] says when `advance` next has something to say.
//!
//! Invariants: nothing here reads a clock, sleeps or does I/O; the same calls give the same events; tokens of a
//! sequence come in order from 0, each once; a sequence holds blocks only between admission and its end.
//!
//! Simplification: generated tokens fill blocks that are freed at the end, never reused by a later prompt.

mod blocks;
#[cfg(test)]
mod tests;
mod types;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

pub use blocks::BlockPool;
pub use types::{Event, ModelConfig, Nanos, Request, SeqId, Stats, SubmitError};

use crate::tokenizer::Prompt;

/// Prefill work is counted in parts of a token, so that it stays integral.
const TOKEN_PARTS: u64 = 1 << 20;
const NANOS_PER_SECOND: u128 = 1_000_000_000;
const PERMILLE: u64 = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Free,
    Waiting,
    Prefill,
    Decode,
    Held,
}

#[derive(Debug)]
struct Seq {
    generation: u32,
    /// Counts changes of phase: a timer of an older epoch is stale.
    epoch: u32,
    phase: Phase,
    prompt: Prompt,
    output_tokens: u32,
    emitted: u32,
    cached_tokens: u32,
    admitted_before: bool,
    admission: u64,
    named: Vec<u64>,
    private: u32,
}

/// A timer: when, a tie-break that keeps order of creation, and whom.
type Timer = Reverse<(u64, u64, u32, u32)>;

/// The modelled engine.
#[derive(Debug)]
pub struct Model {
    config: ModelConfig,
    pool: BlockPool,
    seqs: Vec<Seq>,
    free: Vec<u32>,
    waiting: VecDeque<SeqId>,
    waiting_count: u32,
    /// Running sequences by order of admission.
    running: BTreeMap<u64, SeqId>,
    admissions: u64,
    timers: BinaryHeap<Timer>,
    timer_count: u64,
    /// Prefill progress each prefilling sequence has made since the start, in token parts.
    work_done: u64,
    work_at: Nanos,
    prefilling: u32,
    prefills: BinaryHeap<Timer>,
    batch: Vec<(SeqId, u32)>,
    joining: Vec<(SeqId, u32)>,
    step_end: Option<Nanos>,
    slow_permille: u64,
    stats: Stats,
}

impl Model {
    /// An idle engine with an empty cache.
    pub fn new(config: ModelConfig) -> Self {
        Self {
            pool: BlockPool::new(config.kv_blocks),
            config,
            seqs: Vec::new(),
            free: Vec::new(),
            waiting: VecDeque::new(),
            waiting_count: 0,
            running: BTreeMap::new(),
            admissions: 0,
            timers: BinaryHeap::new(),
            timer_count: 0,
            work_done: 0,
            work_at: 0,
            prefilling: 0,
            prefills: BinaryHeap::new(),
            batch: Vec::new(),
            joining: Vec::new(),
            step_end: None,
            slow_permille: PERMILLE,
            stats: Stats::default(),
        }
    }

    /// What the engine can do.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The KV cache.
    pub fn pool(&self) -> &BlockPool {
        &self.pool
    }

    /// Counters since the start.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Sequences in the batch.
    pub fn running(&self) -> u32 {
        u32::try_from(self.running.len()).unwrap_or(u32::MAX)
    }

    /// Sequences in the queue.
    pub fn waiting(&self) -> u32 {
        self.waiting_count
    }

    /// Makes everything from now on take `permille`/1000 times as long (1000 is normal speed).
    pub fn set_slowdown(&mut self, now: Nanos, permille: u64) {
        self.settle_work(now);
        self.slow_permille = permille.max(1);
    }

    /// Puts a sequence at the queue's end.
    ///
    /// # Errors
    /// [`SubmitError::TooLong`] when it could never run.
    pub fn submit(&mut self, now: Nanos, request: Request) -> Result<SeqId, SubmitError> {
        let tokens = u64::from(request.prompt.tokens) + u64::from(request.output_tokens.max(1));
        let needed = tokens.div_ceil(u64::from(self.config.block_size));
        if needed > u64::from(self.config.kv_blocks) {
            return Err(SubmitError::TooLong { needed, capacity: self.config.kv_blocks });
        }
        let slot = self.free.pop().unwrap_or_else(|| {
            self.seqs.push(Seq::empty());
            u32::try_from(self.seqs.len() - 1).unwrap_or(u32::MAX)
        });
        let id = SeqId { slot, generation: self.seqs[index(slot)].generation };
        let seq = &mut self.seqs[index(slot)];
        seq.phase = Phase::Waiting;
        seq.prompt = request.prompt;
        seq.output_tokens = request.output_tokens;
        seq.emitted = 0;
        seq.cached_tokens = 0;
        seq.admitted_before = false;
        self.waiting.push_back(id);
        self.waiting_count += 1;
        self.stats.submitted += 1;
        self.admit(now);
        Ok(id)
    }

    /// Ends a sequence before its time; false when it has ended already.
    pub fn cancel(&mut self, now: Nanos, id: SeqId) -> bool {
        if self.live(id).is_none() {
            return false;
        }
        self.stats.cancelled += 1;
        self.end(now, id);
        self.admit(now);
        true
    }

    /// Freezes a sequence: it keeps its place in the batch and its blocks, and says nothing more until cancelled.
    pub fn hold(&mut self, now: Nanos, id: SeqId) {
        if self.live(id).is_none() {
            return;
        }
        match self.seqs[id.slot()].phase {
            Phase::Prefill => {
                self.settle_work(now);
                self.prefilling -= 1;
            }
            Phase::Waiting => self.waiting_count -= 1,
            _ => {}
        }
        self.seqs[id.slot()].turn(Phase::Held);
    }

    /// When [`Model::advance`] next has something to do.
    pub fn next_event_at(&mut self) -> Option<Nanos> {
        self.drop_stale();
        let timer = self.timers.peek().map(|Reverse((at, ..))| *at);
        let prefill = self.prefills.peek().map(|Reverse((target, ..))| {
            let parts =
                u128::from(target.saturating_sub(self.work_done)) * u128::from(self.prefilling.max(1));
            let numerator = parts * NANOS_PER_SECOND * u128::from(self.slow_permille);
            let rate = u128::from(self.config.prefill_tps.max(1) * TOKEN_PARTS) * u128::from(PERMILLE);
            self.work_at.saturating_add(u64::try_from(numerator.div_ceil(rate)).unwrap_or(u64::MAX))
        });
        [timer, prefill, self.step_end].into_iter().flatten().min()
    }

    /// Lets time pass until `now` and tells `sink` what happened, in order.
    pub fn advance(&mut self, now: Nanos, sink: &mut dyn FnMut(Nanos, SeqId, Event)) {
        while let Some(at) = self.next_event_at() {
            if at > now {
                break;
            }
            self.settle_work(at);
            if let Some(Reverse((target, _, slot, _))) = self.prefills.peek().copied()
                && target <= self.work_done
            {
                self.prefills.pop();
                self.prefilled(at, self.id_of(slot), sink);
            } else if self.step_end == Some(at) {
                self.step(at, sink);
            } else if let Some(Reverse((due, _, slot, _))) = self.timers.peek().copied()
                && due <= at
            {
                self.timers.pop();
                self.emit(at, self.id_of(slot), sink);
            }
        }
    }

    fn prefilled(&mut self, at: Nanos, id: SeqId, sink: &mut dyn FnMut(Nanos, SeqId, Event)) {
        self.prefilling -= 1;
        let seq = &mut self.seqs[id.slot()];
        let first = seq.named.len();
        for name in seq.prompt.blocks.iter().skip(first) {
            if self.pool.publish(*name) {
                seq.named.push(*name);
                seq.private -= 1;
            }
        }
        if seq.emitted == 0 {
            self.stats.prompt_tokens += u64::from(seq.prompt.tokens);
        }
        seq.turn(Phase::Decode);
        let cached_tokens = seq.cached_tokens;
        let done = seq.emitted >= seq.output_tokens;
        sink(at, id, Event::Prefilled { cached_tokens });
        if done {
            self.finish(at, id, sink);
        } else {
            let due = at + self.slowed(self.config.ttft_ns);
            self.timer(due, id);
        }
    }

    /// One token of `id`, and when the next is due.
    fn emit(&mut self, at: Nanos, id: SeqId, sink: &mut dyn FnMut(Nanos, SeqId, Event)) {
        let seq = &mut self.seqs[id.slot()];
        let number = seq.emitted;
        seq.emitted += 1;
        self.stats.generated_tokens += 1;
        let finished = seq.emitted >= seq.output_tokens;
        sink(at, id, Event::Token { index: number });
        if finished {
            self.finish(at, id, sink);
            return;
        }
        if !self.grow(at, id, sink) {
            return;
        }
        if self.config.lockstep {
            let epoch = self.seqs[id.slot()].epoch;
            self.joining.push((id, epoch));
            if self.step_end.is_none() {
                self.begin_step(at);
            }
        } else {
            let due = at + self.interval();
            self.timer(due, id);
        }
    }

    /// Makes room for the next token of `id`; false when `id` itself was preempted for want of a block.
    fn grow(&mut self, at: Nanos, id: SeqId, sink: &mut dyn FnMut(Nanos, SeqId, Event)) -> bool {
        let seq = &self.seqs[id.slot()];
        let needed = u64::from(seq.prompt.tokens) + u64::from(seq.emitted) + 1;
        let held = u64::try_from(seq.named.len()).unwrap_or(u64::MAX) + u64::from(seq.private);
        if needed <= held * u64::from(self.config.block_size) {
            return true;
        }
        loop {
            if self.pool.alloc(1) {
                self.seqs[id.slot()].private += 1;
                return true;
            }
            let Some((_, victim)) = self.running.last_key_value() else { return true };
            let victim = *victim;
            self.preempt(at, victim);
            sink(at, victim, Event::Preempted);
            if victim == id {
                self.admit(at);
                return false;
            }
        }
    }

    /// The batch decodes one token each; those that came meanwhile join the next step.
    fn step(&mut self, at: Nanos, sink: &mut dyn FnMut(Nanos, SeqId, Event)) {
        let mut batch = std::mem::take(&mut self.batch);
        // `emit` puts each survivor into `joining`; keep those who came first in front of the newcomers.
        let newcomers = std::mem::take(&mut self.joining);
        self.step_end = Some(at);
        for (id, epoch) in batch.drain(..) {
            if self.live(id).is_some_and(|seq| seq.epoch == epoch && seq.phase == Phase::Decode) {
                self.emit(at, id, sink);
            }
        }
        self.batch = batch;
        self.joining.extend(newcomers);
        self.begin_step(at);
    }

    fn begin_step(&mut self, at: Nanos) {
        self.batch.append(&mut self.joining);
        let seqs = &self.seqs;
        self.batch.retain(|(id, epoch)| {
            let seq = &seqs[id.slot()];
            seq.generation == id.generation && seq.epoch == *epoch && seq.phase == Phase::Decode
        });
        self.step_end = (!self.batch.is_empty()).then(|| at + self.interval().max(1));
    }

    fn finish(&mut self, at: Nanos, id: SeqId, sink: &mut dyn FnMut(Nanos, SeqId, Event)) {
        self.stats.finished += 1;
        self.end(at, id);
        sink(at, id, Event::Finished);
        self.admit(at);
    }

    /// Frees everything a sequence has, whatever phase it is in.
    fn end(&mut self, now: Nanos, id: SeqId) {
        self.leave_batch(now, id);
        let seq = &mut self.seqs[id.slot()];
        if seq.phase == Phase::Waiting {
            self.waiting_count -= 1;
        }
        seq.turn(Phase::Free);
        seq.generation = seq.generation.wrapping_add(1);
        seq.prompt = Prompt::default();
        self.free.push(id.slot);
    }

    fn preempt(&mut self, now: Nanos, id: SeqId) {
        self.leave_batch(now, id);
        self.seqs[id.slot()].turn(Phase::Waiting);
        self.waiting.push_front(id);
        self.waiting_count += 1;
        self.stats.preemptions += 1;
    }

    fn leave_batch(&mut self, now: Nanos, id: SeqId) {
        if self.seqs[id.slot()].phase == Phase::Prefill {
            self.settle_work(now);
            self.prefilling -= 1;
        }
        let seq = &mut self.seqs[id.slot()];
        if self.running.get(&seq.admission) == Some(&id) {
            self.running.remove(&seq.admission);
        }
        self.pool.release(&seq.named);
        seq.named.clear();
        self.pool.release_private(seq.private);
        seq.private = 0;
    }

    /// Moves sequences from the queue's head into the batch while they fit.
    fn admit(&mut self, now: Nanos) {
        while self.running() < self.config.max_seqs {
            let Some(id) = self.waiting.front().copied() else { return };
            let stale = self.live(id).is_none_or(|seq| seq.phase != Phase::Waiting);
            if stale {
                self.waiting.pop_front();
                continue;
            }
            let block_size = self.config.block_size;
            let seq = &mut self.seqs[id.slot()];
            let tokens = seq.prompt.tokens + seq.emitted;
            // At least one token is always computed: its result is what the first generated token comes from.
            let most = index(tokens.saturating_sub(1) / block_size);
            let hits = self.pool.acquire_prefix(&seq.prompt.blocks, most);
            let hit_blocks = u32::try_from(hits).unwrap_or(u32::MAX);
            let needed = (tokens + 1).div_ceil(block_size) - hit_blocks;
            if !self.pool.alloc(needed) {
                self.pool.release(&seq.prompt.blocks[..hits]);
                return;
            }
            self.waiting.pop_front();
            self.waiting_count -= 1;
            self.admissions += 1;
            seq.private = needed;
            seq.named = seq.prompt.blocks[..hits].to_vec();
            seq.admission = self.admissions;
            if !seq.admitted_before {
                seq.admitted_before = true;
                seq.cached_tokens = hit_blocks * block_size;
                self.stats.queried_tokens += u64::from(seq.prompt.tokens);
                self.stats.cached_tokens += u64::from(seq.cached_tokens);
            }
            seq.turn(Phase::Prefill);
            let (epoch, work) = (seq.epoch, u64::from(tokens - hit_blocks * block_size) * TOKEN_PARTS);
            self.running.insert(self.admissions, id);
            self.settle_work(now);
            self.prefilling += 1;
            self.prefills.push(Reverse((self.work_done + work, self.admissions, id.slot, epoch)));
        }
    }

    /// Credits the prefilling sequences with the work done since the last change.
    fn settle_work(&mut self, now: Nanos) {
        let elapsed = now.saturating_sub(self.work_at);
        self.work_at = self.work_at.max(now);
        if self.prefilling == 0 {
            return;
        }
        let parts = u128::from(elapsed) * u128::from(self.config.prefill_tps.max(1) * TOKEN_PARTS);
        let divisor = NANOS_PER_SECOND * u128::from(self.prefilling) * u128::from(self.slow_permille);
        let done = parts * u128::from(PERMILLE) / divisor;
        self.work_done = self.work_done.saturating_add(u64::try_from(done).unwrap_or(u64::MAX));
    }

    fn interval(&self) -> Nanos {
        let others = u128::from(self.running().saturating_sub(1));
        let full = u128::from(self.config.max_seqs.saturating_sub(1).max(1));
        let growth = u128::from(self.config.itl_ns) * u128::from(self.config.itl_growth_permille) * others;
        let growth = u64::try_from(growth / (u128::from(PERMILLE) * full)).unwrap_or(u64::MAX);
        self.slowed(self.config.itl_ns.saturating_add(growth))
    }

    fn slowed(&self, time: Nanos) -> Nanos {
        time.saturating_mul(self.slow_permille) / PERMILLE
    }

    fn timer(&mut self, due: Nanos, id: SeqId) {
        self.timer_count += 1;
        self.timers.push(Reverse((due, self.timer_count, id.slot, self.seqs[id.slot()].epoch)));
    }

    fn drop_stale(&mut self) {
        while let Some(Reverse((_, _, slot, epoch))) = self.timers.peek()
            && self.seqs[index(*slot)].epoch != *epoch
        {
            self.timers.pop();
        }
        while let Some(Reverse((_, _, slot, epoch))) = self.prefills.peek()
            && self.seqs[index(*slot)].epoch != *epoch
        {
            self.prefills.pop();
        }
    }

    fn live(&self, id: SeqId) -> Option<&Seq> {
        let seq = self.seqs.get(id.slot())?;
        (seq.generation == id.generation && seq.phase != Phase::Free).then_some(seq)
    }

    fn id_of(&self, slot: u32) -> SeqId {
        SeqId { slot, generation: self.seqs[index(slot)].generation }
    }
}

impl Seq {
    fn empty() -> Self {
        Self {
            generation: 0,
            epoch: 0,
            phase: Phase::Free,
            prompt: Prompt::default(),
            output_tokens: 0,
            emitted: 0,
            cached_tokens: 0,
            admitted_before: false,
            admission: 0,
            named: Vec::new(),
            private: 0,
        }
    }

    fn turn(&mut self, phase: Phase) {
        self.phase = phase;
        self.epoch = self.epoch.wrapping_add(1);
    }
}

fn index(value: u32) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}
