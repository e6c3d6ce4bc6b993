//! Decoding of the tree: each key is named once, where it is read; from these names come the unknown-key errors, their
//! suggestions, and the names of environment variables.
//!
//! **Invariant:** decoding never stops at the first problem. A value that cannot be read is replaced by its default
//! and reported; a configuration with problems is never returned.

use super::tree::{Entry, Node, Origin, Value};
use super::units;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Where.
    pub at: Origin,
    /// Dotted path of the key, such as `limits.max_body` or `endpoints[0].url`; empty for the file as a whole.
    pub path: String,
    /// What was wrong and what to do.
    pub message: String,
}

impl Problem {
    /// `file:line:column: path: message`.
    pub fn show(&self, file: &str) -> String {
        let place = match &self.at {
            Origin::File { line, column } => format!("{file}:{line}:{column}"),
            Origin::Env(name) => format!("environment {name}"),
            Origin::Default => file.to_owned(),
        };
        let path = if self.path.is_empty() { String::new() } else { format!("{}: ", self.path) };
        format!("{place}: {path}{}", self.message)
    }
}

/// What decoding gathers.
#[derive(Debug, Default)]
pub struct Notes {
    problems: RefCell<Vec<Problem>>,
    later: RefCell<Vec<String>>,
    known: RefCell<BTreeSet<String>>,
    origins: RefCell<BTreeMap<String, Origin>>,
}

impl Notes {
    /// Reports a problem.
    pub fn problem(&self, at: Origin, path: impl Into<String>, message: impl fmt::Display) {
        let problem = Problem { at, path: path.into(), message: message.to_string() };
        self.problems.borrow_mut().push(problem);
    }

    /// Notes that a key was given on which this version does not act.
    pub fn later(&self, path: impl Into<String>) {
        self.later.borrow_mut().push(path.into());
    }

    /// Paths of all scalar keys that were asked for.
    pub fn known(&self) -> BTreeSet<String> {
        self.known.borrow().clone()
    }

    /// Where the scalars that were given stand, by path.
    pub fn origins(&self) -> BTreeMap<String, Origin> {
        self.origins.borrow().clone()
    }

    /// Everything gathered: problems in the order of the file, and keys not acted on.
    pub fn into_parts(self) -> (Vec<Problem>, Vec<String>) {
        let mut problems = self.problems.into_inner();
        problems.sort_by_key(|p| match p.at {
            Origin::File { line, column } => (0, line, column),
            Origin::Env(_) => (1, 0, 0),
            Origin::Default => (2, 0, 0),
        });
        (problems, self.later.into_inner())
    }
}

/// A mapping being decoded.
pub struct Table<'a> {
    notes: &'a Notes,
    /// Where the mapping stands.
    pub at: Origin,
    /// Dotted path; empty at the root.
    pub path: String,
    entries: &'a [Entry],
    asked: Vec<&'static str>,
}

impl<'a> Table<'a> {
    /// Over a node; anything but a mapping (or nothing) is a problem and reads as an empty one.
    pub fn new(notes: &'a Notes, node: Option<&'a Node>, path: String) -> Self {
        let entries: &[Entry] = match node.map(|node| &node.value) {
            Some(Value::Map(entries)) => entries,
            None | Some(Value::Null) => &[],
            Some(other) => {
                let at = node.map_or(Origin::Default, |node| node.at.clone());
                let hint = match &at {
                    Origin::Env(name) => format!("; name a key in it, as {name}__KEY"),
                    _ => String::new(),
                };
                let message = format!("must be a section of keys, not {}{hint}", other.describe());
                notes.problem(at, path.clone(), message);
                &[]
            }
        };
        let at = node.map_or(Origin::Default, |node| node.at.clone());
        Table { notes, at, path, entries, asked: Vec::new() }
    }

    /// Path of a key in this table.
    pub fn path_of(&self, name: &str) -> String {
        if self.path.is_empty() { name.to_owned() } else { format!("{}.{name}", self.path) }
    }

    fn find(&mut self, name: &'static str) -> Option<&'a Node> {
        self.asked.push(name);
        self.entries.iter().find(|entry| entry.key == name).map(|entry| &entry.node)
    }

    /// Whether the key was given a value.
    pub fn has(&self, name: &str) -> bool {
        self.entries.iter().any(|entry| entry.key == name && !matches!(entry.node.value, Value::Null))
    }

    /// Where a key's value stands.
    pub fn at(&self, name: &str) -> Origin {
        self.entries.iter().find(|entry| entry.key == name).map_or(Origin::Default, |e| e.node.at.clone())
    }

    /// Reports a problem with a key of this table.
    pub fn problem(&self, name: &str, message: impl fmt::Display) {
        self.notes.problem(self.at(name), self.path_of(name), message);
    }

    /// Reports a problem with this table as a whole.
    pub fn problem_here(&self, message: impl fmt::Display) {
        self.notes.problem(self.at.clone(), self.path.clone(), message);
    }

    /// Reports a problem at a path below this table, such as `routes[0].model`, unless something was found there (or
    /// above, or below) before: it would be said twice.
    pub fn problem_at(&self, path: &str, message: impl fmt::Display) {
        let said =
            |p: &Problem| p.path.starts_with(path) || (!p.path.is_empty() && path.starts_with(&p.path));
        if !self.notes.problems.borrow().iter().any(said) {
            self.notes.problem(super::tree::origin_at(self.entries, path), path, message);
        }
    }

    /// An optional value.
    pub fn optional<T>(
        &mut self,
        name: &'static str,
        parse: impl Fn(&Node) -> Result<T, String>,
    ) -> Option<T> {
        self.notes.known.borrow_mut().insert(self.path_of(name));
        let node = self.find(name).filter(|node| !matches!(node.value, Value::Null))?;
        match parse(node) {
            Ok(value) => {
                self.notes.origins.borrow_mut().insert(self.path_of(name), node.at.clone());
                Some(value)
            }
            Err(message) => {
                self.notes.problem(node.at.clone(), self.path_of(name), message);
                None
            }
        }
    }

    /// A value with a default.
    pub fn value<T>(
        &mut self,
        name: &'static str,
        default: T,
        parse: impl Fn(&Node) -> Result<T, String>,
    ) -> T {
        self.optional(name, parse).unwrap_or(default)
    }

    /// A value that must be given.
    pub fn required<T>(
        &mut self,
        name: &'static str,
        parse: impl Fn(&Node) -> Result<T, String>,
    ) -> Option<T> {
        if !self.has(name) {
            self.asked.push(name);
            self.problem_here(format!("`{name}` is missing"));
            return None;
        }
        self.optional(name, parse)
    }

    /// A nested section, present or not.
    pub fn table(&mut self, name: &'static str) -> Table<'a> {
        let path = self.path_of(name);
        let node = self.find(name);
        Table::new(self.notes, node, path)
    }

    /// Sections under names of the operator's choice.
    pub fn named_tables(&mut self, name: &'static str) -> Vec<(String, Table<'a>)> {
        let outer = self.table(name);
        let inner = outer.entries.iter().map(|entry| {
            let path = outer.path_of(&entry.key);
            (entry.key.clone(), Table::new(self.notes, Some(&entry.node), path))
        });
        inner.collect()
    }

    /// Numbers under names of a given set; other names are problems. Those in `later` are noted as not acted on.
    pub fn numbers_by_name(
        &mut self,
        name: &'static str,
        names: &[&'static str],
        later: impl Fn(&str) -> bool,
        parse: impl Fn(&Node) -> Result<f64, String>,
    ) -> Vec<(&'static str, f64)> {
        let mut table = self.table(name);
        names.iter().filter(|key| later(key)).for_each(|key| table.later(key));
        let found = names.iter().filter_map(|key| Some((*key, table.optional(key, &parse)?))).collect();
        table.finish();
        found
    }

    /// The sections of a list, each with its path.
    pub fn tables(&mut self, name: &'static str) -> Vec<Table<'a>> {
        let path = self.path_of(name);
        let notes = self.notes;
        let items = self.items(name);
        let table = |(i, node)| Table::new(notes, Some(node), format!("{path}[{i}]"));
        items.iter().enumerate().map(table).collect()
    }

    /// A list of values.
    pub fn list<T>(
        &mut self,
        name: &'static str,
        parse: impl Fn(&Node) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let given = self.has(name);
        let path = self.path_of(name);
        let mut values = Vec::new();
        for (i, node) in self.items(name).iter().enumerate() {
            match parse(node) {
                Ok(value) => values.push(value),
                Err(message) => self.notes.problem(node.at.clone(), format!("{path}[{i}]"), message),
            }
        }
        given.then_some(values)
    }

    fn items(&mut self, name: &'static str) -> &'a [Node] {
        match self.find(name).map(|node| (&node.at, &node.value)) {
            Some((_, Value::List(items))) => items,
            None | Some((_, Value::Null)) => &[],
            Some((at, other)) => {
                let message = format!("must be a list, not {}", other.describe());
                self.notes.problem(at.clone(), self.path_of(name), message);
                &[]
            }
        }
    }

    /// Notes a key, if given, as one on which this version does not act.
    pub fn later(&self, name: &str) {
        if self.has(name) {
            self.notes.later(self.path_of(name));
        }
    }

    /// Reports every key that was not asked for.
    pub fn finish(self) {
        for entry in self.entries.iter().filter(|entry| !self.asked.contains(&entry.key.as_str())) {
            let path = self.path_of(&entry.key);
            let nearest = nearest(&entry.key, self.asked.iter().copied());
            let message = match (&entry.key_at, nearest) {
                (Origin::Env(_), Some(name)) => {
                    format!("unknown key; did you mean {}?", super::env::variable(&self.path_of(name)))
                }
                (_, Some(name)) => format!("unknown key; did you mean `{name}`?"),
                (_, None) => format!("unknown key; known here: {}", self.asked.join(", ")),
            };
            self.notes.problem(entry.key_at.clone(), path, message);
        }
    }
}

/// The name closest to `word`, if any is close enough to be what was meant.
pub fn nearest<'n>(word: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let word = word.to_ascii_lowercase();
    let close = names.map(|name| (strsim::damerau_levenshtein(&word, &name.to_ascii_lowercase()), name));
    let (distance, name) = close.min_by_key(|(distance, _)| *distance)?;
    let limit = (word.len().max(name.len()) / 3).max(1);
    let contains = word.len() > 3 && (name.contains(&word) || word.contains(name));
    (distance <= limit || contains).then_some(name)
}

// === values ===

/// Text; numbers and booleans are taken as written.
pub fn text(node: &Node) -> Result<String, String> {
    match &node.value {
        Value::Text(text) | Value::Number(text) if !text.is_empty() => Ok(text.clone()),
        Value::Bool(b) => Ok(b.to_string()),
        Value::Text(_) => Err("must not be empty".into()),
        other => Err(format!("must be text, not {}", other.describe())),
    }
}

/// `true` or `false`.
pub fn boolean(node: &Node) -> Result<bool, String> {
    match &node.value {
        Value::Bool(b) => Ok(*b),
        Value::Text(text) if text == "true" => Ok(true),
        Value::Text(text) if text == "false" => Ok(false),
        other => Err(format!("must be `true` or `false`, not {}", other.describe())),
    }
}

/// A whole number, negative ones too.
pub fn whole(node: &Node) -> Result<i32, String> {
    let found = match &node.value {
        Value::Number(text) | Value::Text(text) => text.replace('_', "").parse::<i32>().ok(),
        _ => None,
    };
    let wrong =
        || format!("must be a whole number from {} to {}, not {}", i32::MIN, i32::MAX, node.value.describe());
    found.ok_or_else(wrong)
}

/// A whole number in a range.
pub fn integer(range: RangeInclusive<u64>) -> impl Fn(&Node) -> Result<u64, String> {
    move |node| {
        let found = match &node.value {
            Value::Number(text) | Value::Text(text) => text.replace('_', "").parse::<u64>().ok(),
            _ => None,
        };
        let (low, high) = (range.start(), range.end());
        match found {
            Some(n) if range.contains(&n) => Ok(n),
            _ => Err(format!("must be a whole number from {low} to {high}, not {}", node.value.describe())),
        }
    }
}

/// A finite number for which `ok` holds; `rule` says what that is.
pub fn number(rule: &'static str, ok: impl Fn(f64) -> bool) -> impl Fn(&Node) -> Result<f64, String> {
    move |node| {
        let found = match &node.value {
            Value::Number(text) | Value::Text(text) => text.parse::<f64>().ok(),
            _ => None,
        };
        match found {
            Some(x) if x.is_finite() && ok(x) => Ok(x),
            _ => Err(format!("must be a number {rule}, not {}", node.value.describe())),
        }
    }
}

/// A duration between two bounds.
pub fn duration(low: Duration, high: Duration) -> impl Fn(&Node) -> Result<Duration, String> {
    move |node| {
        let found = match &node.value {
            Value::Number(text) | Value::Text(text) => units::parse_duration(text)?,
            other => return Err(format!("must be a duration such as `2s`, not {}", other.describe())),
        };
        if found < low || found > high {
            let (low, high) = (units::show_duration(low), units::show_duration(high));
            return Err(format!("must be from {low} to {high}, not {}", node.value.describe()));
        }
        Ok(found)
    }
}

/// A size in bytes between two bounds.
pub fn size(range: RangeInclusive<u64>) -> impl Fn(&Node) -> Result<u64, String> {
    move |node| {
        let found = match &node.value {
            Value::Number(text) | Value::Text(text) => units::parse_size(text)?,
            other => return Err(format!("must be a size such as `32MiB`, not {}", other.describe())),
        };
        if !range.contains(&found) {
            let (low, high) = (units::show_size(*range.start()), units::show_size(*range.end()));
            return Err(format!("must be from {low} to {high}, not {}", node.value.describe()));
        }
        Ok(found)
    }
}

/// One of a set of words.
pub fn word<T: Copy>(words: &'static [(&'static str, T)]) -> impl Fn(&Node) -> Result<T, String> {
    move |node| {
        let text = text(node)?;
        if let Some((_, value)) = words.iter().find(|(name, _)| *name == text) {
            return Ok(*value);
        }
        let names = || words.iter().map(|(name, _)| *name);
        let hint = nearest(&text, names()).map_or(String::new(), |name| format!("; did you mean `{name}`?"));
        let names: Vec<_> = names().collect();
        Err(format!("must be {}, not {}{hint}", names.join(" | "), node.value.describe()))
    }
}
