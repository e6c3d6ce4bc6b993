//! Prometheus' text format, version 0.0.4.
//!
//! **Invariant:** whatever stands in a label, the text stays well formed: values are escaped, names come from code.

use std::fmt::{self, Write};

#[cfg(test)]
mod tests;

/// Content type of the text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A metric's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

/// Writes families one after another.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
}

impl Exposition {
    /// The text so far.
    pub fn into_text(self) -> String {
        self.text
    }

    /// Starts a family; its samples follow.
    pub fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing to a String does not fail; so throughout.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// A sample.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl fmt::Display) {
        self.text.push_str(name);
        self.labels(labels, None);
        let _ = writeln!(self.text, " {value}");
    }

    /// A family of one sample without labels.
    pub fn single(&mut self, name: &str, kind: Kind, help: &str, value: impl fmt::Display) {
        self.family(name, kind, help);
        self.sample(name, &[], value);
    }

    /// The samples of a histogram: `buckets` gives each upper bound in seconds and the count at or below it, in order;
    /// `total` counts all.
    pub fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        buckets: impl Iterator<Item = (f64, u64)>,
        total: u64,
        sum_seconds: f64,
    ) {
        for (bound, count) in buckets {
            let _ = write!(self.text, "{name}_bucket");
            self.labels(labels, Some(&bound.to_string()));
            let _ = writeln!(self.text, " {count}");
        }
        let _ = write!(self.text, "{name}_bucket");
        self.labels(labels, Some("+Inf"));
        let _ = writeln!(self.text, " {total}");
        self.sample(&format!("{name}_sum"), labels, sum_seconds);
        self.sample(&format!("{name}_count"), labels, total);
    }

    fn labels(&mut self, labels: &[(&str, &str)], le: Option<&str>) {
        if labels.is_empty() && le.is_none() {
            return;
        }
        let all = labels.iter().copied().chain(le.map(|le| ("le", le)));
        for (i, (name, value)) in all.enumerate() {
            self.text.push(if i == 0 { '{' } else { ',' });
            self.text.push_str(name);
            self.text.push_str("=\"");
            for c in value.chars() {
                match c {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    c => self.text.push(c),
                }
            }
            self.text.push('"');
        }
        self.text.push('}');
    }
}
