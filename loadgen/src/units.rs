//! Durations as users write them (`250ms`, `2s`, `5m`) and clocks.
//!
//! The load generator measures real time, so this is the one module that reads clocks; everything that computes with
//! time takes it as an argument.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The monotonic clock.
#[allow(clippy::disallowed_methods)] // a load generator measures real time
pub fn now() -> Instant {
    Instant::now()
}

/// Nanoseconds since the Unix epoch, for comparison with what an engine on the same machine recorded.
#[allow(clippy::disallowed_methods)] // compared with another process's wall clock
pub fn unix_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, ns)
}

/// A duration in whole nanoseconds, saturating after five centuries.
pub fn ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Reads `250us`, `250ms`, `2s`, `1.5m`, `1h`. A bare number is refused: its unit would be a guess.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let split = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(|| {
        if text == "0" {
            String::from("write 0s")
        } else {
            format!("`{text}` has no unit: write 250ms, 2s, 5m")
        }
    })?;
    let (number, unit) = text.split_at(split);
    let scale = match unit {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("`{unit}` is no unit of time: use us, ms, s, m or h")),
    };
    let value: f64 = number.trim().parse().map_err(|_| format!("`{number}` is not a number"))?;
    Duration::try_from_secs_f64(value * scale).map_err(|e| format!("`{text}`: {e}"))
}

/// Writes a duration given in nanoseconds with a unit that suits it.
pub fn show_ns(value: f64) -> String {
    let size = value.abs();
    if size < 1e3 {
        format!("{value:.0} ns")
    } else if size < 1e6 {
        format!("{:.1} us", value / 1e3)
    } else if size < 1e9 {
        format!("{:.2} ms", value / 1e6)
    } else {
        format!("{:.2} s", value / 1e9)
    }
}

#[cfg(test)]
mod tests;
