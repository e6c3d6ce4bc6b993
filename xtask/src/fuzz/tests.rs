use super::*;
use std::os::unix::fs::PermissionsExt;

/// Runs a script in a target's place; the corpus stays as it is.
fn run(name: &str, script: &str) -> Outcome<String> {
    let (told, seeds) = run_and_keep(name, script, false);
    assert_eq!(seeds, ["seed"], "the corpus stays as it is");
    told
}

/// Runs a script in a target's place; what it tells, and the corpus after it.
fn run_and_keep(name: &str, script: &str, keep: bool) -> (Outcome<String>, Vec<String>) {
    let home = TempDir::new(&format!("fuzz-home-{name}")).expect("a folder");
    let seeds = home.path().join("corpus").join(name);
    std::fs::create_dir_all(&seeds).expect("a folder");
    std::fs::write(seeds.join("seed"), "x").expect("a file");
    let binary = home.path().join(name);
    std::fs::write(&binary, format!("#!/bin/sh\n{script}\n")).expect("a file");
    std::fs::set_permissions(&binary, std::fs::Permissions::from_mode(0o755)).expect("may be run");
    let outcome = Run::start(&binary, home.path(), name, 1).and_then(|run| run.finish(keep));
    let name = |path: PathBuf| path.file_name().expect("a name").to_string_lossy().into_owned();
    let mut names: Vec<String> = files(&seeds).into_iter().map(name).collect();
    names.sort();
    (outcome, names)
}

#[test]
fn what_reaches_new_code_is_kept_up_to_a_bound() {
    // Found: two small inputs, and one that does not fit any more.
    let merge = "if [ \"$1\" = -merge=1 ]; then cp \"$5\"/* \"$4\"; exit; fi";
    let find = "echo a > \"$1/a\"; echo b > \"$1/b\"; head -c 300000 /dev/zero > \"$1/large\"";
    let (told, corpus) = run_and_keep("keeping", &format!("{merge}; {find}"), true);
    assert!(told.expect("no fault").ends_with(", 2 kept"));
    assert_eq!(corpus, ["a", "b", "seed"]);
}

#[test]
fn a_quiet_run_tells_what_it_did() {
    let script = "touch \"$1/new\"; test -f \"$1/seed\" && echo 'stat::number_of_executed_units: 7'; echo 'stat::new_units_added: 2'";
    let told = run("quiet", script).expect("no fault");
    assert_eq!(told, "quiet: 7 runs, 2 inputs that reach new code, no fault");
}

#[test]
fn a_fault_tells_its_input_and_the_command_that_replays_it() {
    let script = "echo 'thread panicked: no'; echo 'artifact_prefix=x; Test unit written to fuzz/artifacts/f/crash-1'; exit 77";
    let told = run("faulty", script).expect_err("a fault");
    assert!(told.starts_with("thread panicked: no\n"), "{told}");
    assert!(told.contains("faulty failed on fuzz/artifacts/f/crash-1; replay it with"), "{told}");
    assert!(told.ends_with("/faulty fuzz/artifacts/f/crash-1"), "{told}");
}

#[test]
fn a_fault_without_an_input_tells_how_it_ended() {
    assert!(run("lost", "exit 3").expect_err("a fault").contains("and left no input"));
}
