//! New client connections: bounds, hand-over between shards, adoption.

use super::{Client, ClientState, Shard};
use crate::buffers::OutBuf;
use crate::driver::{Driver, Token};
use crate::error::ApiError;
use crate::http1::memo::Place;
use crate::shared::Stop;
use crate::timer::NEVER;
use std::net::IpAddr;
use std::sync::atomic::Ordering;

impl<D: Driver> Shard<D> {
    pub(super) fn accepted(&mut self, socket: D::Socket, peer: IpAddr) {
        self.stats().accepted.add(1);
        let target = self.least_loaded();
        if target == self.id {
            self.seat_count(self.id, 1);
            self.adopt(socket, peer);
            return;
        }
        crate::mark!(handed_over);
        // Counted at once, so that a burst does not all go to the same shard.
        self.seat_count(target, 1);
        let seat = &self.shared.seats[target];
        if let Err((socket, peer)) = seat.mailbox.push((socket, peer)) {
            self.seat_count(target, -1);
            self.seat_count(self.id, 1);
            self.adopt(socket, peer);
            return;
        }
        if let Some(bell) = seat.bell.get() {
            bell.ring();
        }
        self.stats().handed_over.add(1);
    }

    /// SO_REUSEPORT alone pins a few long-lived connections to one core; a socket that was not read from yet can
    /// still move. Only a clear difference is worth the hop.
    fn least_loaded(&self) -> usize {
        let load = |i: usize| self.shared.seats[i].connections.load(Ordering::Relaxed);
        let mine = load(self.id);
        let Some((least, target)) = (0..self.shared.seats.len())
            .filter(|i| self.shared.seats[*i].bell.get().is_some())
            .map(|i| (load(i), i))
            .min()
        else {
            return self.id;
        };
        if mine > least + 1 + least / 8 { target } else { self.id }
    }

    fn seat_count(&self, seat: usize, change: i32) {
        let connections = &self.shared.seats[seat].connections;
        if change > 0 {
            connections.fetch_add(1, Ordering::Relaxed);
        } else {
            connections.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(super) fn doorbell(&mut self) {
        while let Some((socket, peer)) = self.shared.seats[self.id].mailbox.pop() {
            self.adopt(socket, peer);
        }
        self.snapshot_changed();
        if self.shared.starved.load(Ordering::Relaxed) > 0 {
            self.quota.surrender(&self.shared.buffered);
        }
    }

    fn adopt(&mut self, socket: D::Socket, peer: IpAddr) {
        let settings = std::sync::Arc::clone(self.settings());
        let refusal = if self.stop > Stop::No {
            Some(ApiError::shutting_down())
        } else if self.clients.len() >= settings.max_connections {
            self.stats().refused_shard_full.add(1);
            crate::mark!(shard_full);
            Some(ApiError::no_capacity("The gateway has too many connections", llmgw_routing::SECOND))
        } else if !self.shared.admit_address(peer, settings.max_connections_per_client) {
            self.stats().refused_address_full.add(1);
            crate::mark!(address_full);
            Some(ApiError::too_many_connections())
        } else {
            None
        };
        let counted = refusal.is_none();
        let client = Client {
            peer,
            state: ClientState::Idle,
            input: Vec::new(),
            scanned: 0,
            out: OutBuf::default(),
            out_since: self.now,
            since: self.now,
            armed: NEVER,
            paused: false,
            starved: false,
            yielded: false,
            fin: false,
            place: Place::default(),
            exchange: None,
        };
        let token = self.clients.insert(Box::new(client));
        self.driver.adopt(token, socket);
        if let Some(error) = refusal {
            // Answered without reading a request, then closed at once: a refused connection costs no time.
            self.send_bare_error(token, &error);
            self.drop_client(token, counted, false);
            return;
        }
        self.arm_client(token);
    }

    /// Forgets a client's connection; its exchange must be settled. `counted`: it counts against its address.
    pub(super) fn drop_client(&mut self, token: Token, counted: bool, abort: bool) {
        let Some(client) = self.clients.remove(token) else { return };
        debug_assert!(client.exchange.is_none(), "a connection is dropped before its exchange was settled");
        self.driver.close(token, abort);
        self.seat_count(self.id, -1);
        if counted {
            self.shared.release_address(client.peer);
        }
        if client.starved {
            self.unstarve(token);
        }
    }
}
