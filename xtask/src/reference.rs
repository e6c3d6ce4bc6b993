//! `cargo xtask reference`: writes the documents that are made from declarations. The tests that compare them with what
//! is checked in do it, so that there is one description of what they hold.

use crate::proc::{self, Outcome, cargo};

/// Writes them.
pub fn run() -> Outcome {
    let mut command = cargo();
    command.args(["test", "--package", "llmgw", "--bin", "llmgw", "reference_"]).env("LLMGW_REFRESH", "1");
    proc::run(&mut command)
}
