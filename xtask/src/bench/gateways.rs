//! Starts the gateways of a side-by-side run, each pinned to the same core, on free loopback ports.
//!
//! Invariant: every gateway is in a guard, so that it ends with the run, however that ends.

use crate::fleet;
use crate::proc::{self, Guard, Outcome, TempDir};
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Name of the program that only forwards.
pub const FLOOR: &str = "floor";
/// How long a gateway may take until its port is open.
const PATIENCE: Duration = Duration::from_secs(15);
/// How long it may take to stop.
const STOP_PATIENCE: Duration = Duration::from_secs(3);

/// A running gateway.
pub struct Gateway {
    /// As the tables call it.
    pub name: String,
    /// Version, as it tells it.
    pub version: String,
    /// Where it serves.
    pub address: SocketAddr,
    /// Its process.
    pub process: Guard,
}

/// What all of them share.
pub struct Site<'a> {
    /// The core they are pinned to.
    pub core: usize,
    /// Where the engines listen, or will.
    pub engines: &'a [SocketAddr],
    /// Configurations and logs.
    pub folder: &'a TempDir,
}

impl Site<'_> {
    /// nginx as `bench/peers/nginx.conf.in` has it.
    pub fn nginx(&self) -> Outcome<Gateway> {
        let address = fleet::free_addrs(1)?[0];
        let (folder, config) = self.render("nginx", "nginx.conf", address)?;
        let mut command = self.pinned("nginx");
        command.args(["-p", &folder, "-e", &format!("{folder}/nginx.err"), "-c", &config]);
        self.start("nginx", &version("nginx", "-v"), address, &mut command)
    }

    /// HAProxy as `bench/peers/haproxy.cfg.in` has it.
    pub fn haproxy(&self) -> Outcome<Gateway> {
        let address = fleet::free_addrs(1)?[0];
        let (_, config) = self.render("haproxy", "haproxy.cfg", address)?;
        let mut command = self.pinned("haproxy");
        command.args(["-db", "-f", &config]);
        self.start("HAProxy", &version("haproxy", "-v"), address, &mut command)
    }

    /// llmgw with one shard over a driver, everything on that is on by default.
    pub fn llmgw(&self, binary: &Path, driver: &str) -> Outcome<Gateway> {
        let own = fleet::free_addrs(2)?;
        let name = format!("llmgw {driver}");
        let mut yaml = format!(
            "listen: \"{}\"\nhealth_listen: \"{}\"\nadmin_listen: \"127.0.0.1:0\"\n\
             registry_listen: \"127.0.0.1:0\"\nshards: 1\nauth: {{ required: false }}\n\
             log: {{ level: info, access: true }}\nrouter: {{ inject_usage: true }}\nendpoints:\n",
            own[0], own[1]
        );
        for (n, engine) in self.engines.iter().enumerate() {
            yaml.push_str(&format!(
                "  - {{ id: e{n}, model: bench, url: \"http://{engine}\", engine: vllm }}\n"
            ));
        }
        let config = self.folder.path().join(format!("llmgw-{driver}.yaml"));
        write(&config, &yaml)?;
        let mut command = self.pinned(&binary.display().to_string());
        command.args(["server", "--driver", driver, "--config"]).arg(&config);
        let version = proc::capture(Command::new(binary).arg("--version"))?;
        self.start(&name, version.trim(), own[0], &mut command)
    }

    /// What forwarding alone costs: see `llmgw-bench floor`.
    pub fn floor(&self, binary: &Path) -> Outcome<Gateway> {
        let address = fleet::free_addrs(1)?[0];
        let mut command = self.pinned(&binary.display().to_string());
        command.arg("floor").arg(address.to_string()).args(self.engines.iter().map(SocketAddr::to_string));
        self.start(FLOOR, "forwards bytes, nothing else", address, &mut command)
    }

    /// sglang-router, round robin, from an environment where it is installed.
    pub fn sglang(&self, python: &Path) -> Outcome<Gateway> {
        let own = fleet::free_addrs(2)?;
        let mut command = self.pinned(&python.display().to_string());
        command.args(["-m", "sglang_router.launch_router", "--policy", "round_robin", "--host", "127.0.0.1"]);
        command.args(["--port", &own[0].port().to_string(), "--prometheus-port", &own[1].port().to_string()]);
        command.arg("--worker-urls").args(self.engines.iter().map(|engine| format!("http://{engine}")));
        self.start("sglang-router", "sglang-router, round robin", own[0], &mut command)
    }

    fn pinned(&self, program: &str) -> Command {
        let mut command = Command::new("taskset");
        // taskset becomes the program: the process's id stays.
        command.args(["-c", &self.core.to_string(), program]);
        command
    }

    /// Fills in a peer's configuration. Answers its folder and the configuration's path.
    fn render(&self, name: &str, file: &str, listen: SocketAddr) -> Outcome<(String, String)> {
        let template = format!("bench/peers/{file}.in");
        let mut text = fs::read_to_string(&template).map_err(|e| format!("cannot read {template}: {e}"))?;
        let folder = self.folder.path().join(name);
        fs::create_dir_all(&folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
        let run = folder.display().to_string();
        text = text.replace("@RUN@", &run).replace("@LISTEN@", &listen.port().to_string());
        for (n, engine) in self.engines.iter().enumerate() {
            text = text.replace(&format!("@E{}@", n + 1), &engine.port().to_string());
        }
        let path = folder.join(file);
        write(&path, &text)?;
        Ok((run, path.display().to_string()))
    }

    fn start(
        &self,
        name: &str,
        version: &str,
        address: SocketAddr,
        command: &mut Command,
    ) -> Outcome<Gateway> {
        let log = self.folder.path().join(format!("{name}.log"));
        let mut process = Guard::start(name, command, &log)?;
        let deadline = Instant::now() + PATIENCE;
        while TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_err() {
            if let Some(status) = process.poll()? {
                let said = fs::read_to_string(&log).unwrap_or_default();
                return Err(format!("{name} ended at start with {status}: {}", said.trim()));
            }
            if Instant::now() > deadline {
                return Err(format!("{name} does not listen on {address} after {} s", PATIENCE.as_secs()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Gateway { name: name.to_owned(), version: version.to_owned(), address, process })
    }
}

impl Gateway {
    /// Ends it; an error when it had ended by itself.
    pub fn stop(mut self) -> Outcome {
        if let Some(status) = self.process.poll()? {
            return Err(format!("{} had ended by itself: {status}", self.name));
        }
        // Who does not stop in time is ended by the guard.
        self.process.stop(STOP_PATIENCE).map(drop)
    }
}

fn write(path: &Path, text: &str) -> Outcome {
    fs::write(path, text).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

/// The first line a program says about its version, on whichever output.
fn version(program: &str, flag: &str) -> String {
    let Ok(output) = Command::new(program).arg(flag).output() else { return program.to_owned() };
    let said = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&said).lines().next().unwrap_or(program).trim().to_owned()
}
