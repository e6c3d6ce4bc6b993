//! The admin API over real sockets: a route table that outlives its process, and a stranger's view of the document.

use crate::client::{Client, chat};
use crate::ctl::ctl;
use crate::engine::{endpoints, sim};
use crate::gateway::{BINARY, Gateway, TempDir, config};
use rustix::process::Signal;
use std::path::Path;
use std::process::Command;

const ROUTES: &str = "routes: [{ model: from-file }]";

#[test]
fn route_table_survives_restart() {
    let engine = sim();
    let fleet = endpoints([&engine]);
    let dir = TempDir::new();
    let store = dir.path().join("store");
    let extra = format!("store: {{ path: \"{}\" }}\n{ROUTES}", store.display());
    let gateway = Gateway::start(&fleet, &extra);
    let table = dir.write("table.yaml", "[{ model: pub, backends: [{ served_model: m, weight: 1 }] }]");
    ctl(gateway.admin, &["routes", "put", &table.display().to_string()]).expect(0);
    let tag = |gateway: &Gateway| {
        let mut client = Client::connect(gateway.admin);
        client.send("GET /admin/v1/routes HTTP/1.1\r\nhost: localhost\r\n\r\n");
        client.answer().expect(200).header("etag").expect("a tag")
    };
    let before = tag(&gateway);
    // As hard as it gets: what was acknowledged is there.
    gateway.signal(Signal::KILL);
    drop(gateway);

    let gateway = Gateway::start(&fleet, &extra);
    let said = gateway.wait_log("stands over the configuration's routes");
    assert!(said.contains("routes.json") && said.contains("llmgw ctl routes reset"), "{said}");
    assert_eq!(tag(&gateway), before, "the same table has the same tag");
    let body = chat("").replace("\"m\"", "\"pub\"");
    gateway.chat(&body).expect(200);
    // A reload does not bring the file's back; a reset does, and it lasts.
    ctl(gateway.admin, &["reload"]).expect(0);
    assert_eq!(
        ctl(gateway.admin, &["routes", "get", "--output", "json"]).json()["routes"][0]["model"],
        "pub"
    );
    ctl(gateway.admin, &["routes", "reset"]).expect(0);
    assert_eq!(gateway.chat(&body).expect(404).error_code(), "model_not_found");
    gateway.signal(Signal::KILL);
    drop(gateway);
    let gateway = Gateway::start(&fleet, &extra);
    let routes = ctl(gateway.admin, &["routes", "get", "--output", "json"]).json();
    assert_eq!((&routes["routes"][0]["model"], &routes["source"]), (&"from-file".into(), &"config".into()));
    drop(gateway);

    // What cannot be understood is not taken for an empty table.
    std::fs::write(store.join("routes.json"), "{\"version\":1").expect("it can be written");
    let file = dir.write("server.yaml", &config(&fleet, &extra));
    let output = Command::new(BINARY).args(["server", "--config"]).arg(file).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("routes.json") && said.contains("move it away"), "{said}");
}

#[test]
fn the_admin_api_and_its_token_at_start() {
    let run = |yaml: &str, token: Option<&str>| {
        let dir = TempDir::new();
        let mut command = Command::new(BINARY);
        command
            .args(["server", "--config"])
            .arg(dir.write("server.yaml", yaml))
            .env_remove("LLMGW_ADMIN_TOKEN");
        token.map(|token| command.env("LLMGW_ADMIN_TOKEN", token));
        let output = command.output().expect("it starts");
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let yaml = config(&endpoints([&sim()]), "");
    for token in ["", "two words"] {
        let (code, said) = run(&yaml, Some(token));
        assert!(code == Some(2) && said.contains("LLMGW_ADMIN_TOKEN (admin.token_env)"), "{said}");
    }
    let gateway = Gateway::start(&endpoints([&sim()]), "");
    assert!(gateway.wait_log("is open to everyone on this machine").contains("LLMGW_ADMIN_TOKEN"));
    let taken = yaml.replace("admin_listen: 127.0.0.1:0", &format!("admin_listen: {}", gateway.admin));
    let (code, said) = run(&taken, None);
    assert!(code == Some(1) && said.contains("admin_listen") && said.contains("cannot be bound"), "{said}");
}

/// Requests made from the document, valid and not, against a live API: no answer that the document does not have, no
/// 5xx, nothing wrong that is taken.
#[test]
#[allow(clippy::print_stdout)] // why it is skipped
fn schemathesis_finds_nothing() {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../oracles/schemathesis");
    if !home.join("installed").exists() {
        let told = format!("{} is not there; `cargo xtask test` installs it", home.display());
        assert!(std::env::var_os("CI").is_none(), "{told}");
        println!("skipped: {told}");
        return;
    }
    let mut server = Command::new(BINARY);
    server.env("LLMGW_ADMIN_TOKEN", "right");
    let gateway = Gateway::start_by(server, &endpoints([&sim()]), "");
    let dir = TempDir::new();
    let settings = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oracles/schemathesis.toml");
    let output = Command::new(home.join("bin/schemathesis"))
        .arg("--config-file")
        .arg(settings)
        .args(["run", "--header", "Authorization: Bearer right", "--no-color"])
        .arg(format!("http://{}/admin/v1/openapi.json", gateway.admin))
        .current_dir(dir.path())
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    ctl(gateway.admin, &["status", "--token", "right"]).expect(0);
}
