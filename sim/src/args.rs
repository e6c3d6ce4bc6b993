//! The `sim-engine` command line and the configuration it makes.

use std::fmt;
use std::io::Write;
use std::net::SocketAddr;
use std::time::Duration;

use crate::fault::Fault;
use crate::heartbeat::Announcement;
use crate::model::ModelConfig;
use crate::server::{Engine, StartError};

/// Flags of `llmgw sim-engine`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Address to serve on; port 0 takes a free one, which is printed
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8000")]
    pub listen: SocketAddr,
    /// Second address, which no fault closes: for /sim/ calls while the first refuses connections
    #[arg(long, value_name = "ADDR")]
    pub admin_listen: Option<SocketAddr>,
    /// Name of the served model
    #[arg(long, value_name = "NAME", default_value = "sim")]
    pub model: String,
    /// Whose metric names and manners to use
    #[arg(long, value_enum, default_value = "vllm")]
    pub metrics_format: MetricsFormat,
    /// Fixed latency between a prompt's prefill and its first token
    #[arg(long, value_name = "D", default_value = "20ms", value_parser = parse_duration)]
    pub ttft: Duration,
    /// Prompt tokens prefilled a second, shared by the prefilling sequences
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub prefill_tps: u64,
    /// Interval between tokens of a sequence that runs alone
    #[arg(long, value_name = "D", default_value = "10ms", value_parser = parse_duration)]
    pub itl: Duration,
    /// How much longer the interval is when the batch is full, in thousandths
    #[arg(long, value_name = "PERMILLE", default_value_t = 50)]
    pub itl_growth: u32,
    /// Decode the whole batch at the same instants, instead of keeping each sequence's phase
    #[arg(long)]
    pub lockstep: bool,
    /// Most sequences running at once; more wait
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_seqs: u32,
    /// Blocks of the KV cache
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..))]
    pub kv_blocks: u32,
    /// Tokens a block holds
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub block_size: u32,
    /// Longest prompt and output together, in tokens
    #[arg(long, value_name = "N", default_value_t = 131_072, value_parser = clap::value_parser!(u32).range(2..))]
    pub max_model_len: u32,
    /// Tokens generated when a request names no limit
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    pub default_tokens: u32,
    /// Time after the start during which requests and /health get 503
    #[arg(long, value_name = "D", default_value = "0s", value_parser = parse_duration)]
    pub load_time: Duration,
    /// A fault from the start on; repeatable. See `POST /sim/fault` for changing it while running
    #[arg(long, value_name = "NAME[=ARG][,count=N][,p=P]", value_parser = Fault::parse)]
    pub fault: Vec<Fault>,
    /// Registry of a gateway (tl.control.v1) to announce the engine to
    #[arg(long, value_name = "ADDR", requires = "worker_id")]
    pub registry: Option<SocketAddr>,
    /// Id to announce
    #[arg(long, value_name = "ID", requires = "registry")]
    pub worker_id: Option<String>,
    /// Part in disaggregated serving to announce
    #[arg(long, value_enum, default_value = "unified", requires = "registry")]
    pub role: WorkerRole,
    /// HTTP address to announce, where --listen is not how others reach it
    #[arg(long, value_name = "HOST:PORT", requires = "registry")]
    pub advertise: Option<String>,
    /// Between two heartbeats
    #[arg(long, value_name = "D", default_value = "2s", value_parser = parse_duration, requires = "registry")]
    pub heartbeat_interval: Duration,
}

/// Parts in disaggregated serving.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum WorkerRole {
    /// Prefill and decode.
    Unified,
    /// Prefill only.
    Prefill,
    /// Decode only.
    Decode,
}

/// Whose metric names `/metrics` uses, and whose habits the server has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum MetricsFormat {
    /// vLLM: `vllm:...`; the head is sent before the first token.
    Vllm,
    /// SGLang: `sglang:...`; the head is sent before the first token.
    Sglang,
    /// llama.cpp: `llamacpp:...`; the head comes with the first token.
    Llamacpp,
}

/// How an engine is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address to serve on; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Second address that no fault closes.
    pub admin_listen: Option<SocketAddr>,
    /// Name of the served model.
    pub model: String,
    /// Metric names and manners.
    pub metrics_format: MetricsFormat,
    /// The engine's speed and size.
    pub engine: ModelConfig,
    /// Longest prompt and output together, in tokens.
    pub max_model_len: u32,
    /// Tokens generated when a request names no limit.
    pub default_tokens: u32,
    /// How long loading takes.
    pub load_time: Duration,
    /// Faults from the start on.
    pub faults: Vec<Fault>,
}

impl Default for Config {
    /// A free loopback port and a fast engine: no fixed first-token latency, a token a millisecond.
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            admin_listen: None,
            model: "sim".to_owned(),
            metrics_format: MetricsFormat::Vllm,
            engine: ModelConfig {
                max_seqs: 1024,
                prefill_tps: 1_000_000,
                ttft_ns: 0,
                itl_ns: 1_000_000,
                itl_growth_permille: 50,
                lockstep: false,
                kv_blocks: 65_536,
                block_size: 16,
            },
            max_model_len: 131_072,
            default_tokens: 16,
            load_time: Duration::ZERO,
            faults: Vec::new(),
        }
    }
}

impl From<Args> for Config {
    fn from(args: Args) -> Self {
        Self {
            listen: args.listen,
            admin_listen: args.admin_listen,
            model: args.model,
            metrics_format: args.metrics_format,
            engine: ModelConfig {
                max_seqs: args.max_seqs,
                prefill_tps: args.prefill_tps,
                ttft_ns: nanos(args.ttft),
                itl_ns: nanos(args.itl),
                itl_growth_permille: args.itl_growth,
                lockstep: args.lockstep,
                kv_blocks: args.kv_blocks,
                block_size: args.block_size,
            },
            max_model_len: args.max_model_len,
            default_tokens: args.default_tokens,
            load_time: args.load_time,
            faults: args.fault,
        }
    }
}

/// Runs an engine until SIGINT or SIGTERM; prints one line with its address when it listens.
///
/// # Errors
/// Whatever kept it from starting.
pub async fn run(args: Args) -> Result<(), StartError> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut term = signal(SignalKind::terminate()).map_err(StartError::Signal)?;
    let mut int = signal(SignalKind::interrupt()).map_err(StartError::Signal)?;
    let (registry, worker_id) = (args.registry, args.worker_id.clone());
    let (role, advertise, interval) = (args.role, args.advertise.clone(), args.heartbeat_interval);
    let model = args.model.clone();
    let engine = Engine::start(Config::from(args))?;
    let announcement = registry.zip(worker_id).map(|(registry, worker_id)| Announcement {
        registry,
        worker_id,
        role: match role {
            WorkerRole::Unified => "unified",
            WorkerRole::Prefill => "prefill",
            WorkerRole::Decode => "decode",
        },
        http_address: advertise.unwrap_or_else(|| engine.local_addr().to_string()),
        model,
        interval,
    });
    let mut line = format!("listening on http://{}", engine.local_addr());
    if let Some(admin) = engine.admin_addr() {
        line.push_str(&format!(" admin http://{admin}"));
    }
    let mut stdout = std::io::stdout().lock();
    // Nobody reading the line is no reason not to serve.
    let _ = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    drop(stdout);
    let beating = async {
        match &announcement {
            Some(announcement) => announcement.beat(&engine).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = beating => {}
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    if let Some(announcement) = &announcement {
        announcement.leave(&engine).await;
    }
    engine.shutdown();
    Ok(())
}

/// A duration that is not one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadDuration(String);

impl fmt::Display for BadDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not a duration: write a number and us, ms, s or m, as in 250ms", self.0)
    }
}

impl std::error::Error for BadDuration {}

/// Parses `250ms`, `2s`, `1.5s`, `5m`, `200us`.
///
/// # Errors
/// [`BadDuration`] for anything else.
pub fn parse_duration(text: &str) -> Result<Duration, BadDuration> {
    let bad = || BadDuration(text.to_owned());
    let unit_at = text.find(|c: char| c.is_ascii_alphabetic()).ok_or_else(bad)?;
    let (number, unit) = text.split_at(unit_at);
    let scale = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        _ => return Err(bad()),
    };
    let number: f64 = number.trim().parse().map_err(|_| bad())?;
    Duration::try_from_secs_f64(number * scale).map_err(|_| bad())
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
