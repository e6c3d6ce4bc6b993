//! Environment variables over the file: `LLMGW_LIMITS__MAX_BODY=1MiB` is `limits.max_body`.
//!
//! Lower case, `__` between levels, a number for the position in a list. Keys that the file already has are matched
//! with `-` and `_` alike. Only scalars can be given.

use super::decode::{Notes, nearest};
use super::tree::{Entry, Node, Origin, Value};
use std::collections::BTreeSet;
use std::sync::Arc;

const PREFIX: &str = "LLMGW_";
/// Variables that mean something else: the command line client's, and the admin token (a secret).
const NOT_OURS: [&str; 3] = ["LLMGW_ADMIN", "LLMGW_TOKEN", "LLMGW_ADMIN_TOKEN"];
const NOT_OURS_PREFIX: &str = "LLMGW_SIM_";

/// The variable that stands over a key.
pub fn variable(path: &str) -> String {
    let flat = path.replace('[', ".").replace(']', "");
    format!("{PREFIX}{}", flat.replace('.', "__").replace('-', "_").to_ascii_uppercase())
}

/// Puts variables into the tree. Those without `__` that name no top-level key come back, to be judged by
/// [`judge`] once all names are known.
pub fn apply(
    root: &mut Node,
    top_level: &[&str],
    vars: impl IntoIterator<Item = (String, String)>,
    notes: &Notes,
) -> Vec<String> {
    let mut vars: Vec<_> = vars.into_iter().filter(|(name, _)| is_ours(name)).collect();
    vars.sort();
    let mut strangers = Vec::new();
    for (name, value) in vars {
        let path = name[PREFIX.len()..].to_ascii_lowercase();
        if !path.contains("__") && !top_level.contains(&path.as_str()) {
            strangers.push(name);
            continue;
        }
        let segments: Vec<&str> = path.split("__").collect();
        let origin = Origin::Env(Arc::from(name));
        if let Err(message) = set(root, &segments, value, &origin) {
            notes.problem(origin, segments.join("."), message);
        }
    }
    strangers
}

fn is_ours(name: &str) -> bool {
    name.starts_with(PREFIX) && !NOT_OURS.contains(&name) && !name.starts_with(NOT_OURS_PREFIX)
}

fn set(node: &mut Node, segments: &[&str], value: String, origin: &Origin) -> Result<(), String> {
    let Some((first, rest)) = segments.split_first() else {
        if matches!(node.value, Value::List(_) | Value::Map(_)) {
            return Err(format!(
                "is {} in the file; only single values can be given by variables",
                node.value.describe()
            ));
        }
        *node = Node { at: origin.clone(), value: Value::Text(value) };
        return Ok(());
    };
    if matches!(node.value, Value::Null) {
        node.value = Value::Map(Vec::new());
    }
    match &mut node.value {
        Value::List(items) => {
            let count = items.len();
            let item = first.parse::<usize>().ok().and_then(|i| items.get_mut(i));
            let item = item.ok_or_else(|| format!("`{first}` is no position in this list of {count}"))?;
            set(item, rest, value, origin)
        }
        Value::Map(entries) => {
            let found =
                entries.iter().position(|entry| entry.key.replace('-', "_").eq_ignore_ascii_case(first));
            let index = found.unwrap_or_else(|| {
                let node = Node { at: origin.clone(), value: Value::Null };
                entries.push(Entry { key: (*first).to_owned(), key_at: origin.clone(), node });
                entries.len() - 1
            });
            set(&mut entries[index].node, rest, value, origin)
        }
        other => Err(format!("`{first}` cannot be set inside {}", other.describe())),
    }
}

/// Judges variables that name no key: an error when one is surely meant for the configuration, else a warning.
pub fn judge(
    strangers: Vec<String>,
    known: &BTreeSet<String>,
    sections: &[&str],
    notes: &Notes,
) -> Vec<String> {
    let mut warnings = Vec::new();
    let variables: Vec<String> = known.iter().map(|path| variable(path)).collect();
    for name in strangers {
        let plain = name.to_ascii_uppercase().replace("__", "_");
        let same = variables.iter().find(|v| v.replace("__", "_") == plain).map(String::as_str);
        let close = same.or_else(|| {
            let near = nearest(&name, variables.iter().map(String::as_str));
            near.filter(|near| strsim::damerau_levenshtein(near, &name) <= 2)
        });
        let rest = name[PREFIX.len()..].to_ascii_lowercase();
        let in_section = sections.iter().any(|s| rest.strip_prefix(s).is_some_and(|r| r.starts_with('_')));
        let guess = close.or_else(|| nearest(&name, variables.iter().map(String::as_str)));
        let hint = guess.map_or(String::new(), |guess| format!("; did you mean {guess}?"));
        if close.is_some() || in_section {
            notes.problem(Origin::Env(Arc::from(name)), "", format!("names no configuration key{hint}"));
        } else {
            warnings.push(format!("environment {name} names no configuration key and is ignored"));
        }
    }
    warnings
}
