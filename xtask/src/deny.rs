//! `cargo xtask deny`: licences, banned crates, sources and, where cargo-deny is installed, all that it checks,
//! advisories included.
//!
//! The built-in part reads the same `deny.toml`. It is what CI relies on: cargo-deny has no prebuilt crate, and
//! building it takes four minutes of a core, more than all the other checks.

use crate::proc::{self, Outcome, cargo};

#[cfg(test)]
mod tests;

/// Checks every dependency.
pub fn run() -> Outcome {
    let deny = std::fs::read_to_string("deny.toml").map_err(|e| format!("cannot read deny.toml: {e}"))?;
    let packages = packages()?;
    let wrong = check(&packages, &allowed(&deny), &banned(&deny));
    for line in &wrong {
        println!("error: {line}");
    }
    println!("deny: {} packages, {} not allowed", packages.len(), wrong.len());
    if proc::has_cargo("deny") {
        if proc::run(cargo().args(["deny", "--locked", "check", "bans", "licenses", "sources"])).is_err() {
            return Err("cargo-deny found something".to_owned());
        }
        advisories()?;
    } else {
        println!("skipped: advisories, for want of cargo-deny (cargo install --locked cargo-deny)");
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("{} packages are not allowed", wrong.len())) }
}

/// Advisories need a database from the network: fetched where it can be, skipped with the reason where not.
fn advisories() -> Outcome {
    if let Err(error) = proc::capture(cargo().args(["deny", "fetch", "db"])) {
        println!("skipped: advisories, the database cannot be fetched: {error}");
        return Ok(());
    }
    proc::run(cargo().args(["deny", "--locked", "check", "--disable-fetch", "advisories"]))
}

/// A dependency as far as it matters here.
#[derive(Debug)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    own: bool,
    /// Where it comes from, if neither from crates.io nor from us.
    source: Option<String>,
}

/// What is built: the lock also names what only features that are off would need.
fn packages() -> Outcome<Vec<Package>> {
    let host = host()?;
    let mut command = cargo();
    command.args([
        "tree",
        "--workspace",
        "--locked",
        "--edges",
        "all",
        "--target",
        &host,
        "--prefix",
        "none",
    ]);
    command.args(["--format", "{p}|{l}"]);
    let told = proc::capture(&mut command)?;
    let mut packages: Vec<Package> = told.lines().filter_map(package).collect();
    packages.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
    packages.dedup_by(|a, b| a.name == b.name && a.version == b.version);
    if packages.is_empty() { Err("cargo tree lists no packages".to_owned()) } else { Ok(packages) }
}

/// A line like `name v1.2.3 (proc-macro)|MIT`; those of ours name their folder.
fn package(line: &str) -> Option<Package> {
    let line = line.trim_end().trim_end_matches(" (*)");
    let (about, license) = line.split_once('|')?;
    let mut words = about.split(' ');
    let (name, version) = (words.next()?.to_owned(), words.next()?.trim_start_matches('v').to_owned());
    let license = Some(license.trim().to_owned()).filter(|license| !license.is_empty());
    let own = about.contains("(/");
    // Of crates.io nothing is said.
    let said = about.rsplit_once(" (").map(|(_, rest)| rest.trim_end_matches(')'));
    let source = said.filter(|said| !own && *said != "proc-macro").map(str::to_owned);
    Some(Package { name, version, license, own, source })
}

fn host() -> Outcome<String> {
    let told = proc::capture(std::process::Command::new("rustc").arg("-vV"))?;
    let host = told.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc -vV names no host".to_owned())
}

/// What is wrong, one line a package.
fn check(packages: &[Package], allowed: &[String], banned: &[(String, String)]) -> Vec<String> {
    let mut wrong = Vec::new();
    for package in packages {
        let id = format!("{} {}", package.name, package.version);
        if let Some(source) = &package.source {
            wrong.push(format!("{id} comes from {source}, not from crates.io"));
        }
        if let Some((_, reason)) = banned.iter().find(|(name, _)| *name == package.name) {
            wrong.push(format!("{id} is banned: {reason}"));
        }
        match &package.license {
            Some(license) if satisfied(license, allowed) => {}
            Some(license) => wrong.push(format!("{id}: `{license}` is not in the allow list of deny.toml")),
            None if package.own => {}
            None => wrong.push(format!("{id} names no licence")),
        }
    }
    wrong
}

/// Whether an SPDX expression can be met by the allowed licences.
fn satisfied(expression: &str, allowed: &[String]) -> bool {
    // The old spelling of OR.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let met = any_of(&words, &mut at, allowed);
    met && at == words.len()
}

fn any_of(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let mut met = all_of(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        met |= all_of(words, at, allowed);
    }
    met
}

fn all_of(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let mut met = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        met &= one(words, at, allowed);
    }
    met
}

fn one(words: &[&str], at: &mut usize, allowed: &[String]) -> bool {
    let Some(&word) = words.get(*at) else { return false };
    *at += 1;
    if word == "(" {
        let met = any_of(words, at, allowed);
        let closed = words.get(*at) == Some(&")");
        *at += 1;
        return met && closed;
    }
    let mut name = word.to_owned();
    if words.get(*at) == Some(&"WITH") {
        name = format!("{word} WITH {}", words.get(*at + 1).unwrap_or(&""));
        *at += 2;
    }
    allowed.contains(&name)
}

/// The licences that deny.toml allows.
fn allowed(deny: &str) -> Vec<String> {
    let lines = section(deny, "licenses").skip_while(|line| !line.starts_with("allow = ["));
    let list = lines.take_while(|line| !line.starts_with(']'));
    list.filter_map(|line| line.split('"').nth(1)).map(str::to_owned).collect()
}

/// The crates that deny.toml bans, each with its reason.
pub fn banned(deny: &str) -> Vec<(String, String)> {
    let quoted = |line: &str, key: &str| {
        let rest = line.split_once(&format!("{key} = \""))?.1;
        Some(rest.split_once('"')?.0.to_owned())
    };
    let row = |line: &str| Some((quoted(line, "crate")?, quoted(line, "reason").unwrap_or_default()));
    section(deny, "bans").filter_map(row).collect()
}

fn section<'a>(toml: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let head = format!("[{name}]");
    let lines = toml.lines().map(str::trim).skip_while(move |line| *line != head).skip(1);
    lines
        .take_while(|line| !(line.starts_with('[') && line.ends_with(']')))
        .filter(|line| !line.starts_with('#'))
}
