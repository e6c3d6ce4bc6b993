//! What a command needs from the machine, as a table: how to tell whether it is there, how it can be brought, and what
//! to say where that fails.
//!
//! Outside of CI what is missing skips the tests that need it, with the reason. In CI it is a failure, so that no test
//! goes missing unseen.

use crate::proc::{self, Outcome};
use std::process::Command;

mod oracles;
#[cfg(test)]
mod tests;

/// Something the tests need from the machine.
pub struct Step {
    pub name: &'static str,
    /// Tests whose name contains this cannot run without it; empty: only convenience.
    pub tests: &'static str,
    /// What is wrong, if anything.
    pub check: fn() -> Result<(), String>,
    /// Debian packages that mend it.
    pub apt: &'static [&'static str],
    /// What mends it without apt, or after it.
    pub make: Option<fn() -> Outcome>,
    /// What to do where apt cannot help.
    pub otherwise: &'static str,
}

/// Descriptors that the test of many streams needs in one process: both sides of each stream, and some.
const DESCRIPTORS_MIN: u64 = 4_096;

/// What `cargo xtask test` needs. A server or a browser that some tests talk to would be a row here.
const FOR_TESTS: &[Step] = &[
    Step {
        name: "linker",
        tests: "",
        check: || {
            if proc::works("cc", &["--version"]) { Ok(()) } else { Err("no `cc` on the path".to_owned()) }
        },
        apt: &["gcc", "libc6-dev"],
        make: None,
        otherwise: "install a C compiler; Rust links with it",
    },
    Step {
        name: "loopback",
        tests: "",
        check: || std::net::TcpListener::bind("127.0.0.1:0").map(drop).map_err(|e| format!("127.0.0.1: {e}")),
        apt: &[],
        make: None,
        otherwise: "bring the loopback interface up: ip link set lo up",
    },
    Step {
        name: "descriptors",
        tests: "thousand_streams",
        check: || match descriptors_max(&std::fs::read_to_string("/proc/self/limits").unwrap_or_default()) {
            Some(hard) if hard < DESCRIPTORS_MIN => {
                Err(format!("the hard limit is {hard}, at least {DESCRIPTORS_MIN} are needed"))
            }
            _ => Ok(()),
        },
        apt: &[],
        make: None,
        otherwise: "raise the hard limit of open files (ulimit -Hn, LimitNOFILE=, --ulimit nofile=)",
    },
    Step {
        name: "Python oracles",
        tests: "oracle_python",
        check: oracles::python_current,
        apt: &["python3", "python3-venv"],
        make: Some(oracles::python_make),
        otherwise: "install Python 3 with venv and reach its package index; cargo xtask test does the rest",
    },
    Step {
        name: "Schemathesis",
        tests: "schemathesis",
        check: oracles::schemathesis_current,
        apt: &["python3", "python3-venv"],
        make: Some(oracles::schemathesis_make),
        otherwise: "install Python 3 with venv and reach its package index; cargo xtask test does the rest",
    },
    Step {
        name: "Node oracles",
        tests: "oracle_node",
        check: oracles::node_current,
        apt: &["nodejs", "npm"],
        make: Some(oracles::node_make),
        otherwise: "install Node.js with npm and reach its registry; cargo xtask test does the rest",
    },
];

/// What the fuzz targets need: libFuzzer is C++.
pub const CXX: Step = Step {
    name: "C++ compiler",
    tests: "",
    check: || {
        if proc::works("c++", &["--version"]) { Ok(()) } else { Err("no `c++` on the path".to_owned()) }
    },
    apt: &["g++"],
    make: None,
    otherwise: "install a C++ compiler (g++ or clang); libFuzzer is built with it",
};

/// What the side-by-side runs need.
pub const FOR_PEERS: &[Step] = &[
    Step {
        name: "taskset",
        tests: "",
        check: || program("taskset", "--version"),
        apt: &["util-linux"],
        make: None,
        otherwise: "install util-linux; gateways are pinned with taskset",
    },
    Step {
        name: "nginx",
        tests: "",
        check: || program("nginx", "-v"),
        apt: &["nginx-light"],
        make: None,
        otherwise: "install nginx and put it on the path",
    },
    Step {
        name: "HAProxy",
        tests: "",
        check: || program("haproxy", "-v"),
        apt: &["haproxy"],
        make: None,
        otherwise: "install HAProxy and put it on the path",
    },
];

/// What instruction counts need.
pub const VALGRIND: Step = Step {
    name: "valgrind",
    tests: "",
    check: || program("valgrind", "--version"),
    apt: &["valgrind"],
    make: None,
    otherwise: "install valgrind; instructions are counted with its callgrind",
};

fn program(name: &str, flag: &str) -> Result<(), String> {
    if proc::works(name, &[flag]) { Ok(()) } else { Err(format!("no `{name}` on the path")) }
}

/// Brings what is missing, if it can; the error says what to do.
pub fn ensure(step: &Step) -> Outcome {
    let Err(wrong) = (step.check)() else { return Ok(()) };
    let made = || step.make.is_none_or(|make| make().is_ok()) && (step.check)().is_ok();
    if step.make.is_some() && made() {
        return Ok(());
    }
    if install(step) && made() {
        return Ok(());
    }
    Err(format!("{}: {wrong}; {}", step.name, step.otherwise))
}

/// Goes through the needs of the tests; answers the names of tests to skip.
pub fn for_tests() -> Outcome<Vec<&'static str>> {
    let mut skip = Vec::new();
    for step in FOR_TESTS {
        let Err(told) = ensure(step) else { continue };
        if proc::in_ci() || step.tests.is_empty() {
            return Err(told);
        }
        println!("skipping tests named *{}*: {told}", step.tests);
        skip.push(step.tests);
    }
    Ok(skip)
}

/// Tries apt, where there is one and we may use it.
fn install(step: &Step) -> bool {
    let root = proc::capture(Command::new("id").arg("-u")).is_ok_and(|uid| uid.trim() == "0");
    if step.apt.is_empty() || !root || !proc::works("apt-get", &["--version"]) {
        return false;
    }
    println!("{} is missing; installing {}", step.name, step.apt.join(" "));
    let apt = |args: &[&str]| {
        proc::run(Command::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive").args(args)).is_ok()
    };
    let mut args = vec!["install", "-y", "--no-install-recommends"];
    args.extend(step.apt);
    apt(&args) || (apt(&["update"]) && apt(&args))
}

/// The hard limit of open files as `/proc/self/limits` tells it; none when unlimited or unknown.
fn descriptors_max(limits: &str) -> Option<u64> {
    let row = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    row.split_whitespace().nth(1)?.parse().ok()
}
