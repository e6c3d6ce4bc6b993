//! `llmgw`: one binary in several roles. This file is the command line; each role has a module.

mod ctl;
mod demo;
#[cfg(test)]
mod reference;
mod server;
mod shell;

use clap::{Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::process::ExitCode;

/// An OpenAI-compatible gateway for self-run LLM fleets.
#[derive(Parser)]
#[command(name = "llmgw", version, about, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the gateway
    Server(ServerArgs),
    /// Run a simulated engine
    SimEngine(llmgw_sim::Args),
    /// Start three simulated engines and a gateway, stream a chat through them, and stay up
    Demo(DemoArgs),
    /// Ask and steer a running gateway over its admin API
    Ctl(ctl::CtlArgs),
    /// Print the completion script of a shell
    Completions(shell::CompletionsArgs),
    /// Print the manual page, or write those of all commands
    Man(shell::ManArgs),
}

/// Flags of `llmgw server`.
#[derive(clap::Args)]
struct ServerArgs {
    /// Configuration file (server.yaml)
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Check the configuration, say what is wrong with it, and exit
    #[arg(long)]
    check_config: bool,
    /// Driver to use, over the configuration's
    #[arg(long, value_name = "DRIVER")]
    driver: Option<DriverArg>,
}

/// Drivers by name.
#[derive(Clone, Copy, ValueEnum)]
enum DriverArg {
    /// The best that works here
    Auto,
    /// io_uring
    #[value(name = "io_uring")]
    IoUring,
    /// epoll
    Epoll,
}

/// Flags of `llmgw demo`.
#[derive(clap::Args)]
struct DemoArgs {
    /// Exit after the chat
    #[arg(long)]
    once: bool,
}

#[allow(clippy::print_stderr)] // the command line's own voice
fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Server(args) => server::main(&args),
        Command::SimEngine(args) => sim_engine(args),
        Command::Demo(args) => demo::main(args.once),
        Command::Ctl(args) => ctl::main(&args),
        Command::Completions(args) => shell::completions(&args),
        Command::Man(args) => shell::man(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read the output has seen enough.
        Err(failure) if failure.code == 0 => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("llmgw: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}

/// Why a command failed. Exit codes: 1 it failed, 2 wrong usage or configuration.
struct Failure {
    code: u8,
    message: String,
}

#[allow(clippy::needless_pass_by_value)] // handed to map_err as they are
impl Failure {
    fn run(message: impl ToString) -> Self {
        Failure { code: 1, message: message.to_string() }
    }
    fn usage(message: impl ToString) -> Self {
        Failure { code: 2, message: message.to_string() }
    }
}

fn sim_engine(args: llmgw_sim::Args) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Failure::run)?;
    runtime.block_on(llmgw_sim::run(args)).map_err(Failure::run)
}
