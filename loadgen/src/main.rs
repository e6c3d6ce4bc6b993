//! The `loadgen` command.

fn main() -> std::process::ExitCode {
    llmgw_loadgen::cli::main()
}
