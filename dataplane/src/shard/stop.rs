//! Shutdown, and what a new snapshot changes for connections that exist.

use super::{ClientState, Shard};
use crate::driver::{Driver, Token};
use crate::error::ApiError;
use crate::record::Outcome;
use crate::shared::Stop;
use std::collections::HashSet;

impl<D: Driver> Shard<D> {
    /// Follows the process's shutdown; `false` when nothing is left to do.
    pub(super) fn check_stop(&mut self) -> bool {
        let asked = self.shared.stopping();
        if asked > self.stop {
            if self.stop == Stop::No {
                self.begin_drain();
            }
            self.stop = asked;
        }
        if self.stop == Stop::No {
            return true;
        }
        if self.stop == Stop::Now || self.now >= self.stop_at {
            crate::mark!(stopped_hard);
            self.end_everything();
        }
        if !self.clients.is_empty() {
            return true;
        }
        for token in self.ups.tokens() {
            self.close_up(token, false);
        }
        self.quota.surrender(&self.shared.buffered);
        false
    }

    fn begin_drain(&mut self) {
        crate::mark!(drain);
        self.driver.close_listeners();
        self.stop = Stop::Drain;
        self.stop_at = self.now.saturating_add(self.current.timeout_shutdown);
        for token in self.clients.tokens() {
            let Some(client) = self.clients.get(token) else { continue };
            if client.state == ClientState::Idle && client.out.is_empty() {
                self.start_linger(token);
            }
        }
    }

    /// Ends what is still running: an error event in a stream, 503 before the first byte, a cut otherwise.
    fn end_everything(&mut self) {
        for token in self.clients.tokens() {
            let Some(client) = self.clients.get(token) else { continue };
            if let Some(ex) = &client.exchange {
                let (committed, body_under_way) = (ex.committed(), ex.dispatch.is_none());
                self.detach_upstream(token, false);
                if committed {
                    self.break_stream(token, &ApiError::shutting_down(), Outcome::Shutdown);
                } else if body_under_way {
                    self.reject_close(token, &ApiError::shutting_down());
                } else {
                    self.reject(token, &ApiError::shutting_down());
                }
            }
            // What the socket does not take now is lost: that must not look like an answer's end.
            let cut = self.clients.get(token).is_some_and(|client| !client.out.is_empty());
            self.drop_client(token, true, cut);
        }
    }

    /// Endpoints were drained, or no longer are: what runs there is due at another time.
    fn cuts_changed(&mut self) {
        let cuts = self.shared.loads.cuts();
        if cuts == self.seen_cuts {
            return;
        }
        self.seen_cuts = cuts;
        for token in self.clients.tokens() {
            if self.clients.get(token).is_some_and(|client| client.state == ClientState::Answer) {
                self.arm_client(token);
            }
        }
    }

    /// A snapshot was published: idle connections to endpoints that are no longer in it are closed.
    pub(super) fn snapshot_changed(&mut self) {
        self.cuts_changed();
        let snapshot = self.snapshot.load();
        if snapshot.version == self.seen_version {
            return;
        }
        self.seen_version = snapshot.version;
        // Limits and origins may have changed.
        self.requests.clear();
        // A copy of its own: the count of references is not shared between shards.
        self.current = std::sync::Arc::new((*snapshot.settings).clone());
        let kept: HashSet<u32> = snapshot.endpoints.iter().map(|endpoint| endpoint.slot.index()).collect();
        let gone = |token: &Token| {
            let up = self.ups.get(*token);
            up.is_some_and(|up| up.client.is_none() && !kept.contains(&up.endpoint.slot.index()))
        };
        let stale: Vec<Token> = self.ups.tokens().into_iter().filter(gone).collect();
        for token in stale {
            crate::mark!(removed_endpoint_closed);
            self.close_up(token, false);
        }
        self.prune_series();
    }
}
