//! Readers written by others that tests compare the gateway with: Python packages in an environment of their own, and
//! npm packages, both under `oracles/` of the target folder. What they are is listed in `tests/oracles/`.

use crate::proc::{self, Outcome};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Lists of packages.
const PYTHON_LIST: &str = "tests/oracles/requirements.txt";
const SCHEMATHESIS_LIST: &str = "tests/oracles/schemathesis.txt";
const NODE_LIST: &str = "tests/oracles/package.json";

fn home(kind: &str) -> PathBuf {
    proc::target_dir().join("oracles").join(kind)
}

/// Whether what the list names now is what was installed: a copy of the list is left behind by an installation that
/// succeeded.
fn current(kind: &str, list: &str) -> Result<(), String> {
    let read = |path: &Path| std::fs::read(path).ok();
    let installed = read(&home(kind).join("installed"));
    if installed.is_some() && installed == read(Path::new(list)) {
        return Ok(());
    }
    Err(format!("the packages of {list} are not installed in {}", home(kind).display()))
}

fn installed(kind: &str, list: &str) -> Outcome {
    std::fs::copy(list, home(kind).join("installed"))
        .map(drop)
        .map_err(|e| format!("cannot copy {list}: {e}"))
}

pub fn python_current() -> Result<(), String> {
    current("python", PYTHON_LIST)
}

/// Makes the environment and installs the packages.
pub fn python_make() -> Outcome {
    environment("python", PYTHON_LIST)
}

pub fn schemathesis_current() -> Result<(), String> {
    current("schemathesis", SCHEMATHESIS_LIST)
}

/// Makes an environment of its own, for its dependencies are many.
pub fn schemathesis_make() -> Outcome {
    environment("schemathesis", SCHEMATHESIS_LIST)
}

fn environment(kind: &str, list: &str) -> Outcome {
    let home = home(kind);
    if !home.join("bin/pip").exists() {
        proc::run(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
    }
    let quiet = ["install", "--quiet", "--disable-pip-version-check", "--requirement", list];
    proc::run(Command::new(home.join("bin/pip")).args(quiet))?;
    installed(kind, list)
}

pub fn node_current() -> Result<(), String> {
    current("node", NODE_LIST)
}

/// Installs the packages.
pub fn node_make() -> Outcome {
    let home = home("node");
    std::fs::create_dir_all(&home).map_err(|e| format!("cannot make {}: {e}", home.display()))?;
    std::fs::copy(NODE_LIST, home.join("package.json"))
        .map_err(|e| format!("cannot copy {NODE_LIST}: {e}"))?;
    let args = ["install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix"];
    proc::run(Command::new("npm").args(args).arg(&home))?;
    installed("node", NODE_LIST)
}
