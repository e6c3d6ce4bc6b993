//! An access line from a settlement record.

use llmgw_dataplane::error::put_json_string;
use llmgw_dataplane::record::Record;
use std::net::IpAddr;

/// How lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `time LEVEL access key=value ...`.
    Text,
    /// An object a line.
    Json,
}

/// Appends the line of a record, its end included. Keys without a value are left out.
pub fn access_line(record: &Record, format: Format, out: &mut String) {
    match format {
        Format::Text => {
            put_time(out, record.started_wall_ns);
            out.push_str("  INFO access:");
        }
        Format::Json => {
            out.push_str("{\"timestamp\":\"");
            put_time(out, record.started_wall_ns);
            out.push_str("\",\"level\":\"INFO\",\"target\":\"access\"");
        }
    }
    let mut line = Line { format, out };
    line.text("request_id", record.request_id.as_str());
    line.text("surface", record.surface.name());
    line.maybe("model", record.model.as_deref());
    line.maybe("endpoint", record.endpoint.as_ref().map(|endpoint| &*endpoint.id));
    line.maybe("pool", record.endpoint.as_ref().map(|endpoint| &*endpoint.pool));
    line.maybe("reason", record.reason.as_deref());
    line.number("status", u64::from(record.status));
    line.text("outcome", record.outcome.name());
    line.plain("stream", if record.stream { "true" } else { "false" });
    line.number("attempts", u64::from(record.attempts));
    line.milliseconds("duration_ms", record.duration);
    if let Some(ttft) = record.ttft {
        line.milliseconds("ttft_ms", ttft);
    }
    if let Some(usage) = &record.usage {
        line.number("prompt_tokens", usage.prompt_tokens);
        line.number("completion_tokens", usage.completion_tokens);
        if let Some(cached) = usage.cached_tokens {
            line.number("cached_tokens", cached);
        }
    }
    if record.events > 0 {
        line.number("events", u64::from(record.events));
    }
    line.maybe("finish_reason", record.finish_reason.map(|reason| reason.name()));
    line.number("bytes_in", record.bytes_in);
    line.number("bytes_out", record.bytes_out);
    line.peer(record.peer);
    line.maybe("traceparent", record.traceparent.as_deref());
    line.maybe("detail", record.detail);
    out.push_str(if format == Format::Json { "}\n" } else { "\n" });
}

/// Appends a Unix time in nanoseconds as RFC 3339 in UTC, with milliseconds.
pub(super) fn put_time(out: &mut String, ns: u64) {
    let (seconds, millis) = (ns / 1_000_000_000, ns / 1_000_000 % 1000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Days counted from 1 March of year 0, so that leap days come last:
    // http://howardhinnant.github.io/date_algorithms.html
    let day = days + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let mut text = *b"0000-00-00T00:00:00.000Z";
    let places = [
        (3, year),
        (6, month),
        (9, day),
        (12, second / 3600),
        (15, second / 60 % 60),
        (18, second % 60),
        (22, millis),
    ];
    for (last, value) in places {
        put_digits(&mut text[..=last], value);
    }
    out.push_str(std::str::from_utf8(&text).unwrap_or_default());
}

/// Writes a number over the zeros at the end of `text`.
fn put_digits(text: &mut [u8], mut value: u64) {
    for place in text.iter_mut().rev() {
        if value == 0 {
            return;
        }
        *place = b"0123456789"[usize::try_from(value % 10).unwrap_or(0)];
        value /= 10;
    }
}

/// Bytes of a plain word. A table, as this is asked of most bytes of a line.
const PLAIN: [bool; 256] = {
    let mut plain = [false; 256];
    let mut b = 0;
    while b < 256 {
        #[allow(clippy::cast_possible_truncation)] // below 256
        let byte = b as u8;
        plain[b] =
            byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b':' | b'/' | b'@' | b'+');
        b += 1;
    }
    plain
};

struct Line<'a> {
    format: Format,
    out: &'a mut String,
}

impl Line<'_> {
    fn key(&mut self, key: &str) {
        let (before, after) = match self.format {
            Format::Text => (" ", "="),
            Format::Json => (",\"", "\":"),
        };
        for part in [before, key, after] {
            self.out.push_str(part);
        }
    }

    /// What needs no quotes.
    fn plain(&mut self, key: &str, value: &str) {
        self.key(key);
        self.out.push_str(value);
    }

    fn number(&mut self, key: &str, value: u64) {
        self.plain(key, itoa::Buffer::new().format(value));
    }

    /// Nanoseconds as milliseconds with three places.
    fn milliseconds(&mut self, key: &str, ns: u64) {
        let micros = ns / 1000;
        self.number(key, micros / 1000);
        let mut places = *b".000";
        put_digits(&mut places[1..], micros % 1000);
        self.out.push_str(std::str::from_utf8(&places).unwrap_or_default());
    }

    /// A text; in a text line it is quoted unless it is a plain word, so that no value can pose as another key.
    fn text(&mut self, key: &str, value: &str) {
        self.key(key);
        let plain = !value.is_empty() && value.bytes().all(|b| PLAIN[usize::from(b)]);
        match (self.format, plain) {
            (Format::Text, true) => self.out.push_str(value),
            (Format::Json, true) => {
                for part in ["\"", value, "\""] {
                    self.out.push_str(part);
                }
            }
            _ => {
                let mut quoted = Vec::with_capacity(value.len() + 2);
                put_json_string(&mut quoted, value);
                self.out.push_str(&String::from_utf8_lossy(&quoted));
            }
        }
    }

    fn peer(&mut self, peer: IpAddr) {
        match peer {
            IpAddr::V4(v4) => {
                let mut text = [b'.'; 15];
                let mut end = 0;
                for (i, octet) in v4.octets().into_iter().enumerate() {
                    end += usize::from(i > 0);
                    let mut digits = itoa::Buffer::new();
                    let digits = digits.format(octet).as_bytes();
                    text[end..end + digits.len()].copy_from_slice(digits);
                    end += digits.len();
                }
                self.text("peer", std::str::from_utf8(&text[..end]).unwrap_or_default());
            }
            IpAddr::V6(v6) => self.text("peer", &v6.to_string()),
        }
    }

    fn maybe(&mut self, key: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.text(key, value);
        }
    }
}
