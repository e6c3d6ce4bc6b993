//! Changes to the code that a test must notice: all that cargo-mutants makes of the decisions, and by hand the
//! pitfalls of routing that people fall into.
//!
//! A pitfall is a small change in a copy of the tree. The tests named for it pass in the copy as it is, and one of
//! them fails with the change; else the run fails.

use crate::proc::{self, Outcome, cargo};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The decisions. Left out: `scan/`, which reads bodies and is held to by fuzzing and by readers written by others.
const DECISIONS: [&str; 8] =
    ["budget", "lib", "load", "pipeline", "prefix", "ring", "snapshot", "snapshot/routes"];

/// cargo-mutants over the decision code; a survivor fails the run.
pub fn mutants() -> Outcome {
    if !proc::works("cargo-mutants", &["mutants", "--version"]) {
        println!("skipped: cargo-mutants is not installed (cargo install --locked cargo-mutants)");
        return Ok(());
    }
    let mut command = Command::new("cargo-mutants");
    command.args(["mutants", "--package", "llmgw-routing", "--no-shuffle", "--jobs", "1"]);
    for part in DECISIONS {
        command.args([
            "--file",
            &format!("routing/src/{part}.rs"),
            "--file",
            &format!("routing/src/{part}/*.rs"),
        ]);
    }
    command.args(["--timeout", "120", "--output"]).arg(proc::target_dir().join("mutants"));
    command.args(["--", "--lib"]);
    // Properties have one seed a run, and enough cases for what they must notice; symbols are for people.
    command.env("PROPTEST_CASES", "64").env("CARGO_PROFILE_TEST_DEBUG", "0");
    command.env("CARGO_PROFILE_DEV_DEBUG", "0").env_remove("CARGO_TARGET_DIR");
    proc::run(&mut command)
}

/// A pitfall, as a change in one file.
struct Pitfall {
    /// Its mutant in the catalogue of routing pitfalls.
    id: &'static str,
    what: &'static str,
    file: &'static str,
    /// Stands in the file exactly once.
    from: &'static str,
    to: &'static str,
    tests: &'static [Test],
}

/// Arguments of `cargo test`, and a test's name.
type Test = (&'static [&'static str], &'static str);

const ROUTING: &[&str] = &["-p", "llmgw-routing", "--lib"];
const CONTROL: &[&str] = &["-p", "llmgw-controlplane", "--lib"];
const E2E: &[&str] = &["-p", "llmgw", "--test", "e2e"];
const SIMULATION: &[&str] = &["-p", "llmgw-dataplane", "--features", "simtest", "--test", "simulation"];

/// Those of cascades and of disaggregated serving come with them.
const PITFALLS: &[Pitfall] = &[
    Pitfall {
        id: "s01",
        what: "a worker is kept at exactly its deadline",
        file: "controlplane/src/registry/members.rs",
        from: "if now.saturating_sub(member.last) >= lifetime {",
        to: "if now.saturating_sub(member.last) > lifetime {",
        tests: &[(CONTROL, "hand_example")],
    },
    Pitfall {
        id: "s02",
        what: "load is what the gateway has in flight, without the engine's queue",
        file: "routing/src/load.rs",
        from: "let sum = inflight.saturating_add(queue[index].load(Ordering::Relaxed)).min(OUT - 1);",
        to: "let sum = inflight.saturating_add(queue[index].load(Ordering::Relaxed) & 0).min(OUT - 1);",
        tests: &[(CONTROL, "hand_example")],
    },
    Pitfall {
        id: "s03",
        what: "affinity without a bound on load",
        file: "routing/src/pipeline/pick.rs",
        from: "|node| u64::from(load(node)) < bound);",
        to: "|node| u64::from(load(node)) < bound || true);",
        tests: &[(ROUTING, "affinity_keeps_prefix_together")],
    },
    Pitfall {
        id: "s04",
        what: "a request is tried again after its first byte",
        file: "dataplane/src/shard/relay.rs",
        from: "_ if ex.committed() && !crate::planted!(RetryAfterCommit) => {",
        to: "_ if ex.committed() && ex.bytes_out == u64::MAX => {",
        tests: &[(E2E, "no_splice_after_first_byte")],
    },
    Pitfall {
        id: "s05",
        what: "an engine's 503 goes to the client",
        file: "dataplane/src/shard/upstream.rs",
        from: "if matches!(head.status, 429 | 503) {",
        to: "if matches!(head.status, 429) {",
        tests: &[(E2E, "failover_before_first_byte")],
    },
    Pitfall {
        id: "s06",
        what: "the same worker is tried again",
        file: "dataplane/src/shard/dispatch.rs",
        from: "dispatch.exclude.push(slot);",
        to: "",
        tests: &[(E2E, "failover_before_first_byte")],
    },
    Pitfall {
        id: "s07",
        what: "the weights of a canary are ignored",
        file: "routing/src/snapshot/routes.rs",
        from: "upto += weight;",
        to: "upto += weight * 0.0 + self.total / self.backends.len() as f64;",
        tests: &[(ROUTING, "canary_split")],
    },
    Pitfall {
        id: "s10",
        what: "the public name goes to the engine",
        file: "dataplane/src/shard/dispatch.rs",
        from: "if *fields.model != *model.name {",
        to: "if *fields.model != *model.name && now == u64::MAX {",
        tests: &[(E2E, "model_rewritten_for_backend")],
    },
    Pitfall {
        id: "s14",
        what: "X-TL-Route goes to everyone",
        file: "dataplane/src/shard/relay.rs",
        from: "if ex.settings.debug_headers {\n                put_header(out, \"x-tl-route\"",
        to: "if !ex.settings.debug_headers || true {\n                put_header(out, \"x-tl-route\"",
        tests: &[(SIMULATION, "route_header_only_for_debug")],
    },
    Pitfall {
        id: "s15",
        what: "a worker that says it drains gets work",
        file: "controlplane/src/registry/members.rs",
        from: "loads.set_leaving(slot.index(), self.status.draining);",
        to: "loads.set_leaving(slot.index(), self.status.draining && self.last == 0);",
        tests: &[
            (CONTROL, "registry_over_grpc"),
            (CONTROL, "a_worker_that_says_it_drains_gets_nothing_at_once"),
        ],
    },
    Pitfall {
        id: "s15",
        what: "a drained model gets work",
        file: "routing/src/load.rs",
        from: "self.update_health(index, |word| Some(word | DRAINED));",
        to: "self.update_health(index, |word| Some(word | DRAINED * 0));",
        tests: &[(CONTROL, "registry_over_grpc"), (CONTROL, "admin_routes_workers_drain")],
    },
    Pitfall {
        id: "s17",
        what: "an unknown model is 503",
        file: "dataplane/src/shard/dispatch.rs",
        from: "self.reject(token, &ApiError::model_not_found(&fields.model));",
        to: "self.reject(token, &unavailable(NoEndpoint::Unserved, now));",
        tests: &[(E2E, "model_not_found_and_no_capacity")],
    },
    Pitfall {
        id: "s19",
        what: "a change of the routes asks for no If-Match",
        file: "controlplane/src/admin/etag.rs",
        from: "(false, ..) => Unmet::Missing,",
        to: "(false, ..) => return Ok(()),",
        tests: &[(CONTROL, "admin_routes_workers_drain")],
    },
];

/// Makes each pitfall in a copy of the tree; tests must notice.
pub fn pitfalls() -> Outcome {
    let copy = Copy::make()?;
    let all: BTreeSet<Test> = PITFALLS.iter().flat_map(|pitfall| pitfall.tests.iter().copied()).collect();
    println!("== as it is");
    for test in &all {
        if !copy.passes(*test)? {
            return Err(format!("{} fails without any change", test.1));
        }
    }
    let mut survived = Vec::new();
    for pitfall in PITFALLS {
        println!("== {}: {}", pitfall.id, pitfall.what);
        let killer = copy.with(pitfall, || {
            for test in pitfall.tests {
                if !copy.passes(*test)? {
                    return Ok(Some(test.1));
                }
            }
            Ok(None)
        })?;
        match killer {
            Some(test) => println!("{}: killed by {test}", pitfall.id),
            None => survived.push(format!("{} ({})", pitfall.id, pitfall.what)),
        }
    }
    println!("{} pitfalls, {} killed", PITFALLS.len(), PITFALLS.len() - survived.len());
    if survived.is_empty() { Ok(()) } else { Err(format!("survived: {}", survived.join(", "))) }
}

/// A copy of the tree with a target folder of its own, both kept, so that a second run builds little.
struct Copy {
    tree: PathBuf,
    target: PathBuf,
}

impl Copy {
    /// Every file that git knows or would add; one that is already there with the same text is left alone.
    fn make() -> Outcome<Copy> {
        let home = proc::target_dir().join("pitfalls");
        let copy = Copy { tree: home.join("tree"), target: home.join("target") };
        let list = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
        let files = proc::capture(Command::new("git").args(list))?;
        for file in files.split('\0').filter(|file| Path::new(file).is_file()) {
            let text = std::fs::read(file).map_err(|e| format!("cannot read {file}: {e}"))?;
            let to = copy.tree.join(file);
            if std::fs::read(&to).is_ok_and(|old| old == text) {
                continue;
            }
            let made =
                to.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::write(&to, text));
            made.map_err(|e| format!("cannot write {}: {e}", to.display()))?;
        }
        Ok(copy)
    }

    /// Does `then` with the pitfall made, and takes it back.
    fn with<T>(&self, pitfall: &Pitfall, then: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
        let path = self.tree.join(pitfall.file);
        let text =
            std::fs::read_to_string(&path).map_err(|e| format!("cannot read {}: {e}", pitfall.file))?;
        let write = |text: &str| {
            std::fs::write(&path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
        };
        write(&pitfall.made_in(&text)?)?;
        let done = then();
        write(&text)?;
        done
    }

    fn cargo(&self, (package, name): Test, more: &[&str]) -> Command {
        let mut command = cargo();
        command.arg("test").args(package).args(more).arg(name);
        command.current_dir(&self.tree).env("CARGO_TARGET_DIR", &self.target);
        command.env("CARGO_PROFILE_TEST_DEBUG", "0").env("CARGO_PROFILE_DEV_DEBUG", "0");
        command
    }

    /// Whether the test passes; that it cannot be built, or is not there, is an error.
    fn passes(&self, test: Test) -> Outcome<bool> {
        proc::run(self.cargo(test, &["--no-run", "--quiet"]).env("RUSTFLAGS", "-Awarnings"))?;
        let mut ran = 0;
        let mut command = self.cargo(test, &["--quiet"]);
        let passed = proc::watch(command.env("RUSTFLAGS", "-Awarnings"), |line| {
            let numbers = line.strip_prefix("running ").and_then(|rest| rest.split(' ').next());
            ran += numbers.and_then(|n| n.parse::<u32>().ok()).unwrap_or(0);
        })?;
        if ran == 0 {
            return Err(format!("there is no test called {}", test.1));
        }
        Ok(passed)
    }
}

impl Pitfall {
    fn made_in(&self, text: &str) -> Outcome<String> {
        match text.matches(self.from).count() {
            1 => Ok(text.replacen(self.from, self.to, 1)),
            n => Err(format!("{}: {} has `{}` {n} times; follow the source", self.id, self.file, self.from)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So that a change of the source is noticed here and not in the next long run.
    #[test]
    fn every_pitfall_can_be_made() {
        for pitfall in PITFALLS {
            let text = std::fs::read_to_string(proc::root().join(pitfall.file)).unwrap_or_default();
            let made = pitfall.made_in(&text);
            assert!(made.as_ref().is_ok_and(|made| *made != text), "{made:?}");
        }
    }
}
