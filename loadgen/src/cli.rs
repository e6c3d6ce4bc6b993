//! The command line: flags into configurations, reports onto the terminal, outcomes into exit codes.

use std::fs::File;
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use serde::Serialize;

use crate::checker::TokenCheck;
use crate::disconnect::DisconnectConfig;
use crate::overhead::OverheadConfig;
use crate::prompts::Prompts;
use crate::run::{Load, RunConfig, RunError, StopHandle};
use crate::schedule::Arrivals;
use crate::trace;
use crate::units::parse_duration;
use crate::workload::{Api, Lengths};

/// Exit code of a failed check.
const FAILED: u8 = 1;
/// Exit code of wrong usage.
const USAGE: u8 = 2;

/// Load generator and stream checker for OpenAI-compatible servers.
///
/// Exit codes: 0 passed, 1 a check failed, 2 wrong usage.
#[derive(Debug, Parser)]
#[command(name = "loadgen", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Load a server; check every stream's tokens; report latencies.
    Run(Box<RunArgs>),
    /// Measure what a gateway adds, by pairs of short slices.
    Overhead(Box<OverheadArgs>),
    /// Leave in the middle of requests and ask the simulated engines what they noticed.
    Disconnect(Box<DisconnectArgs>),
}

#[derive(Debug, Args)]
struct OverheadArgs {
    /// Base URL of the engine itself
    #[arg(long, value_name = "URL")]
    direct: String,
    /// Base URL of the gateway before it
    #[arg(long, value_name = "URL")]
    via: String,
    /// The model asked for [default: the first that the engine lists]
    #[arg(long)]
    model: Option<String>,
    #[command(flatten)]
    shape: ShapeArgs,
    /// Requests a second within a slice
    #[arg(long, default_value_t = 500.0)]
    rate: f64,
    /// Their spacing: constant or poisson
    #[arg(long, default_value = "constant")]
    arrivals: Arrivals,
    /// Length of a slice
    #[arg(long, default_value = "300ms", value_parser = parse_duration)]
    slice: Duration,
    /// Pairs of slices measured
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    /// Pairs before them that are not
    #[arg(long, default_value_t = 2)]
    warmup_rounds: usize,
    /// Fail if the median added p99 is above this: of the total, or of streams' first token and inter-token times
    #[arg(long, value_name = "D", value_parser = parse_duration)]
    max_p99_overhead: Option<Duration>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, Args)]
struct DisconnectArgs {
    /// Base URL that clients use
    #[arg(long)]
    url: String,
    /// Base URLs of all engines behind it
    #[arg(long = "engine", value_name = "URL", num_args = 1.., required = true)]
    engines: Vec<String>,
    /// The model asked for [default: the first that is listed]
    #[arg(long)]
    model: Option<String>,
    /// Clients in all
    #[arg(long, default_value_t = 200)]
    requests: usize,
    /// Clients at a time
    #[arg(long, default_value_t = 40)]
    concurrency: usize,
    /// Tokens asked for; generating them must take longer than a client stays
    #[arg(long, default_value_t = 8_192)]
    output_tokens: u32,
    /// Longest time a client stays in its phase
    #[arg(long, default_value = "200ms", value_parser = parse_duration)]
    stay: Duration,
    /// Leave the engines' faults alone: quiet streams are those that happen to be
    #[arg(long)]
    no_stall: bool,
    /// Fail if the 99th percentile of the delay is above this
    #[arg(long, value_name = "D", default_value = "50ms", value_parser = parse_duration)]
    max_delay: Duration,
    /// Time after which a request that still runs counts as missed
    #[arg(long, default_value = "5s", value_parser = parse_duration)]
    deadline: Duration,
    /// Extra header line, `name: value`; may be repeated
    #[arg(long = "header", value_parser = parse_header)]
    headers: Vec<String>,
    /// Where all drawing starts from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    output: OutputArgs,
}

/// Where outcomes go, and what of them is accepted.
#[derive(Debug, Args)]
struct OutputArgs {
    /// Failed requests accepted; failed checks never are
    #[arg(long, default_value_t = 0)]
    max_errors: u64,
    /// Write the report as JSON; `-` for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// No progress bar
    #[arg(long)]
    no_progress: bool,
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Base URL of the API, such as http://127.0.0.1:8080
    #[arg(long)]
    url: String,
    /// The model asked for
    #[arg(long)]
    model: String,
    #[command(flatten)]
    shape: ShapeArgs,
    /// Requests a second, whatever the server does (open loop)
    #[arg(long, conflicts_with_all = ["concurrency", "sessions"])]
    rate: Option<f64>,
    /// Spacing of the open loop: constant or poisson
    #[arg(long, default_value = "constant")]
    arrivals: Arrivals,
    /// Requests at a time, each as soon as one ends (closed loop; without --rate: 16)
    #[arg(long, conflicts_with = "sessions")]
    concurrency: Option<usize>,
    /// Conversations at a time; each turn sends all that was said before
    #[arg(long, conflicts_with = "trace")]
    sessions: Option<usize>,
    /// Turns of a conversation
    #[arg(long, default_value_t = 4, requires = "sessions")]
    turns: usize,
    /// Pause between an answer and the next turn
    #[arg(long, default_value = "0s", value_parser = parse_duration, requires = "sessions")]
    think: Duration,
    /// Tokens that all prompts begin with
    #[arg(long, default_value_t = 0)]
    shared_prefix: u32,
    /// Requests of this first time are not measured
    #[arg(long, default_value = "0s", value_parser = parse_duration)]
    warmup: Duration,
    /// Measured time [default: 10s, unless --requests, --sessions or a trace's own times end the run]
    #[arg(long, value_parser = parse_duration)]
    duration: Option<Duration>,
    /// Most measured requests
    #[arg(long)]
    requests: Option<u64>,
    /// Replay the shapes of a trace (and its arrival times, without --rate and --concurrency)
    #[arg(long, conflicts_with_all = ["prompt_tokens", "output_tokens", "shared_prefix"])]
    trace: Option<PathBuf>,
    /// Play the trace's times this many times as fast
    #[arg(long, default_value_t = 1.0, requires = "trace", conflicts_with_all = ["rate", "concurrency"])]
    time_scale: f64,
    /// Read no more than this many requests of the trace
    #[arg(long, requires = "trace")]
    trace_limit: Option<usize>,
    /// Cut the trace's prompts to this many tokens
    #[arg(long, requires = "trace", default_value_t = u32::MAX, hide_default_value = true)]
    trace_input_max: u32,
    /// Cut the trace's outputs to this many tokens
    #[arg(long, requires = "trace", default_value_t = u32::MAX, hide_default_value = true)]
    trace_output_max: u32,
    /// Time for running requests to end after the measured time
    #[arg(long, default_value = "60s", value_parser = parse_duration)]
    drain: Duration,
    /// Most requests running at once in the open loop
    #[arg(long, default_value_t = 20_000)]
    max_in_flight: usize,
    /// Worker threads
    #[arg(long, default_value_t = 1)]
    threads: usize,
    #[command(flatten)]
    output: OutputArgs,
}

/// What requests look like; the same for each command that times them.
#[derive(Debug, Args)]
struct ShapeArgs {
    /// The call: chat, completions or embeddings
    #[arg(long, default_value = "chat")]
    api: Api,
    /// Ask for streams
    #[arg(long)]
    stream: bool,
    /// Ask for the usage chunk of streams
    #[arg(long, requires = "stream")]
    include_usage: bool,
    /// Prompt length: N, uniform:MIN:MAX or lognormal:MEDIAN:SIGMA[:MAX]
    #[arg(long, default_value = "64")]
    prompt_tokens: Lengths,
    /// Output length, written like --prompt-tokens
    #[arg(long, default_value = "16")]
    output_tokens: Lengths,
    /// Longest time one request may take
    #[arg(long, default_value = "600s", value_parser = parse_duration)]
    timeout: Duration,
    /// Check of token numbers: auto (where there are any), strict or off
    #[arg(long, default_value = "auto")]
    check: TokenCheck,
    /// Extra header line, `name: value`; may be repeated
    #[arg(long = "header", value_parser = parse_header)]
    headers: Vec<String>,
    /// Where all drawing starts from
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn parse_header(text: &str) -> Result<String, String> {
    let (name, value) = text.split_once(':').ok_or_else(|| format!("`{text}`: write name: value"))?;
    let (name, value) = (name.trim(), value.trim());
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || !name.bytes().all(token) {
        return Err(format!("`{name}` is no header name"));
    }
    if value.bytes().any(|b| b < b' ' && b != b'\t' || b == 0x7f) {
        return Err(format!("the value of {name} has control characters"));
    }
    Ok(format!("{name}: {value}"))
}

/// Reads the command line, does what it says and prints the outcome.
pub fn main() -> ExitCode {
    let cli = Cli::parse(); // exits with 2 by itself when the usage is wrong
    raise_descriptor_limit();
    let outcome = match cli.command {
        Command::Run(args) => run_command(&args),
        Command::Overhead(args) => overhead_command(&args),
        Command::Disconnect(args) => disconnect_command(&args),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FAILED),
        Err(CliError::Usage(what)) => complain(&what, USAGE),
        Err(CliError::Failed(what)) => complain(&what, FAILED),
    }
}

enum CliError {
    Usage(String),
    Failed(String),
}

impl From<RunError> for CliError {
    fn from(e: RunError) -> Self {
        match &e {
            RunError::Engine(_) => CliError::Failed(e.to_string()),
            RunError::Io(source) => CliError::Failed(format!("{e}: {source}")),
            _ => CliError::Usage(e.to_string()),
        }
    }
}

fn run_command(args: &RunArgs) -> Result<bool, CliError> {
    let config = run_config(args)?;
    stop_on_interrupt(&config.stop).map_err(RunError::Io)?;
    let report = crate::run::run(&config)?;
    publish(&report, || report.table(), args.output.json.as_deref())?;
    Ok(report.passed)
}

fn run_config(args: &RunArgs) -> Result<RunConfig, CliError> {
    let shape = &args.shape;
    let prompts = match &args.trace {
        None => Prompts::Drawn {
            prompt: shape.prompt_tokens,
            output: shape.output_tokens,
            shared_prefix: args.shared_prefix,
        },
        Some(path) => Prompts::Trace {
            requests: Arc::new(read_trace(path, args.trace_limit)?),
            input_max: args.trace_input_max,
            output_max: args.trace_output_max,
        },
    };
    let load = match (args.rate, args.concurrency, args.sessions) {
        (Some(rate), ..) => Load::Open { rate, arrivals: args.arrivals },
        (_, Some(concurrency), _) => Load::Closed { concurrency },
        (.., Some(sessions)) => Load::Sessions { sessions, turns: args.turns, think: args.think },
        _ if args.trace.is_some() => Load::Replay { speed: args.time_scale },
        _ => Load::Closed { concurrency: 16 },
    };
    Ok(RunConfig {
        api: shape.api,
        load,
        prompts,
        stream: shape.stream,
        include_usage: shape.include_usage,
        warmup: args.warmup,
        duration: args.duration,
        requests: args.requests,
        timeout: shape.timeout,
        drain: args.drain,
        max_errors: args.output.max_errors,
        check: shape.check,
        threads: args.threads,
        seed: shape.seed,
        headers: shape.headers.clone(),
        in_flight_max: args.max_in_flight,
        progress: !args.output.no_progress,
        ..RunConfig::new(&args.url, &args.model)
    })
}

fn overhead_command(args: &OverheadArgs) -> Result<bool, CliError> {
    let shape = &args.shape;
    let config = OverheadConfig {
        model: args.model.clone(),
        api: shape.api,
        rate: args.rate,
        arrivals: args.arrivals,
        prompt: shape.prompt_tokens,
        output: shape.output_tokens,
        stream: shape.stream,
        include_usage: shape.include_usage,
        slice: args.slice,
        rounds: args.rounds,
        warmup_rounds: args.warmup_rounds,
        timeout: shape.timeout,
        check: shape.check,
        seed: shape.seed,
        headers: shape.headers.clone(),
        max_p99_overhead: args.max_p99_overhead,
        max_errors: args.output.max_errors,
        progress: !args.output.no_progress,
        ..OverheadConfig::new(&args.direct, &args.via)
    };
    stop_on_interrupt(&config.stop).map_err(RunError::Io)?;
    let report = crate::overhead::overhead(&config)?;
    publish(&report, || report.table(), args.output.json.as_deref())?;
    Ok(report.passed)
}

fn disconnect_command(args: &DisconnectArgs) -> Result<bool, CliError> {
    let config = DisconnectConfig {
        model: args.model.clone(),
        requests: args.requests,
        concurrency: args.concurrency,
        output: args.output_tokens,
        stay: args.stay,
        stall: !args.no_stall,
        max_delay: args.max_delay,
        deadline: args.deadline,
        max_errors: args.output.max_errors,
        seed: args.seed,
        headers: args.headers.clone(),
        progress: !args.output.no_progress,
        ..DisconnectConfig::new(&args.url, args.engines.clone())
    };
    stop_on_interrupt(&config.stop).map_err(RunError::Io)?;
    let report = crate::disconnect::disconnect(&config)?;
    publish(&report, || report.table(), args.output.json.as_deref())?;
    Ok(report.passed)
}

fn read_trace(path: &Path, limit: Option<usize>) -> Result<Vec<trace::TraceRequest>, CliError> {
    let usage = |e: &dyn std::fmt::Display| CliError::Usage(format!("{}: {e}", path.display()));
    let file = File::open(path).map_err(|e| usage(&e))?;
    trace::read(BufReader::new(file), limit).map_err(|e| match std::error::Error::source(&e) {
        Some(source) => usage(&format!("{e}: {source}")),
        None => usage(&e),
    })
}

/// A thousand streams need a thousand descriptors, and the usual soft limit is 1,024.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Refused: the run will tell by its connect errors if it was needed.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// Ends the run at the first Ctrl-C and the process at the second.
fn stop_on_interrupt(stop: &StopHandle) -> std::io::Result<()> {
    let stop = stop.clone();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let listen = move || {
        runtime.block_on(async {
            let Ok(mut signals) = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::interrupt())
            else {
                return;
            };
            signals.recv().await;
            stop.stop();
            signals.recv().await;
            #[allow(clippy::disallowed_methods)] // the user asked twice; nothing is left that matters
            std::process::exit(130);
        });
    };
    std::thread::Builder::new().name("loadgen-signals".into()).spawn(listen).map(drop)
}

/// Prints the table, and the JSON where it is wanted.
fn publish<R: Serialize>(
    report: &R,
    table: impl FnOnce() -> String,
    json: Option<&Path>,
) -> Result<(), CliError> {
    let to_stdout = json.is_some_and(|path| path.as_os_str() == "-");
    let mut out = std::io::stdout().lock();
    // A closed pipe downstream is no reason to change the outcome.
    let _ = if to_stdout { write_json(&mut out, report) } else { writeln!(out, "{}", table()) };
    if let Some(path) = json.filter(|_| !to_stdout) {
        let failed = |e: std::io::Error| CliError::Failed(format!("cannot write {}: {e}", path.display()));
        let mut file = File::create(path).map_err(failed)?;
        write_json(&mut file, report).map_err(failed)?;
    }
    Ok(())
}

fn write_json<R: Serialize>(out: &mut impl Write, report: &R) -> std::io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, report)?;
    writeln!(out)
}

fn complain(what: &str, code: u8) -> ExitCode {
    let _ = writeln!(std::io::stderr().lock(), "loadgen: {what}");
    ExitCode::from(code)
}

#[cfg(test)]
mod tests;
