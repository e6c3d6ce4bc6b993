//! The one place where a request ends: its record, its counters, its memory.

use super::Shard;
use crate::driver::{Driver, Token};
use crate::exchange::Reply;
use crate::metrics::SeriesStats;
use crate::record::{Outcome, Record};
use std::sync::Arc;

/// Settled exchanges kept for requests to come.
const EXCHANGES_KEPT: usize = 64;

impl<D: Driver> Shard<D> {
    /// Ends the current exchange of a client. Its upstream connection must have been detached already.
    pub(super) fn settle(
        &mut self,
        token: Token,
        outcome: Outcome,
        status: u16,
        detail: Option<&'static str>,
    ) {
        let Some(client) = self.clients.get_mut(token) else { return };
        let peer = client.peer;
        let Some(mut ex) = client.exchange.take() else {
            debug_assert!(false, "a request is settled twice");
            return;
        };
        self.quota.give(&self.shared.buffered, std::mem::take(&mut ex.body.reserved));
        self.spares.give(std::mem::take(&mut ex.body.bytes));
        self.spares.give(std::mem::take(&mut ex.forward));
        ex.reply = Reply::None;
        ex.cors = Vec::new();
        let status = if ex.status == 0 { status } else { ex.status };
        let (series, model, endpoint, reason, stream, attempts, failure) = match ex.dispatch.take() {
            Some(dispatch) => {
                debug_assert!(dispatch.upstream.is_none(), "settled with an engine connection attached");
                let series = dispatch.endpoint.as_ref().map_or(0, |endpoint| endpoint.series);
                let failure = dispatch.failure.map(crate::exchange::Failure::name);
                let (model, endpoint, reason) = (Some(dispatch.name), dispatch.endpoint, dispatch.reason);
                (series, model, endpoint, reason, dispatch.stream, dispatch.attempts, failure)
            }
            None => (0, None, None, None, false, 0, None),
        };
        let record = Record {
            request_id: std::mem::take(&mut ex.request_id),
            traceparent: ex.traceparent.take(),
            started_wall_ns: ex.started_wall,
            peer,
            surface: ex.surface,
            model,
            endpoint,
            reason,
            status,
            outcome,
            stream,
            attempts,
            bytes_in: ex.body.size,
            bytes_out: ex.bytes_out,
            usage: ex.seen.usage,
            events: ex.seen.events,
            finish_reason: ex.seen.finish_reason,
            ttft: ex.first_byte.map(|at| at.saturating_sub(ex.started)),
            duration: self.now.saturating_sub(ex.started),
            detail: detail.or(failure),
        };
        let stats = self.series(series);
        stats.count(status, outcome);
        stats.duration.record(record.duration);
        if let Some(ttft) = record.ttft {
            stats.ttft.record(ttft);
        }
        if let Some(usage) = record.usage {
            stats.prompt_tokens.add(usage.prompt_tokens);
            stats.completion_tokens.add(usage.completion_tokens);
            stats.cached_tokens.add(usage.cached_tokens.unwrap_or(0));
        }
        if ex.seen.withheld > 0 {
            self.stats().usage_withheld.add(u64::from(ex.seen.withheld));
        }
        if self.records.push(record).is_err() {
            self.stats().records_dropped.add(1);
        }
        if self.exchanges.len() < EXCHANGES_KEPT {
            self.exchanges.push(ex);
        }
    }

    /// Counts an answer to bytes that never became a request.
    pub(super) fn count_unparsed(&mut self, status: u16) {
        self.series(0).count(status, Outcome::Rejected);
    }

    fn series(&mut self, id: u32) -> Arc<SeriesStats> {
        let (shared, shard) = (&self.shared, self.id);
        Arc::clone(self.series.entry(id).or_insert_with(|| shared.series.get(id, shard)))
    }

    /// Forgets series that the current snapshot no longer has.
    pub(super) fn prune_series(&mut self) {
        let snapshot = self.snapshot.load();
        self.series
            .retain(|id, _| *id == 0 || snapshot.endpoints.iter().any(|endpoint| endpoint.series == *id));
    }
}
