//! `llmgw ctl` against a running gateway: tables, exit codes, and editing the route table.

use crate::client::chat;
use crate::engine::{endpoints, sim};
use crate::gateway::{BINARY, Gateway, TempDir};
use serde_json::Value;
use std::net::SocketAddr;
use std::process::{Command, Stdio};

/// What a run came to.
#[derive(Debug)]
pub struct Run {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Run {
    #[track_caller]
    pub fn expect(self, code: i32) -> Run {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
        self
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }
}

/// `llmgw ctl` with these arguments, at a gateway.
pub fn command(admin: SocketAddr, args: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.arg("ctl").args(args).env("LLMGW_ADMIN", format!("http://{admin}"));
    command.env_remove("LLMGW_TOKEN").env_remove("VISUAL").stdin(Stdio::null());
    command
}

pub fn finish(mut command: Command) -> Run {
    let output = command.output().expect("the built binary starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Run { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
}

pub fn ctl(admin: SocketAddr, args: &[&str]) -> Run {
    finish(command(admin, args))
}

const TABLE: &str = "routes:\n  - { model: pub, aliases: [p, org/q], backends: [{ served_model: m, weight: 0.75 }, \
                     { served_model: n, weight: 0.25 }] }\n  - { model: plain }\n";

#[test]
fn what_it_shows() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "");
    let ctl = |args: &[&str]| ctl(gateway.admin, args).expect(0);
    let address = engine.local_addr().to_string();
    let plain = |text: &str| {
        // Columns are as wide as their widest cell.
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        text.replace(&address, "ADDRESS").lines().map(words).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(
        plain(&ctl(&["workers"]).out),
        "ID MODEL ROLE ADDRESS STATE IN FLIGHT QUEUED RUNNING KV FREE BEAT\n\
         e0 m unified ADDRESS ready 0 0 0 - -\n\
         1 engine, 1 ready; route epoch 1"
    );
    assert_eq!(ctl(&["workers", "--output", "json"]).json()["data"][0]["worker_id"], "e0");
    assert_eq!(
        plain(&ctl(&["workers", "--model", "other"]).out).lines().last(),
        Some("0 engines, 0 ready; route epoch 1")
    );

    let dir = TempDir::new();
    let file = dir.write("table.yaml", TABLE);
    assert_eq!(ctl(&["routes", "put", &file.display().to_string()]).out, "2 routes, epoch 2\n");
    assert_eq!(
        plain(&ctl(&["routes", "get"]).out),
        "MODEL ALIASES TARGETS SERVED BY\n\
         pub p, org/q unified m 0.75, n 0.25\n\
         plain - unified plain\n\
         2 routes, epoch 2, set through the admin API"
    );
    // What it prints, it reads.
    let got = ctl(&["routes", "get", "--output", "json"]).out;
    let file = dir.write("table.json", &got);
    assert_eq!(ctl(&["routes", "put", &file.display().to_string()]).out, "2 routes, epoch 3\n");

    let drained = ctl(&["drain", "m", "--deadline", "5s"]).out;
    assert_eq!(drained, "m takes no new work; 1 engine may finish until the deadline\n");
    assert!(plain(&ctl(&["workers"]).out).contains("ADDRESS drained"));
    assert_eq!(gateway.chat(&chat("")).expect(503).error_code(), "no_capacity");
    assert!(plain(&ctl(&["status"]).out).contains("\ndrained m\n"));
    assert_eq!(ctl(&["undrain", "m"]).out, "m takes work again on 1 engine\n");
    gateway.chat(&chat("")).expect(200);

    let told = plain(&ctl(&["route-explain", "--model", "m", "--prompt", "hello"]).out);
    for line in
        ["m -> m (no route), policy affinity, priority 0", "e0 0 0 0 1 - picked", "pick: e0, reason affinity"]
    {
        assert!(told.lines().any(|found| found == line), "{line} in {told}");
    }

    let status = plain(&ctl(&["status"]).out);
    for line in
        ["ready yes", "shards 1", "engines 1", "routes 2, epoch 3, set through the admin API", "drained -"]
    {
        assert!(status.lines().any(|found| found == line), "{line} in {status}");
    }
    let config = plain(&ctl(&["config"]).out);
    for line in ["limits.max_connections 4096 line ", "timeouts.connect 2s default", "endpoints[0].id e0"] {
        assert!(config.lines().any(|found| found.starts_with(line)), "{line} in {config}");
    }
    assert!(ctl(&["reload"]).out.starts_with("configuration reloaded, version "));
    assert_eq!(ctl(&["routes", "reset"]).out, "0 routes, epoch 4\n");
}

#[test]
fn what_it_says_when_it_cannot() {
    let engine = sim();
    let gateway = Gateway::start(&endpoints([&engine]), "");
    let dir = TempDir::new();
    let write = |name: &str, text: &str| dir.write(name, text).display().to_string();
    let (bad, none) = (write("bad.yaml", "routes: [{ model: m"), write("none.yaml", "endpoints: []"));
    let wrong = write("wrong.yaml", "- { model: c, cascade: [{ model: a }, { model: b }] }");
    let unknown = write("unknown.yaml", "- { model: c, modle: d }");
    for (args, code, said) in [
        (&["route-explain", "--model", "nobody"][..], 1, "nobody` (404 model_not_found)"),
        (&["drain", "nobody"], 1, "nobody` (404 model_not_found)"),
        (&["routes", "put", &wrong], 1, "routes[0].cascade[0].accept_if: every step but the last needs one"),
        (&["routes", "put", &unknown], 1, "routes[0].modle: unknown field `modle`"),
        (&["routes", "put", &wrong, "--if-match", "\"1-0\""], 1, "412 etag_mismatch"),
        (&["routes", "put", &bad], 2, "bad.yaml: neither YAML nor JSON"),
        (&["routes", "put", &none], 2, "there is no `routes` in it"),
        (&["routes", "put", "no-such-file"], 2, "no-such-file cannot be read"),
        (&["drain", "m", "--deadline", "2h"], 2, "at most 1h"),
        (&["drain", "m", "--deadline", "5"], 2, "no unit"),
        (&["worker"], 2, "workers"),
        (&["--admin", "https://gw:1", "workers"], 2, "plain http"),
        (&["--admin", "localhost", "workers"], 2, "is not http://host:port"),
    ] {
        let run = ctl(gateway.admin, args);
        assert!(run.code == Some(code) && run.err.contains(said), "{args:?}: {run:?}");
        assert!(run.out.is_empty(), "{args:?}: {run:?}");
    }
    let nobody = { std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port") };
    let run = ctl(nobody, &["status"]).expect(1);
    assert!(run.err.contains(&format!("no admin API at http://{nobody}: ")), "{run:?}");
    assert!(run.err.contains("--admin URL or LLMGW_ADMIN says where"), "{run:?}");
    // Something else listens there.
    let run = ctl(engine.local_addr(), &["status"]).expect(1);
    assert!(run.err.contains("is no admin API of llmgw"), "{run:?}");
    // A file that is wrong is told as a reload would log it, and changes nothing.
    gateway.write_config("endpoints: [{ id: e }]\nauth: { required: false }\n");
    let run = ctl(gateway.admin, &["reload"]).expect(1);
    assert!(run.err.contains("server.yaml:1:13: endpoints[0]: `url` is missing"), "{run:?}");
}

#[test]
fn tokens() {
    let engine = sim();
    let mut server = Command::new(BINARY);
    server.env("LLMGW_ADMIN_TOKEN", "right");
    let gateway = Gateway::start_by(server, &endpoints([&engine]), "");
    let run = ctl(gateway.admin, &["status"]).expect(1);
    assert!(run.err.contains("--token T or LLMGW_TOKEN gives it (401 invalid_api_key)"), "{run:?}");
    ctl(gateway.admin, &["status", "--token", "wrong"]).expect(1);
    ctl(gateway.admin, &["status", "--token", "right"]).expect(0);
    ctl(gateway.admin, &["--token", "right", "routes", "get"]).expect(0);
    let mut by_env = command(gateway.admin, &["status"]);
    by_env.env("LLMGW_TOKEN", "right");
    finish(by_env).expect(0);
    assert!(gateway.metric("llmgw_admin_requests_total{route=\"status\",status=\"401\"}") >= 2.0);
}

#[test]
fn edits_are_made_only_on_what_was_seen() {
    let gateway = Gateway::start(&endpoints([&sim()]), "");
    let dir = TempDir::new();
    let table = dir.write("table.yaml", TABLE).display().to_string();
    ctl(gateway.admin, &["routes", "put", &table]).expect(0);
    let edit = |editor: &str| {
        let mut command = command(gateway.admin, &["routes", "edit", "--yes"]);
        command.env("EDITOR", editor).env("TMPDIR", dir.path());
        finish(command)
    };
    let drafts = || {
        let files =
            std::fs::read_dir(dir.path()).expect("the folder").map(|file| file.expect("a file").path());
        files.filter(|path| path.display().to_string().contains("llmgw-routes-")).collect::<Vec<_>>()
    };
    assert_eq!(edit("true").expect(0).out, "nothing changed\n");
    let run = edit("sed -i s/plain/fancy/").expect(0);
    assert!(
        run.out.contains("\n-") && run.out.contains("\n+") && run.out.contains("fancy"),
        "a diff: {run:?}"
    );
    assert!(run.out.ends_with("2 routes, epoch 3\n"), "{run:?}");
    assert_eq!(drafts(), Vec::<std::path::PathBuf>::new(), "what was taken is not kept");

    // Somebody is quicker.
    let quicker = format!("{BINARY} ctl routes put {table} > /dev/null && sed -i s/fancy/mine/");
    let run = edit(&quicker).expect(1);
    assert!(run.err.contains("somebody else has changed the route table"), "{run:?}");
    let kept = drafts();
    assert!(kept.len() == 1 && run.err.contains(&kept[0].display().to_string()), "{run:?}");
    assert!(std::fs::read_to_string(&kept[0]).expect("the draft").contains("mine"));
    std::fs::remove_file(&kept[0]).expect("the draft");

    // What is refused is kept too.
    let run = edit("sed -i s/0.75/0.5/").expect(1);
    assert!(run.err.contains("routes[0].backends: the weights sum to 0.75"), "{run:?}");
    assert_eq!(drafts().len(), 1);
    let run = edit("false").expect(1);
    assert!(run.err.contains("the editor `false` ended"), "{run:?}");
    assert_eq!(ctl(gateway.admin, &["routes", "get", "--output", "json"]).json()["route_epoch"], 4);
}

#[test]
fn a_watch_goes_on_until_nobody_reads() {
    use std::io::{BufRead, BufReader};
    let gateway = Gateway::start(&endpoints([&sim()]), "");
    let mut command = command(gateway.admin, &["workers", "--watch", "100ms", "--output", "json"]);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    for _ in 0..3 {
        let line = lines.next().expect("another").expect("text");
        assert!(line.contains("\"worker_id\":\"e0\""), "{line}");
    }
    drop(lines);
    assert_eq!(child.wait().expect("it ends").code(), Some(0), "by itself");
}

#[test]
fn completions_and_manual_pages() {
    let run = |args: &[&str]| {
        let mut command = Command::new(BINARY);
        command.args(args);
        finish(command).expect(0).out
    };
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        assert!(run(&["completions", shell]).contains("route-explain"), "{shell}");
    }
    assert!(run(&["man"]).contains(".TH llmgw 1"));
    let dir = TempDir::new();
    run(&["man", "--dir", &dir.path().display().to_string()]);
    let page = std::fs::read_to_string(dir.path().join("llmgw-ctl-routes-put.1")).expect("a page a command");
    assert!(page.contains("ETAG"), "{page}");
}
