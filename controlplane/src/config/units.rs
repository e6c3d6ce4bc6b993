//! Durations and sizes as text: `50us`, `250ms`, `2s`, `5m`, `1h`; `32MiB`, `4096`.

use std::time::Duration;

/// In microseconds.
const DURATIONS: [(&str, u64); 5] =
    [("us", 1), ("ms", 1_000), ("s", 1_000_000), ("m", 60_000_000), ("h", 3_600_000_000)];
const SIZES: [(&str, u64); 5] = [("", 1), ("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];

fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (digits, unit) = split(text.trim());
    let (_, scale) = units.iter().find(|(name, _)| *name == unit)?;
    digits.replace('_', "").parse::<u64>().ok()?.checked_mul(*scale)
}

/// Parses a duration; the unit is required.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    if let Some(us) = scaled(text, &DURATIONS) {
        return Ok(Duration::from_micros(us));
    }
    let bare = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    Err(match bare {
        true => format!("`{text}` has no unit: write `{text}s`, or use ms, m or h"),
        false => format!(
            "`{text}` is not a duration: write a whole number and ms, s, m or h, such as `250ms` or `2s`"
        ),
    })
}

/// Parses a size in bytes.
pub fn parse_size(text: &str) -> Result<u64, String> {
    if let Some(bytes) = scaled(text, &SIZES) {
        return Ok(bytes);
    }
    let (digits, unit) = split(text.trim());
    let binary = match unit.to_ascii_lowercase().as_str() {
        "k" | "kb" | "kib" => Some("KiB"),
        "m" | "mb" | "mib" => Some("MiB"),
        "g" | "gb" | "gib" => Some("GiB"),
        _ => None,
    };
    Err(match binary {
        Some(binary) if !digits.is_empty() => {
            format!(
                "`{text}` is not a size: write `{digits}{binary}` (sizes are in KiB, MiB, GiB or plain bytes)"
            )
        }
        _ => format!(
            "`{text}` is not a size: write a whole number of bytes, or one with KiB, MiB or GiB, such as `32MiB`"
        ),
    })
}

/// A duration as the configuration writes it, in its largest whole unit.
pub fn show_duration(duration: Duration) -> String {
    let us = duration.as_micros();
    let unit = DURATIONS.iter().rev().find(|(_, scale)| us != 0 && us.is_multiple_of(u128::from(*scale)));
    match unit {
        Some((name, scale)) => format!("{}{name}", us / u128::from(*scale)),
        None => "0s".into(),
    }
}

/// A size as the configuration writes it, in its largest whole unit.
pub fn show_size(bytes: u64) -> String {
    match SIZES.iter().rev().find(|(name, scale)| *name != "B" && bytes != 0 && bytes.is_multiple_of(*scale))
    {
        Some((name, scale)) => format!("{}{name}", bytes / scale),
        None => "0".into(),
    }
}
