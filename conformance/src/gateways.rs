//! Gateways as processes on free loopback ports, in front of one engine. Each ends with its owner.

use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Looks at a port that is to open, a few milliseconds apart.
const LOOKS: u32 = 2000;

/// A running gateway.
pub struct Gateway {
    /// Name and version.
    pub name: String,
    /// Where clients connect.
    pub address: SocketAddr,
    child: Child,
    folder: PathBuf,
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // Gone by itself, or already removed: nothing is left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A folder of its own under `within`.
fn folder(within: &Path) -> Result<PathBuf, String> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let name = format!("conformance-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let folder = within.join(name);
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}

/// llmgw over a driver; the error tells what it said when it did not start.
pub fn llmgw(binary: &Path, driver: &str, engine: SocketAddr, within: &Path) -> Result<Gateway, String> {
    let folder = folder(within)?;
    let mut yaml = String::from(
        "listen: 127.0.0.1:0\nhealth_listen: 127.0.0.1:0\nadmin_listen: 127.0.0.1:0\nregistry_listen: 127.0.0.1:0\n\
         auth: { required: false }\nshards: 1\n\
         log: { format: json }\nrouter: { retries: 0, cooldown: 1ms }\nendpoints:\n",
    );
    // Several names of one engine: a failed one is out for a moment, which must not fail the next case.
    for n in 0..8 {
        yaml.push_str(&format!("  - {{ id: e{n}, model: m, url: \"http://{engine}\", engine: sim }}\n"));
    }
    let config = folder.join("server.yaml");
    fs::write(&config, yaml).map_err(|error| format!("{}: {error}", config.display()))?;
    let mut command = Command::new(binary);
    command.args(["server", "--driver", driver, "--config"]).arg(&config);
    let mut child = spawn(command.stdout(Stdio::null()).stderr(Stdio::piped()))?;
    let mut log = BufReader::new(child.stderr.take().ok_or("no standard error")?);
    let unknown = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut gateway = Gateway { name: format!("llmgw, {driver}"), address: unknown, child, folder };
    let (mut line, mut said) = (String::new(), String::new());
    while log.read_line(&mut line).is_ok_and(|n| n > 0) {
        if line.contains("\"serving\"") {
            let json: Value = serde_json::from_str(&line).map_err(|error| format!("{line}: {error}"))?;
            gateway.address = json["listen"]
                .as_str()
                .and_then(|text| text.parse().ok())
                .ok_or_else(|| format!("no address in {line}"))?;
            // Whoever does not read a pipe stops its writer.
            std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
            return Ok(gateway);
        }
        said.push_str(&line);
        line.clear();
    }
    Err(said.trim().to_owned())
}

/// nginx with a configuration template of `bench/peers`.
pub fn nginx(template: &Path, engine: SocketAddr, within: &Path) -> Result<Gateway, String> {
    peer("nginx", template, engine, within, |command, folder, config| {
        command.arg("-p").arg(folder).arg("-e").arg(folder.join("nginx.err")).arg("-c").arg(config);
    })
}

/// HAProxy with a configuration template of `bench/peers`.
pub fn haproxy(template: &Path, engine: SocketAddr, within: &Path) -> Result<Gateway, String> {
    peer("haproxy", template, engine, within, |command, _, config| {
        command.arg("-db").arg("-f").arg(config);
    })
}

fn peer(
    program: &str,
    template: &Path,
    engine: SocketAddr,
    within: &Path,
    arguments: impl FnOnce(&mut Command, &Path, &Path),
) -> Result<Gateway, String> {
    let folder = folder(within)?;
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let address = free.map_err(|error| format!("no free port: {error}"))?;
    let text = fs::read_to_string(template).map_err(|error| format!("{}: {error}", template.display()))?;
    let mut text =
        text.replace("@RUN@", &folder.display().to_string()).replace("@LISTEN@", &address.port().to_string());
    for n in 1..=3 {
        let port = engine.port().to_string();
        // An engine whose answer was refused must get the next case all the same.
        text = text.replace(&format!("@E{n}@;"), &format!("{port} max_fails=0;"));
        text = text.replace(&format!("@E{n}@"), &port);
    }
    let config = folder.join("config");
    fs::write(&config, text).map_err(|error| format!("{}: {error}", config.display()))?;
    let mut command = Command::new(program);
    arguments(&mut command, &folder, &config);
    let child = spawn(command.stdout(Stdio::null()).stderr(Stdio::piped()))?;
    let mut gateway = Gateway { name: version(program), address, child, folder };
    for _ in 0..LOOKS {
        if TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok() {
            return Ok(gateway);
        }
        if gateway.child.try_wait().is_ok_and(|status| status.is_some()) {
            break;
        }
        std::thread::park_timeout(Duration::from_millis(5));
    }
    let mut said = String::new();
    let _ = gateway.child.kill();
    if let Some(mut pipe) = gateway.child.stderr.take() {
        let _ = pipe.read_to_string(&mut said);
    }
    Err(format!("{program} does not serve: {}", said.trim()))
}

fn spawn(command: &mut Command) -> Result<Child, String> {
    command.stdin(Stdio::null()).spawn().map_err(|error| format!("{command:?}: {error}"))
}

/// `nginx 1.22.1`, from whatever the program says of itself.
fn version(program: &str) -> String {
    let output = Command::new(program).arg("-v").output();
    let said = output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
    let said = String::from_utf8_lossy(&said).into_owned();
    let number =
        said.split([' ', '/', '-', '\n']).find(|word| word.starts_with(|c: char| c.is_ascii_digit()));
    format!("{program} {}", number.unwrap_or("of unknown version"))
}
