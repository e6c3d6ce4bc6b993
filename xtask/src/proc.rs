//! Running other programs: where the repository is, how a command is told and run, and a guard that ends what was
//! started.
//!
//! Invariant: a [`Guard`] ends its process by id when dropped, on success, error and panic alike.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What went wrong, in words for the person at the terminal.
pub type Outcome<T = ()> = Result<T, String>;

/// The repository's root: the folder above this crate.
pub fn root() -> PathBuf {
    // The variable is set at run time by `cargo run`; the compile-time value serves a copied binary.
    let own = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    Path::new(&own).parent().map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

/// Whether this runs in CI, where what is missing is a failure and not a reason to skip.
pub fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}

/// The cargo that started us.
pub fn cargo() -> Command {
    Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Where cargo puts what it builds.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

/// The triple of this machine.
pub fn host() -> Outcome<String> {
    let told = capture(Command::new("rustc").arg("-vV"))?;
    let host = told.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.ok_or("rustc -vV names no host")?.to_owned())
}

/// Whether `program ARGS` can be run and succeeds.
pub fn works(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Whether `cargo NAME` exists.
pub fn has_cargo(name: &str) -> bool {
    let mut command = cargo();
    command.args([name, "--version"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A command as one would type it.
pub fn spell(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let mut words = vec![program.to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|arg| arg.to_string_lossy().into_owned()));
    words.join(" ")
}

/// Tells, runs and waits; an error names the command and how it ended.
pub fn run(command: &mut Command) -> Outcome {
    println!("$ {}", spell(command));
    let status =
        command.stdin(Stdio::null()).status().map_err(|e| format!("cannot run `{}`: {e}", spell(command)))?;
    if status.success() { Ok(()) } else { Err(format!("`{}` ended with {status}", spell(command))) }
}

/// Runs and takes standard output; an error carries what the command said.
pub fn capture(command: &mut Command) -> Outcome<String> {
    let output =
        command.stdin(Stdio::null()).output().map_err(|e| format!("cannot run `{}`: {e}", spell(command)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("`{}` ended with {}: {}", spell(command), output.status, said.trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs with both outputs passed on line by line, each line shown to `see`. Answers whether the command succeeded.
pub fn watch(command: &mut Command, mut see: impl FnMut(&str)) -> Outcome<bool> {
    println!("$ {}", spell(command));
    let failed = |what: &str, e: std::io::Error| format!("cannot {what}: {e}");
    // One pipe for both, so that their order is kept.
    let (reader, writer) = std::io::pipe().map_err(|e| failed("make a pipe", e))?;
    let copy = writer.try_clone().map_err(|e| failed("copy a pipe", e))?;
    command.stdin(Stdio::null()).stdout(writer).stderr(copy);
    let child = command.spawn().map_err(|e| format!("cannot run `{}`: {e}", spell(command)))?;
    let mut guard = Guard::new(spell(command), child);
    // The command holds the pipe's writing ends; they must go for the reader to see the end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut reader = BufReader::new(reader);
    let mut line = Vec::new();
    let mut out = std::io::stdout();
    while reader.read_until(b'\n', &mut line).map_err(|e| failed("read from a pipe", e))? > 0 {
        // A closed terminal must not stop the tests.
        let _ = out.write_all(&line).and_then(|()| out.flush());
        see(String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
    Ok(guard.wait()?.success())
}

/// A started process, ended by its id when dropped.
pub struct Guard {
    name: String,
    child: Child,
    ended: bool,
}

impl Guard {
    /// Watches over `child`.
    pub fn new(name: String, child: Child) -> Self {
        Guard { name, child, ended: false }
    }

    /// Starts `command` with its output going to `log`.
    pub fn start(name: &str, command: &mut Command, log: &Path) -> Outcome<Self> {
        let open = || std::fs::OpenOptions::new().create(true).append(true).open(log);
        let file = open().map_err(|e| format!("cannot write {}: {e}", log.display()))?;
        let copy = file.try_clone().map_err(|e| format!("cannot write {}: {e}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file).stderr(copy);
        let child = command.spawn().map_err(|e| format!("cannot start `{}`: {e}", spell(command)))?;
        Ok(Guard::new(name.to_owned(), child))
    }

    /// The process's id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the end.
    pub fn wait(&mut self) -> Outcome<std::process::ExitStatus> {
        let status = self.child.wait().map_err(|e| format!("cannot wait for {}: {e}", self.name))?;
        self.ended = true;
        Ok(status)
    }

    /// How it ended, if it did.
    pub fn poll(&mut self) -> Outcome<Option<std::process::ExitStatus>> {
        let status = self.child.try_wait().map_err(|e| format!("cannot look at {}: {e}", self.name))?;
        self.ended |= status.is_some();
        Ok(status)
    }

    /// Asks it to stop (SIGTERM), and ends it if it has not after `patience`. Answers whether it stopped by itself.
    pub fn stop(mut self, patience: Duration) -> Outcome<bool> {
        if self.poll()?.is_some() {
            return Ok(true);
        }
        works("kill", &["-TERM", &self.pid().to_string()]);
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if self.poll()?.is_some() {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(false)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.ended {
            // Already gone is fine.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A folder under the system's temporary one, removed when dropped.
pub struct TempDir(PathBuf);

impl TempDir {
    /// Makes `llmgw-<name>-<pid>`.
    pub fn new(name: &str) -> Outcome<Self> {
        let path = std::env::temp_dir().join(format!("llmgw-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).map_err(|e| format!("cannot make {}: {e}", path.display()))?;
        Ok(TempDir(path))
    }
    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
    /// Keeps it after all (something in it explains a failure).
    pub fn keep(self) -> PathBuf {
        let path = self.0.clone();
        std::mem::forget(self);
        path
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
