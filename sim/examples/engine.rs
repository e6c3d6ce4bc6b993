//! The simulated engine alone: `cargo run -p llmgw-sim --example engine -- --listen 127.0.0.1:0 --model m`.

use clap::Parser;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: llmgw_sim::Args,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), llmgw_sim::StartError> {
    llmgw_sim::run(Cli::parse().args).await
}
