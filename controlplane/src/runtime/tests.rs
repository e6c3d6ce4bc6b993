use super::{ControlPlane, Parts, ReloadError, StartError};
use crate::admin::Access;
use crate::config::{Config, DriverChoice};
use crate::publisher::PublishError;
use llmgw_dataplane::shared::{Shared, record_ring};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const HEAD: &str = "listen: '127.0.0.1:0'\nhealth_listen: '127.0.0.1:0'\nadmin_listen: '127.0.0.1:0'\n\
                    registry_listen: '127.0.0.1:0'\nauth: { required: false }\nlog: { level: error }\n";

/// A file that goes away with its value.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("llmgw-{}-{name}.yaml", std::process::id()));
        std::fs::write(&path, format!("{HEAD}{text}")).unwrap();
        File(path)
    }
    fn write(&self, text: &str) {
        std::fs::write(&self.0, format!("{HEAD}{text}")).unwrap();
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn parts(path: &Path) -> Parts {
    let config = Config::load(path, []).unwrap().config;
    let consumers = vec![record_ring().1];
    Parts {
        config,
        warnings: Vec::new(),
        path: Some(path.to_owned()),
        consumers,
        max_connections: 64,
        access: Access::Loopback,
    }
}

fn start(file: &File) -> (ControlPlane, Arc<Shared<()>>) {
    ControlPlane::start::<()>(parts(&file.0)).unwrap()
}

fn get(address: SocketAddr, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

const ONE: &str = "endpoints: [{ id: a, model: m, url: 'http://127.0.0.1:9' }]\n";
const TWO: &str = "endpoints: [{ id: a, model: m, url: 'http://127.0.0.1:9' }, \
                   { id: b, model: n, url: 'http://127.0.0.1:9' }]\n";

#[test]
fn it_starts_reloads_and_ends() {
    let file = File::new("reload", ONE);
    let (control, shared) = start(&file);
    assert!(get(control.health_address(), "/healthz").starts_with("HTTP/1.1 200 "));
    assert_eq!(shared.snapshot.load().settings.max_connections, 64, "what the open files allow");
    let first = Arc::clone(&shared.snapshot.load().endpoints[0]);
    file.write(&format!("{TWO}limits: {{ max_headers: 9 }}\nrouter: {{ retry_budget: 0.5 }}\n"));
    assert!(control.reload());
    let snapshot = shared.snapshot.load_full();
    assert_eq!((snapshot.version, snapshot.settings.max_headers), (2, 9));
    assert!(Arc::ptr_eq(&first, &snapshot.endpoints[0]), "an unchanged endpoint goes on");
    assert!(snapshot.models.contains_key("n"));
    let metrics = get(control.health_address(), "/metrics");
    assert!(metrics.contains("\nllmgw_config_reloads_total{result=\"taken\"} 1\n"), "{metrics}");
    control.draining();
    assert!(get(control.health_address(), "/readyz").contains(r#""reason":"draining""#));
    control.shutdown();
}

#[test]
fn a_bad_reload_changes_nothing() {
    let file = File::new("bad", ONE);
    let (control, shared) = start(&file);
    file.write("endpoints: [{ id: b, model: n }]\n");
    let error = control.runtime.block_on(control.fleet.try_reload([].into_iter())).unwrap_err();
    assert!(matches!(&error, ReloadError::Config(e) if e.problems().len() == 1), "{error}");
    file.write(&format!("{TWO}shards: 3\ndriver: epoll\n"));
    let error = control.runtime.block_on(control.fleet.try_reload([].into_iter())).unwrap_err();
    assert_eq!(
        error.to_string(),
        "shards, driver cannot change while the process runs; restart it, or take the change back"
    );
    assert!(!control.reload());
    assert_eq!((shared.snapshot.load().version, shared.snapshot.load().endpoints.len()), (1, 1));
    let metrics = get(control.health_address(), "/metrics");
    assert!(metrics.contains("\nllmgw_config_last_reload_successful 0\n"), "{metrics}");
    control.shutdown();
}

#[test]
fn a_driver_given_by_a_flag_survives_a_reload() {
    let file = File::new("flag", ONE);
    let mut parts = parts(&file.0);
    parts.config.driver = DriverChoice::Epoll;
    let (control, _shared) = ControlPlane::start::<()>(parts).unwrap();
    file.write(TWO);
    assert!(control.reload());
    assert_eq!(control.fleet.config().driver, DriverChoice::Epoll);
    control.shutdown();
}

#[test]
fn without_a_file_there_is_nothing_to_reload() {
    let file = File::new("none", ONE);
    let control = ControlPlane::start::<()>(Parts { path: None, ..parts(&file.0) }).unwrap().0;
    assert!(matches!(
        control.runtime.block_on(control.fleet.try_reload([].into_iter())),
        Err(ReloadError::NoFile)
    ));
    control.shutdown();
}

#[test]
fn what_keeps_it_from_starting_is_named() {
    let file = File::new("start", ONE);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut parts_taken = parts(&file.0);
    parts_taken.config.health_listen = taken.local_addr().unwrap();
    let error = ControlPlane::start::<()>(parts_taken).err().unwrap();
    assert!(
        error
            .to_string()
            .starts_with(&format!("health_listen {} cannot be bound: ", taken.local_addr().unwrap()))
    );
    let mut parts_lost = parts(&file.0);
    parts_lost.config.endpoints[0].url.host = "no\0host".to_owned(); // fails without asking a name server
    let error = ControlPlane::start::<()>(parts_lost).err().unwrap();
    assert!(matches!(error, StartError::Publish(PublishError::Lookup { .. })), "{error}");
}
