//! ETags of the route table, and what a client says in `If-Match`.
//!
//! **Invariant:** a tag names one table: it holds the epoch and a hash of the table. A tag of an earlier run of the
//! process matches only if the table is still the very same, so an edit made on an old reading is never taken.

use super::dto::Route;
use axum::http::{HeaderMap, header};
use xxhash_rust::xxh3::xxh3_64;

/// The strong, quoted ETag of a table.
pub fn of(routes: &[Route], epoch: u64) -> String {
    // A table serialises: it has no maps with odd keys.
    let text = serde_json::to_vec(routes).unwrap_or_default();
    format!("\"{epoch}-{:016x}\"", xxh3_64(&text))
}

/// Why a request's precondition does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmet {
    /// There is no `If-Match`.
    Missing,
    /// It names other versions.
    Stale,
    /// It names this version weakly, and a weak tag never matches.
    Weak,
    /// It holds something that is no tag.
    Malformed,
}

/// Holds `If-Match` against the current tag; RFC 9110, section 13.1.1.
pub fn check(headers: &HeaderMap, current: &str) -> Result<(), Unmet> {
    let mut given = false;
    let (mut weak, mut malformed) = (false, false);
    for value in headers.get_all(header::IF_MATCH) {
        given = true;
        let Ok(mut rest) = value.to_str().map(str::trim) else {
            malformed = true;
            continue;
        };
        if rest == "*" {
            return Ok(());
        }
        while !rest.is_empty() {
            let Some((tag, is_weak, after)) = tag(rest) else {
                malformed = true;
                break;
            };
            if tag == current {
                if !is_weak {
                    return Ok(());
                }
                weak = true;
            }
            rest = after;
        }
    }
    Err(match (given, malformed, weak) {
        (false, ..) => Unmet::Missing,
        (true, true, _) => Unmet::Malformed,
        (true, false, true) => Unmet::Weak,
        (true, false, false) => Unmet::Stale,
    })
}

/// Takes a tag, quotes included, off the front of a list: the tag, whether it is weak, and what follows it.
fn tag(list: &str) -> Option<(&str, bool, &str)> {
    let (weak, list) = match list.strip_prefix("W/") {
        Some(rest) => (true, rest),
        None => (false, list),
    };
    let end = 1 + list.strip_prefix('"')?.find('"')?;
    let (tag, rest) = list.split_at(end + 1);
    let rest = rest.trim_start();
    match rest.strip_prefix(',') {
        Some(more) => Some((tag, weak, more.trim_start())),
        None => rest.is_empty().then_some((tag, weak, "")),
    }
}
