//! `llmgw-bench`: what the code costs, and the measuring side of runs against other proxies. Started by `cargo xtask
//! bench`.
//!
//! * no argument: micro-benchmarks, nanoseconds a call
//! * `callgrind NAME COUNT`: calls one of their bodies, for counting instructions; `callgrind` alone lists the names
//! * `load PLAN`: engines and load of a side-by-side run
//! * `floor LISTEN ENGINE...`: what forwarding alone costs, beside the gateways
//! * `shards`: what a request costs beside other shards
#![allow(clippy::disallowed_methods)] // it measures time

mod cases;
mod floor;
mod load;
mod micro;
mod scaling;

use std::process::ExitCode;

#[allow(clippy::print_stderr)] // a command line's own voice
fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let done = match args.as_slice() {
        [] => {
            micro::run();
            Ok(())
        }
        ["callgrind"] => {
            micro::list();
            Ok(())
        }
        ["callgrind", name, count] => micro::call(name, count),
        ["load", plan] => load::run(plan),
        ["shards"] => scaling::run(),
        ["floor", listen, engines @ ..] if !engines.is_empty() => floor::run(listen, engines),
        _ => Err("usage: llmgw-bench [callgrind [NAME COUNT] | load PLAN | shards | floor LISTEN ENGINE...]"
            .to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("llmgw-bench: {message}");
            ExitCode::FAILURE
        }
    }
}
