//! What is checked in and generated: `docs/reference.md` and `docs/openapi.json`.
//!
//! `cargo xtask reference` runs these tests with `LLMGW_REFRESH=1`, and they write; otherwise they fail where a file is
//! not what would be written.

use crate::Cli;
use clap::{Arg, Command, CommandFactory};
use llmgw_controlplane::{admin, config};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

fn checked_in(name: &str, wanted: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    if std::env::var_os("LLMGW_REFRESH").is_some() {
        std::fs::write(&path, wanted).expect("the file can be written");
        return;
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(found == wanted, "{name} is stale; refresh it: cargo xtask reference");
}

#[test]
fn reference_openapi_is_current() {
    let document = admin::openapi::document();
    let json: Value = serde_json::from_str(document).expect("JSON");
    assert!(json["paths"]["/admin/v1/routes"]["put"].is_object());
    checked_in("docs/openapi.json", document);
}

#[test]
fn reference_page_is_current() {
    let mut page = String::from(
        "# Reference\n\nEvery command, flag and configuration key, made from their declarations by\n\
         `cargo xtask reference`. What they mean at more length: [configuration](configuration.md),\n\
         [admin API and `llmgw ctl`](admin.md).\n\n## Command line\n\n\
         Exit codes: 0 done; 1 it failed, or the server said no; 2 wrong usage or configuration.\n",
    );
    let mut root = Cli::command();
    root.build();
    commands(&mut page, &root, "");
    keys(&mut page);
    checked_in("docs/reference.md", &page);
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// A command with its flags, then its subcommands.
fn commands(page: &mut String, command: &Command, before: &str) {
    let name = format!("{before}{}", command.get_name());
    let shown = |arg: &&Arg| !arg.is_hide_set() && !matches!(arg.get_id().as_str(), "help" | "version");
    // Flags that a command hands down are told where they are declared.
    let inherited = |arg: &&Arg| arg.is_global_set() && before.contains("ctl ");
    let args: Vec<&Arg> = command.get_arguments().filter(shown).filter(|arg| !inherited(arg)).collect();
    if !before.is_empty() {
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let _ = write!(page, "\n### `{name}`\n\n{about}.\n");
    }
    if !args.is_empty() {
        page.push_str("\n| argument | default | environment | meaning |\n|---|---|---|---|\n");
    }
    for arg in args {
        let defaults: Vec<_> = arg.get_default_values().iter().map(|v| v.to_string_lossy()).collect();
        let default = match (arg.is_required_set(), defaults.is_empty()) {
            (true, _) => "required".to_owned(),
            (_, true) => String::new(),
            (_, false) => format!("`{}`", defaults.join(" ")),
        };
        let env = arg.get_env().map_or(String::new(), |env| format!("`{}`", env.to_string_lossy()));
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let words: Vec<String> = arg
            .get_possible_values()
            .iter()
            .filter(|v| !v.is_hide_set())
            .map(|v| format!("`{}`", v.get_name()))
            .collect();
        let takes = arg.get_action().takes_values() && !words.is_empty();
        let words = if takes { format!(": {}", words.join(", ")) } else { String::new() };
        let _ = writeln!(page, "| `{}` | {default} | {env} | {}{words} |", cell(&usage(arg)), cell(&help));
    }
    for inner in command.get_subcommands().filter(|c| c.get_name() != "help" && !c.is_hide_set()) {
        commands(page, inner, &format!("{name} "));
    }
}

fn usage(arg: &Arg) -> String {
    let value = arg.get_value_names().map(|names| names.join(" ")).unwrap_or_default();
    let takes = arg.get_action().takes_values();
    match arg.get_long() {
        Some(long) if takes => format!("--{long} {value}"),
        Some(long) => format!("--{long}"),
        None => value,
    }
}

fn keys(page: &mut String) {
    page.push_str(
        "\n## Configuration keys\n\nEvery scalar of `server.yaml`, its default, and the variable that stands over it. \
         `0` in a variable is the\nposition in a list.\n\n| key | default | environment |\n|---|---|---|\n",
    );
    let (keys, given, view) = config::sample();
    let mut values = BTreeMap::new();
    leaves("", &view, &mut values);
    for key in keys {
        let default = match values.get(&key) {
            _ if given.contains(&key) => "required".to_owned(),
            Some(value) => format!("`{value}`"),
            None => String::new(),
        };
        let _ = writeln!(
            page,
            "| `{}` | {} | `{}` |",
            key.replace("[0]", "[]"),
            cell(&default),
            config::variable(&key)
        );
    }
}

/// Every value that is no section, by its dotted path.
fn leaves(path: &str, value: &Value, found: &mut BTreeMap<String, String>) {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| leaves(&below(key), value, found)),
        Value::Array(items) if items.iter().any(Value::is_object) => {
            items.iter().enumerate().for_each(|(i, item)| leaves(&format!("{path}[{i}]"), item, found));
        }
        Value::Null => {}
        Value::String(text) => drop(found.insert(path.to_owned(), text.clone())),
        other => drop(found.insert(path.to_owned(), other.to_string())),
    }
}
