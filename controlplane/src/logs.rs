//! The log: events of the control plane through `tracing`, and one access line a request from its settlement record.
//!
//! All of it goes to standard error. Access lines are gathered and written in batches, off the async workers; while a
//! write waits, the shards' rings fill, and what does not fit is dropped and counted by the shard.

mod access;

pub use access::{Format, access_line};

use crate::config::{Level, Log, LogFormat};
use crate::metrics::OwnStats;
use llmgw_dataplane::shared::RecordConsumer;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Registry, fmt, reload};

#[cfg(test)]
mod tests;

/// How long a record may wait in its ring.
const DRAIN_INTERVAL: Duration = Duration::from_millis(100);
/// A batch is written once it is this long, in bytes.
const BATCH: usize = 64 << 10;

/// Changes the level of a log that is set up.
pub struct LogHandle(Option<reload::Handle<LevelFilter, Registry>>);

impl LogHandle {
    /// Sets the level.
    pub fn set_level(&self, level: Level) {
        if let Some(handle) = &self.0 {
            // Fails only if the subscriber is gone, and with it the log.
            let _ = handle.reload(filter(level));
        }
    }
}

/// Sets up the process's log. Where one is set up already it stays, and the handle does nothing.
pub fn init(log: &Log) -> LogHandle {
    let (level, handle) = reload::Layer::new(filter(log.level));
    let registry = tracing_subscriber::registry().with(level);
    let done = match log.format {
        LogFormat::Text => {
            registry.with(fmt::layer().with_writer(std::io::stderr).with_ansi(false)).try_init()
        }
        LogFormat::Json => registry
            .with(
                fmt::layer().json().flatten_event(true).with_current_span(false).with_writer(std::io::stderr),
            )
            .try_init(),
    };
    LogHandle(done.is_ok().then_some(handle))
}

fn filter(level: Level) -> LevelFilter {
    match level {
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    }
}

/// Whether access lines are written: they are of level info.
pub fn access_on(log: &Log) -> bool {
    log.access && !matches!(log.level, Level::Error | Level::Warn)
}

/// Empties the shards' record rings.
pub struct AccessLog {
    rings: Vec<RecordConsumer>,
    format: Format,
    /// Off: records are taken and forgotten.
    on: Arc<AtomicBool>,
    own: Arc<OwnStats>,
    write: fn(&[u8]) -> std::io::Result<()>,
}

impl AccessLog {
    /// Lines go to standard error.
    pub fn new(
        rings: Vec<RecordConsumer>,
        format: LogFormat,
        on: Arc<AtomicBool>,
        own: Arc<OwnStats>,
    ) -> Self {
        let format = match format {
            LogFormat::Text => Format::Text,
            LogFormat::Json => Format::Json,
        };
        AccessLog { rings, format, on, own, write: |batch| std::io::stderr().lock().write_all(batch) }
    }

    /// Drains until `stop`, and then what is left.
    pub async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let mut ticks = tokio::time::interval(DRAIN_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let stopping = tokio::select! {
                _ = ticks.tick() => false,
                _ = stop.wait_for(|stop| *stop) => true,
            };
            while let Some(batch) = self.take() {
                self.put(batch).await;
            }
            if stopping {
                return;
            }
        }
    }

    /// The next batch of lines and their number; `None` when the rings are empty.
    fn take(&mut self) -> Option<(Vec<u8>, u64)> {
        let on = self.on.load(Ordering::Relaxed);
        let (mut batch, mut lines) = (String::new(), 0);
        for ring in &mut self.rings {
            while batch.len() < BATCH {
                let Ok(record) = ring.pop() else { break };
                if on {
                    access_line(&record, self.format, &mut batch);
                    lines += 1;
                }
            }
        }
        (lines > 0).then(|| (batch.into_bytes(), lines))
    }

    async fn put(&mut self, (batch, lines): (Vec<u8>, u64)) {
        let write = self.write;
        let written = tokio::task::spawn_blocking(move || write(&batch)).await;
        if !matches!(written, Ok(Ok(()))) {
            self.own.access_lines_lost.fetch_add(lines, Ordering::Relaxed);
        }
    }
}
