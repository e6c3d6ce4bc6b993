//! A worker's status and whether it can be believed.

use crate::config::split_authority;
use llmgw_routing::snapshot::Role;
use std::fmt;

/// Longest worker id and model name, in bytes; as in the configuration.
const NAME_MAX: usize = 256;

/// `tl.control.v1.WorkerStatus`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // each field is the message's of the same name
pub struct Status {
    /// Stable for the life of the engine process.
    pub worker_id: String,
    pub http_address: String,
    pub grpc_address: String,
    pub kv_address: String,
    pub role: String,
    pub model: String,
    pub kv_format: u32,
    pub queue_depth: i32,
    pub running: i32,
    pub kv_free_blocks: i32,
    pub kv_total_blocks: i32,
    pub draining: bool,
}

/// A field that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidStatus {
    /// Its name in the message.
    pub field: &'static str,
    /// What is wrong with it.
    pub reason: String,
}

impl fmt::Display for InvalidStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.reason)
    }
}

impl std::error::Error for InvalidStatus {}

fn invalid<T>(field: &'static str, reason: impl Into<String>) -> Result<T, InvalidStatus> {
    Err(InvalidStatus { field, reason: reason.into() })
}

impl Status {
    /// The numbers: none is negative, and no more blocks are free than there are.
    pub fn check_numbers(&self) -> Result<(), InvalidStatus> {
        let numbers = [
            ("queue_depth", self.queue_depth),
            ("running", self.running),
            ("kv_free_blocks", self.kv_free_blocks),
            ("kv_total_blocks", self.kv_total_blocks),
        ];
        for (field, number) in numbers {
            if number < 0 {
                return invalid(field, format!("{number} is negative"));
            }
        }
        if self.kv_free_blocks > self.kv_total_blocks {
            let (free, total) = (self.kv_free_blocks, self.kv_total_blocks);
            return invalid("kv_free_blocks", format!("{free} is more than kv_total_blocks, {total}"));
        }
        Ok(())
    }

    /// Everything that does not change with each heartbeat.
    pub fn check_identity(&self) -> Result<Identity, InvalidStatus> {
        name("worker_id", &self.worker_id)?;
        if self.worker_id.contains(' ') {
            return invalid("worker_id", "must not hold spaces");
        }
        name("model", &self.model)?;
        let Some(role) = role(&self.role) else {
            let given = shown(&self.role);
            return invalid("role", format!("`{given}` is none of unified, prefill, decode"));
        };
        let (host, port) = address("http_address", &self.http_address)?;
        if !self.grpc_address.is_empty() {
            address("grpc_address", &self.grpc_address)?;
        }
        if !self.kv_address.is_empty() {
            address("kv_address", &self.kv_address)?;
        }
        Ok(Identity { role, host, port })
    }
}

/// What an acceptable status says in text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Its role.
    pub role: Role,
    /// Host of the HTTP address, without brackets.
    pub host: String,
    /// Its port.
    pub port: u16,
}

/// The names of the protocol.
pub fn role(name: &str) -> Option<Role> {
    match name {
        "unified" => Some(Role::Unified),
        "prefill" => Some(Role::Prefill),
        "decode" => Some(Role::Decode),
        _ => None,
    }
}

/// Ids and models go into headers, labels and logs: printable ASCII.
fn name(field: &'static str, text: &str) -> Result<(), InvalidStatus> {
    if text.is_empty() {
        return invalid(field, "is empty");
    }
    if text.len() > NAME_MAX {
        return invalid(field, format!("has {} bytes; {NAME_MAX} are the most", text.len()));
    }
    if !text.bytes().all(|b| (b' '..=b'~').contains(&b)) || text.trim() != text {
        return invalid(field, format!("`{}` must be printable ASCII without spaces around it", shown(text)));
    }
    Ok(())
}

fn address(field: &'static str, text: &str) -> Result<(String, u16), InvalidStatus> {
    match split_authority(text) {
        Some(parts) => Ok(parts),
        None if text.is_empty() => invalid(field, "is empty"),
        None => invalid(field, format!("`{}` is not host:port", shown(text))),
    }
}

/// Text of a stranger, made harmless and short.
fn shown(text: &str) -> String {
    text.chars().take(64).flat_map(char::escape_debug).collect()
}
