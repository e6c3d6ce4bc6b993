//! `llmgw completions` and `llmgw man`: made from the command line's declarations.

use crate::{Cli, Failure};
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use std::io::{self, Write};
use std::path::PathBuf;

/// Flags of `llmgw completions`.
#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Flags of `llmgw man`.
#[derive(Args)]
pub struct ManArgs {
    /// Write a page for each command into this directory, instead of the first one to standard output
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

/// Prints the completion script of a shell.
pub fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "llmgw", &mut script);
    io::stdout().write_all(&script).map_err(Failure::run)
}

/// Prints or writes manual pages.
pub fn man(args: &ManArgs) -> Result<(), Failure> {
    let command = Cli::command();
    match &args.dir {
        Some(dir) => {
            let failed = |error| Failure::run(format!("{}: {error}", dir.display()));
            std::fs::create_dir_all(dir).map_err(failed)?;
            clap_mangen::generate_to(command, dir).map_err(failed)
        }
        None => clap_mangen::Man::new(command).render(&mut io::stdout()).map_err(Failure::run),
    }
}
