//! Route tables as text: what `routes put` reads, and `routes edit`.
//!
//! **Invariant:** what somebody typed is not lost: unless the change was made, the file stays, and its name is told.

use super::client::Client;
use super::{changed, print, print_reply, put, warn};
use crate::Failure;
use llmgw_controlplane::admin::dto::Routes;
use serde_json::{Value, json};
use similar::TextDiff;
use std::fs::OpenOptions;
use std::io::{self, IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A table from YAML or JSON: a list of routes, or a section `routes`, in what may be a whole configuration.
pub fn parse(text: &str) -> Result<Value, String> {
    // As the configuration is read: a model called `n` or `on` is no boolean.
    let options = serde_saphyr::options! { strict_booleans: true };
    let value: Value = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let told = error.without_snippet().to_string();
        format!("neither YAML nor JSON: {}", told.lines().next().unwrap_or_default())
    })?;
    match value {
        Value::Array(routes) => Ok(json!({ "routes": routes })),
        Value::Object(mut map) => match map.remove("routes") {
            Some(Value::Array(routes)) => Ok(json!({ "routes": routes })),
            Some(Value::Null) => Ok(json!({ "routes": [] })),
            Some(_) => Err("`routes` must be a list".to_owned()),
            None => Err("there is no `routes` in it".to_owned()),
        },
        _ => Err("it holds no list of routes".to_owned()),
    }
}

/// The table as one edits it.
fn text(found: &Routes) -> Result<String, Failure> {
    let yaml = serde_saphyr::to_string(&json!({ "routes": found.routes })).map_err(Failure::run)?;
    Ok(format!(
        "# The route table, epoch {}. Save and leave to change it; leave it as it is to change nothing.\n{yaml}",
        found.route_epoch
    ))
}

/// `llmgw ctl routes edit`.
pub async fn run(client: &Client, as_json: bool, yes: bool) -> Result<(), Failure> {
    let reply = client.get("routes").await?.ok()?;
    let (found, tag): (Routes, _) = (reply.read()?, reply.etag()?);
    let before = text(&found)?;
    let file = Draft::new(&before)?;
    editor(&file.path)?;
    let after = std::fs::read_to_string(&file.path)
        .map_err(|error| Failure::run(format!("{} cannot be read: {error}", file.path.display())))?;
    if after == before {
        file.forget();
        return print("nothing changed\n");
    }
    let kept = |what: String| Failure::run(format!("{what}; your text is in {}", file.path.display()));
    let table = parse(&after).map_err(kept)?;
    let diff = TextDiff::from_lines(&before, &after);
    let diff = diff.unified_diff().context_radius(3).header("now", "new").to_string();
    if as_json {
        warn(&format!("\n{diff}"));
    } else {
        print(&diff)?;
    }
    if !yes && io::stdin().is_terminal() && !confirmed()? {
        return Err(kept("nothing was changed".to_owned()));
    }
    let reply = put(client, &table, &tag).await.map_err(|failure| kept(failure.message))?;
    match reply.status {
        200..300 => {
            file.forget();
            print_reply::<Routes>(&reply, as_json, changed)
        }
        412 => Err(kept(
            "somebody else has changed the route table while you edited, and nothing was changed: see `llmgw ctl \
             routes get`, bring both together, and `llmgw ctl routes put` it"
                .to_owned(),
        )),
        _ => Err(kept(reply.failure().message)),
    }
}

fn confirmed() -> Result<bool, Failure> {
    print("make this change? [y/N] ")?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(Failure::run)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// Runs the editor on a file. It may hold arguments, so the shell takes it apart.
fn editor(path: &Path) -> Result<(), Failure> {
    let set = |name| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
    let editor = set("VISUAL").or_else(|| set("EDITOR")).unwrap_or_else(|| "vi".to_owned());
    let run = Command::new("sh").arg("-c").arg(format!("{editor} \"$1\"")).arg("sh").arg(path).status();
    let status =
        run.map_err(|error| Failure::run(format!("the editor `{editor}` cannot be run: {error}")))?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::run(format!(
        "the editor `{editor}` ended with {status} (set EDITOR to another); your text is in {}",
        path.display()
    )))
}

/// The file that is edited.
struct Draft {
    path: PathBuf,
}

impl Draft {
    fn new(text: &str) -> Result<Draft, Failure> {
        let (dir, pid) = (std::env::temp_dir(), std::process::id());
        for n in 0..100 {
            let path = dir.join(format!("llmgw-routes-{pid}-{n}.yaml"));
            let failed = |error| Failure::run(format!("{} cannot be written: {error}", path.display()));
            match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
                Ok(mut file) => {
                    file.write_all(text.as_bytes()).map_err(failed)?;
                    return Ok(Draft { path });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(failed(error)),
            }
        }
        Err(Failure::run(format!("{} holds too many drafts", dir.display())))
    }

    fn forget(&self) {
        // Left behind, it does no harm.
        let _ = std::fs::remove_file(&self.path);
    }
}
