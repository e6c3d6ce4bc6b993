//! What simulated engines tell about the requests they saw: `GET /sim/requests/ID`, `GET /sim/state`, `/sim/fault`.

use std::fmt;

use serde::Serialize;
use serde_json::Value;

use crate::client::{GetError, Pool, Target};
use crate::stats::Failure;

/// One engine and the connection that it is asked over.
#[derive(Debug)]
pub struct Engine {
    /// Base URL as the user gave it.
    pub url: String,
    target: Target,
    pool: Pool,
}

/// What an engine knows of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It never arrived.
    Never,
    /// It runs or waits.
    Active,
    /// It was aborted by the peer at this time, in nanoseconds since the Unix epoch.
    Aborted(u64),
    /// It ended in another way at this time (0: not told).
    Ended(u64),
}

/// What an engine has at hand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EngineState {
    /// Base URL.
    pub url: String,
    /// Sequences running.
    pub running: u64,
    /// Requests waiting.
    pub waiting: u64,
}

impl EngineState {
    /// Nothing runs or waits.
    pub fn is_idle(&self) -> bool {
        self.running == 0 && self.waiting == 0
    }
}

/// An engine that could not be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskError {
    url: String,
    what: &'static str,
    cause: Result<u16, Failure>,
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AskError { url, what, .. } = self;
        match self.cause {
            Ok(status) => write!(f, "{url}: {what} answered {status} or not as a simulated engine does"),
            Err(failure) => write!(f, "{url}: {what} got no answer ({failure})"),
        }
    }
}

impl std::error::Error for AskError {}

impl Engine {
    /// An engine at a target.
    pub fn new(url: &str, target: Target, pool: Pool) -> Engine {
        Engine { url: url.to_owned(), target, pool }
    }

    /// What became of a request.
    pub async fn seen(&self, id: &str) -> Result<Seen, AskError> {
        let what = "GET /sim/requests/ID";
        let path = format!("/sim/requests/{id}");
        let (status, record) =
            self.pool.get_json(&self.target, &path).await.map_err(|e| self.lost(what, e))?;
        if status == 404 {
            return Ok(Seen::Never);
        }
        let ns = |key: &str| record[key].as_u64().map(|us| us.saturating_mul(1_000));
        match record["outcome"].as_str() {
            Some("active") if status == 200 => Ok(Seen::Active),
            Some("aborted") if status == 200 => match ns("aborted_unix_us") {
                Some(at) => Ok(Seen::Aborted(at)),
                None => Err(self.wrong(what, status)),
            },
            Some(_) if status == 200 => Ok(Seen::Ended(ns("ended_unix_us").unwrap_or(0))),
            _ => Err(self.wrong(what, status)),
        }
    }

    /// Running and waiting now.
    pub async fn state(&self) -> Result<EngineState, AskError> {
        let state = self.raw_state().await?;
        match (state["running"].as_u64(), state["waiting"].as_u64()) {
            (Some(running), Some(waiting)) => Ok(EngineState { url: self.url.clone(), running, waiting }),
            _ => Err(self.wrong("GET /sim/state", 200)),
        }
    }

    /// Whether a fault is set.
    pub async fn has_faults(&self) -> Result<bool, AskError> {
        Ok(self.raw_state().await?["faults"].as_array().is_some_and(|faults| !faults.is_empty()))
    }

    /// Sets a fault.
    pub async fn set_fault(&self, fault: &str) -> Result<(), AskError> {
        self.change("POST", &serde_json::json!({ "fault": fault }).to_string()).await
    }

    /// Clears all faults.
    pub async fn clear_faults(&self) -> Result<(), AskError> {
        self.change("DELETE", "").await
    }

    async fn raw_state(&self) -> Result<Value, AskError> {
        let what = "GET /sim/state";
        match self.pool.get_json(&self.target, "/sim/state").await {
            Ok((200, state)) => Ok(state),
            Ok((status, _)) => Err(self.wrong(what, status)),
            Err(e) => Err(self.lost(what, e)),
        }
    }

    async fn change(&self, method: &'static str, body: &str) -> Result<(), AskError> {
        let what = "changing /sim/fault";
        match self.pool.send_json(&self.target, method, "/sim/fault", body).await {
            Ok((200..300, _)) => Ok(()),
            Ok((status, _)) => Err(self.wrong(what, status)),
            Err(e) => Err(self.lost(what, e)),
        }
    }

    fn wrong(&self, what: &'static str, status: u16) -> AskError {
        AskError { url: self.url.clone(), what, cause: Ok(status) }
    }

    fn lost(&self, what: &'static str, e: GetError) -> AskError {
        AskError { url: self.url.clone(), what, cause: Err(e.0) }
    }
}
