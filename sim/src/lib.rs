//! The simulated engine: an OpenAI-compatible server that behaves like a real one, fails on command, and numbers its
//! tokens so that a client can prove what became of each.
//!
//! - [`tokens`]: the text it generates and the check of it; [`tokenizer`]: how prompts are counted and cut into blocks.
//! - [`model`]: continuous batching and the prefix cache in virtual time; no sockets, no clock.
//! - [`fault`]: what it can be told to do wrong.
//! - [`heartbeat`]: announcing the engine to a gateway.
//! - [`server`]: HTTP over the model, on one thread of its own.
//!
//! ```no_run
//! let config = llmgw_sim::Config { model: "m".into(), ..Default::default() };
//! let engine = llmgw_sim::Engine::start(config)?;
//! println!("http://{}", engine.local_addr());
//! engine.shutdown();
//! # Ok::<(), llmgw_sim::StartError>(())
//! ```

pub mod args;
pub mod fault;
pub mod heartbeat;
pub mod model;
pub mod server;
pub mod tokenizer;
pub mod tokens;

pub use args::{Args, Config, MetricsFormat, run};
pub use fault::Fault;
pub use server::{Engine, StartError};
pub use tokens::{TokenChecker, TokenError};
