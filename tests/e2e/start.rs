//! What the command line says about configurations, before anything serves.

use crate::client::chat;
use crate::engine::{endpoints, sim};
use crate::gateway::{BINARY, Gateway, TempDir, config, endpoint};
use std::process::Command;

/// Exit code, standard output and standard error of a run.
fn run(args: &[&str], yaml: &str) -> (Option<i32>, String, String) {
    let dir = TempDir::new();
    let file = dir.write("server.yaml", yaml);
    let output = Command::new(BINARY).args(["server", "--config"]).arg(file).args(args).output();
    let output = output.expect("the built binary starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn check_config_says_all_that_is_wrong() {
    let fleet = [endpoint("e0", "http://127.0.0.1:9001")];
    let (code, out, err) = run(&["--check-config"], &config(&fleet, ""));
    assert!(code == Some(0) && out.ends_with("server.yaml: ok\n"), "{out}{err}");

    let wrong = config(&fleet, "timeouts: { conect: 2s }\nrouter: { retries: 99 }");
    let line = |text: &str| 1 + wrong.lines().position(|line| line.contains(text)).expect("a line");
    let (code, _, err) = run(&["--check-config"], &wrong);
    assert_eq!(code, Some(2), "{err}");
    for expected in [
        format!("server.yaml:{}:13: timeouts.conect: unknown key; did you mean `connect`?", line("conect")),
        format!("server.yaml:{}:", line("retries")),
    ] {
        assert!(err.contains(&expected), "{expected} in {err}");
    }
    // Serving takes no other view of it.
    let (code, _, err) = run(&[], &wrong);
    assert!(code == Some(2) && err.contains("did you mean `connect`?"), "{err}");
}

/// A variable that is none of ours need not be text.
#[test]
fn an_environment_that_is_not_text_is_no_matter() {
    use std::os::unix::ffi::OsStrExt;
    let dir = TempDir::new();
    let file = dir.write("server.yaml", &config(&[endpoint("e0", "http://127.0.0.1:9001")], ""));
    let mut command = Command::new(BINARY);
    command.env("LLMGW_TEST_BYTES", std::ffi::OsStr::from_bytes(b"\xff\xfe"));
    let output =
        command.args(["server", "--check-config", "--config"]).arg(file).output().expect("it starts");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn keys_that_do_not_exist_cannot_be_required() {
    let fleet = [endpoint("e0", "http://127.0.0.1:9001")];
    for yaml in [
        config(&fleet, "").replace("required: false", "required: true"),
        config(&fleet, "").replace("auth: { required: false }\n", ""),
    ] {
        let (code, _, err) = run(&[], &yaml);
        assert!(code == Some(2) && err.contains("no API keys yet"), "{err}");
    }
    let open = config(&fleet, "").replacen("listen: 127.0.0.1:0", "listen: 0.0.0.0:0", 1);
    let (code, _, err) = run(&[], &open);
    assert!(code == Some(2) && err.contains("listen is 0.0.0.0:0"), "{err}");
}

#[test]
fn wrong_usage_is_exit_2() {
    let dir = TempDir::new();
    let missing = dir.write("there.yaml", "").with_file_name("missing.yaml");
    let output = Command::new(BINARY).args(["server", "--config"]).arg(&missing).output().expect("it starts");
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("missing.yaml"));
    let output = Command::new(BINARY).args(["serve"]).output().expect("it starts");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn an_address_in_use_is_named() {
    let engine = sim();
    let taken = engine.local_addr();
    let yaml = config(&endpoints([&engine]), "");
    let yaml = yaml.replace("health_listen: 127.0.0.1:0", &format!("health_listen: {taken}"));
    let (code, _, err) = run(&[], &yaml);
    assert!(code == Some(1) && err.contains(&taken.to_string()), "{code:?} {err}");
}

#[test]
fn connections_that_open_files_do_not_allow_are_told() {
    let engine = sim();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 300 && exec \"$0\" \"$@\"", BINARY]);
    // 300 descriptors, 256 of them kept: 22 connections with an engine connection each.
    let gateway = Gateway::start_by(command, &endpoints([&engine]), "limits: { max_connections: 10000 }");
    let said = gateway.wait_log("limits.max_connections 10000");
    assert!(said.contains("22 connections a shard"), "{said}");
    let clients: Vec<_> = (0..22).map(|_| gateway.connect()).collect();
    gateway.wait_metric("llmgw_connections{side=\"client\"}", |n| n == 22.0);
    assert_eq!(gateway.connect().answer().expect(503).error_code(), "no_capacity");
    drop(clients);
    gateway.wait_metric("llmgw_connections{side=\"client\"}", |n| n == 0.0);
    gateway.chat(&chat("")).expect(200);
}

#[test]
fn environment_wins_over_the_file() {
    let engine = sim();
    let mut command = Command::new(BINARY);
    command.env("LLMGW_LIMITS__MAX_BODY", "1KiB");
    let gateway = Gateway::start_by(command, &endpoints([&engine]), "limits: { max_body: 1MiB }");
    gateway.chat(&chat(&format!(r#","pad":"{}""#, "x".repeat(1024)))).expect(413);
}
