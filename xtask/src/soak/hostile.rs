//! slowhttptest against the gateway: slow heads, slow bodies, slow reads, by somebody else's hand.

use crate::fleet::{self, Fleet, Plan};
use crate::proc::{self, Guard, Outcome, TempDir};
use crate::setup::{self, Step};
use std::process::Command;
use std::time::Duration;

/// The tool.
const SLOWHTTPTEST: Step = Step {
    name: "slowhttptest",
    tests: "",
    check: || {
        // It has no option that only tells its version.
        if proc::works("sh", &["-c", "command -v slowhttptest"]) {
            Ok(())
        } else {
            Err("not installed".to_owned())
        }
    },
    apt: &["slowhttptest"],
    make: None,
    otherwise: "install slowhttptest (Debian has a package of that name)",
};

/// Attacking connections at a time, and how many of them begin in a second.
const CONNECTIONS: &str = "1000";
const RATE: &str = "200";
/// How long the gateway may take to forget them all, once they are gone.
const FORGET: Duration = Duration::from_secs(30);

/// Each attack for a share of the minutes, while streams run beside it: none may fail, and nothing may be left.
pub fn slowhttptest(minutes: u64) -> Outcome {
    if let Err(told) = setup::ensure(&SLOWHTTPTEST) {
        println!("skipped: {told}");
        return Ok(());
    }
    let binaries = fleet::build()?;
    let config = "timeouts: { header: 2s, idle: 5s, body_idle: 2s, between_tokens: 5s, total: 60s }\n";
    let engine_args = ["--max-seqs", "256", "--ttft", "20ms", "--itl", "10ms"];
    let mut fleet = Fleet::start(&binaries, &Plan { engines: 2, engine_args: &engine_args, config })?;
    let seconds = (minutes * 60 / 3).max(10).to_string();
    let url = format!("{}/v1/chat/completions", fleet.url());
    let models = format!("{}/v1/models", fleet.url());
    let attacks: [(&str, &[&str], &str); 3] = [
        ("slow heads", &["-H", "-i", "1"], &url),
        ("slow bodies", &["-B", "-i", "1", "-s", "100000"], &url),
        ("slow reads", &["-X", "-w", "1", "-y", "8", "-n", "1", "-z", "1", "-k", "100"], &models),
    ];
    let logs = TempDir::new("slow")?;
    for (name, args, target) in attacks {
        println!("== {name}");
        let mut attack = Command::new("slowhttptest");
        attack.args(args).args(["-c", CONNECTIONS, "-r", RATE, "-l", &seconds, "-u", target]);
        println!("$ {}", proc::spell(&attack));
        let mut attack = Guard::start("slowhttptest", &mut attack, &logs.path().join("attack.log"))?;
        let mut load = Command::new(&binaries.loadgen);
        load.args(["run", "--url", &fleet.url(), "--model", fleet::MODEL, "--stream", "--no-progress"]);
        load.args(["--concurrency", "20", "--duration", &format!("{seconds}s"), "--output-tokens", "32"]);
        proc::run(&mut load)?;
        attack.wait()?;
        if let Some(status) = fleet.gateway.poll()? {
            return Err(format!("{name}: the gateway ended with {status}"));
        }
        forgotten(&fleet).map_err(|told| format!("{name}: {told}"))?;
    }
    fleet.stop()?;
    Ok(())
}

/// Waits until the gateway holds no connection but those of streams that are done.
fn forgotten(fleet: &Fleet) -> Outcome {
    let descriptors =
        || std::fs::read_dir(format!("/proc/{}/fd", fleet.gateway.pid())).map_or(0, Iterator::count);
    let begun = std::time::Instant::now();
    while descriptors() > 100 {
        if begun.elapsed() > FORGET {
            return Err(format!("{} descriptors are still open", descriptors()));
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}
