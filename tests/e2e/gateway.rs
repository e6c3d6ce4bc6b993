//! The gateway under test: a process of the built binary with a configuration of its own.

use crate::PATIENCE;
use crate::client::{Answer, CHAT, Client};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Between two looks at a page that tells what is waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// The built binary.
pub const BINARY: &str = env!("CARGO_BIN_EXE_llmgw");

/// A running gateway; ends with its owner, who also learns if it panicked.
pub struct Gateway {
    child: Child,
    pub address: SocketAddr,
    pub health: SocketAddr,
    pub admin: SocketAddr,
    pub registry: SocketAddr,
    log: Arc<Log>,
    dir: TempDir,
    config: String,
}

/// A folder that is gone with its owner.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> TempDir {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("e2e-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&path).expect("a folder for the configuration");
        TempDir(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file and says where it is.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("the configuration can be written");
        path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // What is left behind is found by whoever cleans the target folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Lines that the process wrote to standard error.
#[derive(Default)]
struct Log {
    lines: Mutex<(Vec<String>, bool)>,
    grown: Condvar,
}

impl Log {
    fn follow(self: &Arc<Self>, pipe: impl std::io::Read + Send + 'static) {
        let log = Arc::clone(self);
        std::thread::spawn(move || {
            for line in BufReader::new(pipe).lines().map_while(Result::ok) {
                log.lines.lock().expect("no panic under the lock").0.push(line);
                log.grown.notify_all();
            }
            log.lines.lock().expect("no panic under the lock").1 = true;
            log.grown.notify_all();
        });
    }

    /// The first line from `from` on that is wanted, and the number of the line after it.
    fn wait(&self, from: usize, wanted: impl Fn(&str) -> bool) -> (String, usize) {
        let mut lines = self.lines.lock().expect("no panic under the lock");
        let mut next = from;
        loop {
            while let Some(line) = lines.0.get(next) {
                next += 1;
                if wanted(line) {
                    return (line.clone(), next);
                }
            }
            assert!(!lines.1, "the process ended; it said:\n{}", lines.0.join("\n"));
            let (again, timeout) = self.grown.wait_timeout(lines, PATIENCE).expect("no panic under the lock");
            lines = again;
            assert!(!timeout.timed_out(), "no such line; there is:\n{}", lines.0.join("\n"));
        }
    }

    /// Lets a moment pass, or less if a line comes.
    fn moment(&self) {
        let lines = self.lines.lock().expect("no panic under the lock");
        let _ = self.grown.wait_timeout(lines, LOOK_AGAIN);
    }

    /// Everything, once the process has ended.
    fn whole(&self) -> String {
        let lines = self.lines.lock().expect("no panic under the lock");
        let waited = self.grown.wait_timeout_while(lines, PATIENCE, |lines| !lines.1);
        waited.expect("no panic under the lock").0.0.join("\n")
    }
}

/// An entry of `endpoints` for model `m`.
pub fn endpoint(id: &str, url: &str) -> String {
    format!("{{ id: {id}, model: m, url: \"{url}\", engine: sim }}")
}

/// A configuration with these endpoints and extra top-level keys; one shard unless they say otherwise.
pub fn config(endpoints: &[String], extra: &str) -> String {
    let mut yaml =
        String::from("listen: 127.0.0.1:0\nhealth_listen: 127.0.0.1:0\nadmin_listen: 127.0.0.1:0\n");
    yaml.push_str("registry_listen: 127.0.0.1:0\n");
    yaml.push_str("auth: { required: false }\n");
    for (key, default) in [
        ("shards:", "shards: 1"),
        ("log:", "log: { format: json }"),
        ("limits:", "limits: { max_connections: 4096 }"),
    ] {
        if !extra.lines().any(|line| line.starts_with(key)) {
            yaml.push_str(default);
            yaml.push('\n');
        }
    }
    yaml.push_str(extra);
    yaml.push_str("\nendpoints:\n");
    endpoints.iter().for_each(|endpoint| yaml.push_str(&format!("  - {endpoint}\n")));
    if endpoints.is_empty() {
        yaml.push_str("  []\n");
    }
    yaml
}

impl Gateway {
    /// Starts one in front of these endpoints, and waits until it serves and has probed them once.
    pub fn start(endpoints: &[String], extra: &str) -> Gateway {
        Gateway::start_by(Command::new(BINARY), endpoints, extra)
    }

    /// Starts it by another command, which gets the binary's arguments.
    pub fn start_by(mut command: Command, endpoints: &[String], extra: &str) -> Gateway {
        let (dir, config) = (TempDir::new(), config(endpoints, extra));
        let file = dir.write("server.yaml", &config);
        command.args(["server", "--config"]).arg(file).current_dir(&dir.0);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the built binary starts");
        let log = Arc::new(Log::default());
        log.follow(child.stderr.take().expect("its standard error"));
        let (line, _) = log.wait(0, |line| line.contains("serving"));
        let addresses = match serde_json::from_str::<Value>(&line) {
            Ok(json) => ["listen", "health", "admin", "registry"].map(|key| json[key].to_string()),
            Err(_) => ["listen=", "health=", "admin=", "registry="].map(|key| word(&line, key)),
        };
        let parse = |text: String| text.trim_matches('"').parse().expect("an address in the log");
        let [address, health, admin, registry] = addresses.map(parse);
        let gateway = Gateway { child, address, health, admin, registry, log, dir, config };
        let count = u32::try_from(endpoints.len()).expect("few endpoints");
        gateway.wait_metric("llmgw_probes_total", |probes| probes >= f64::from(count));
        gateway
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn connect(&self) -> Client {
        Client::connect(self.address)
    }

    /// Asks on a connection of its own.
    #[track_caller]
    pub fn ask(&self, request: impl AsRef<[u8]>) -> Answer {
        let mut client = self.connect();
        client.send(request);
        client.answer()
    }

    /// Sends a chat on a connection of its own.
    #[track_caller]
    pub fn chat(&self, body: &str) -> Answer {
        self.post(CHAT, "", body)
    }

    #[track_caller]
    pub fn post(&self, path: &str, fields: &str, body: &str) -> Answer {
        self.ask(crate::client::post(path, fields, body))
    }

    #[track_caller]
    pub fn get(&self, path: &str) -> Answer {
        self.ask(format!("GET {path} HTTP/1.1\r\nhost: gw\r\n\r\n"))
    }

    /// A page of the health listener.
    pub fn page(&self, path: &str) -> Answer {
        let mut client = Client::connect(self.health);
        client.send(format!("GET {path} HTTP/1.1\r\nhost: gw\r\nconnection: close\r\n\r\n"));
        client.answer()
    }

    /// The sum of all series whose name, or name and first labels, begin so.
    pub fn metric(&self, series: &str) -> f64 {
        sum(&self.page("/metrics").expect(200).text(), series)
    }

    /// Waits until a sum of series is as wanted.
    #[track_caller]
    pub fn wait_metric(&self, series: &str, wanted: impl Fn(f64) -> bool) {
        self.wait_page(&format!("{series} as wanted"), "/metrics", |page| wanted(sum(&page.text(), series)));
    }

    /// Waits until `/readyz` answers so.
    #[track_caller]
    pub fn wait_ready(&self, status: u16) {
        self.wait_page(&format!("/readyz {status}"), "/readyz", |page| page.status == status);
    }

    #[allow(clippy::disallowed_methods)] // real time, against a real process
    #[track_caller]
    fn wait_page(&self, what: &str, path: &str, wanted: impl Fn(&Answer) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let page = self.page(path);
            if wanted(&page) {
                return;
            }
            if Instant::now() >= deadline {
                let text = page.text();
                let told = |line: &&str| {
                    !line.starts_with('#') && !line.contains("_bucket") && !line.ends_with(" 0")
                };
                panic!("never {what}:\n{}", text.lines().filter(told).collect::<Vec<_>>().join("\n"));
            }
            self.log.moment();
        }
    }

    /// Waits for a line of the log, also one that is there already.
    pub fn wait_log(&self, text: &str) -> String {
        self.log.wait(0, |line| line.contains(text)).0
    }

    /// Waits for the access record of a request.
    pub fn access(&self, request_id: &str) -> Value {
        let wanted = |line: &str| line.contains(r#""target":"access""#) && line.contains(request_id);
        serde_json::from_str(&self.log.wait(0, wanted).0).expect("a JSON line")
    }

    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the process takes signals");
    }

    /// Changes the configuration and asks for a reload; the line that says what became of it.
    pub fn reload(&self, endpoints: &[String], extra: &str) -> String {
        self.reload_file(&config(endpoints, extra))
    }

    /// Writes the file as it is and asks for a reload; the line that says what became of it.
    pub fn reload_file(&self, text: &str) -> String {
        let from = self.log.lines.lock().expect("no panic under the lock").0.len();
        self.dir.write("server.yaml", text);
        self.signal(Signal::HUP);
        self.log
            .wait(from, |line| line.contains("reload refused") || line.contains("configuration reloaded"))
            .0
    }

    /// Changes the file, and nothing else.
    pub fn write_config(&self, text: &str) {
        self.dir.write("server.yaml", text);
    }

    /// The configuration it was started with.
    pub fn config(&self) -> &str {
        &self.config
    }

    /// Waits for the process to end by itself.
    pub fn ended(mut self) -> (ExitStatus, String) {
        let log = self.log.whole();
        let status = self.child.wait().expect("an exit status");
        (status, log)
    }
}

impl Drop for Gateway {
    #[allow(clippy::print_stderr)] // a failed test shows what the gateway said
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let log = self.log.whole();
        if std::thread::panicking() {
            eprintln!("the gateway said:\n{}", log.lines().take(30).collect::<Vec<_>>().join("\n"));
        } else {
            assert!(!log.contains("panicked at"), "the gateway panicked:\n{log}");
        }
    }
}

fn word(line: &str, key: &str) -> String {
    let rest = line.split_once(key).map(|(_, rest)| rest).unwrap_or_default();
    rest.split_whitespace().next().unwrap_or_default().to_owned()
}

/// The sum of a page's series that begin with `series` (a name, or a name and its first labels).
fn sum(page: &str, series: &str) -> f64 {
    let rows = page.lines().filter_map(|line| {
        let rest = line.strip_prefix(series)?;
        let begins = series.ends_with(['"', '}']) || rest.starts_with(['{', ' ']);
        begins.then(|| line.rsplit(' ').next())?.and_then(|value| value.parse::<f64>().ok())
    });
    rows.sum()
}
