//! Unsafe code and parsers under tools that watch memory.

use crate::fuzz;
use crate::proc::{self, Outcome, cargo};
use std::process::Command;

/// Seconds of each fuzz target under AddressSanitizer for a minute of soak.
const FUZZ_SHARE: u64 = 15;

/// All unsafe code is in the drivers: their tests, the conformance suite over real sockets included, and the fuzz
/// targets.
pub fn asan(minutes: u64) -> Outcome {
    let host = proc::host()?;
    let mut command = cargo();
    command.args(["test", "-p", "llmgw-dataplane", "--lib", "--target", &host, "--target-dir"]);
    command.arg(proc::target_dir().join("asan"));
    command.args(["driver::", "--", "--test-threads=4"]);
    // The stable compiler has it, behind this. Naming the target keeps the flags away from build scripts.
    // A ring that did not drain leaves its buffers to the kernel on purpose.
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address -Cdebug-assertions");
    proc::run(&mut command)?;
    let options = fuzz::Options { sanitizer: Some("address"), keep: false };
    fuzz::run_and((minutes * FUZZ_SHARE).max(5), None, &options)
}

/// What of the code makes no system calls: Miri cannot run the drivers.
pub fn miri() -> Outcome {
    let toolchain = ["+nightly", "miri", "--version"];
    if !proc::works("cargo", &toolchain) {
        println!("skipped: Miri is not installed (rustup component add --toolchain nightly miri rust-src)");
        return Ok(());
    }
    // Most tests would take hours under it: those that build and free what others hold on to, and each parser once.
    let runs: [&[&str]; 2] = [
        &["-p", "llmgw-routing", "--lib", "--", "load::", "budget::"],
        &[
            "-p",
            "llmgw-dataplane",
            "--lib",
            "--",
            "slab::",
            "timer::",
            "buffers::",
            "http1::tests::memo",
            "http1::tests::response",
            "http1::tests::write",
        ],
    ];
    for run in runs {
        let mut command = Command::new("cargo");
        command.args(["+nightly", "miri", "test"]).args(run);
        command.arg("--target-dir").arg(proc::target_dir().join("miri"));
        // Properties read the clock and the file of failures.
        command.env("MIRIFLAGS", "-Zmiri-disable-isolation").env("PROPTEST_CASES", "4");
        proc::run(&mut command)?;
    }
    Ok(())
}
