//! An access line from a settlement record.

use llmgw_dataplane::error::put_json_string;
use llmgw_dataplane::record::Record;
use std::fmt::{self, Write};

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
    let time = jiff::Timestamp::from_nanosecond(i128::from(record.started_wall_ns)).unwrap_or_default();
    // Writing to a String does not fail; so throughout.
    let _ = match format {
        Format::Text => write!(out, "{time:.3}  INFO access:"),
        Format::Json => write!(out, "{{\"timestamp\":\"{time:.3}\",\"level\":\"INFO\",\"target\":\"access\""),
    };
    let mut line = Line { format, out };
    line.text("request_id", record.request_id.as_str());
    line.text("surface", record.surface.name());
    line.maybe("model", record.model.as_deref());
    line.maybe("endpoint", record.endpoint.as_ref().map(|endpoint| &*endpoint.id));
    line.maybe("pool", record.endpoint.as_ref().map(|endpoint| &*endpoint.pool));
    line.maybe("reason", record.reason.as_deref());
    line.plain("status", record.status);
    line.text("outcome", record.outcome.name());
    line.plain("stream", record.stream);
    line.plain("attempts", record.attempts);
    line.plain("duration_ms", Milliseconds(record.duration));
    if let Some(ttft) = record.ttft {
        line.plain("ttft_ms", Milliseconds(ttft));
    }
    if let Some(usage) = &record.usage {
        line.plain("prompt_tokens", usage.prompt_tokens);
        line.plain("completion_tokens", usage.completion_tokens);
        if let Some(cached) = usage.cached_tokens {
            line.plain("cached_tokens", cached);
        }
    }
    if record.events > 0 {
        line.plain("events", record.events);
    }
    line.maybe("finish_reason", record.finish_reason.map(|reason| reason.name()));
    line.plain("bytes_in", record.bytes_in);
    line.plain("bytes_out", record.bytes_out);
    line.text("peer", &record.peer.to_string());
    line.maybe("traceparent", record.traceparent.as_deref());
    line.maybe("detail", record.detail);
    out.push_str(if format == Format::Json { "}\n" } else { "\n" });
}

/// Nanoseconds, shown as milliseconds with three places.
struct Milliseconds(u64);

impl fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.0 / 1000;
        write!(f, "{}.{:03}", micros / 1000, micros % 1000)
    }
}

struct Line<'a> {
    format: Format,
    out: &'a mut String,
}

impl Line<'_> {
    fn key(&mut self, key: &str) {
        let _ = match self.format {
            Format::Text => write!(self.out, " {key}="),
            Format::Json => write!(self.out, ",\"{key}\":"),
        };
    }

    /// A number or a boolean.
    fn plain(&mut self, key: &str, value: impl fmt::Display) {
        self.key(key);
        let _ = write!(self.out, "{value}");
    }

    /// A text; in a text line it is quoted unless it is a plain word, so that no value can pose as another key.
    fn text(&mut self, key: &str, value: &str) {
        self.key(key);
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.:/@+".contains(&b);
        if self.format == Format::Text && !value.is_empty() && value.bytes().all(plain) {
            self.out.push_str(value);
        } else {
            let mut quoted = Vec::with_capacity(value.len() + 2);
            put_json_string(&mut quoted, value);
            self.out.push_str(&String::from_utf8_lossy(&quoted));
        }
    }

    fn maybe(&mut self, key: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.text(key, value);
        }
    }
}
