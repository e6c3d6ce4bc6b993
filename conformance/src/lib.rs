//! HTTP/1.1 conformance: the cases of `h1.toml`, and the stacks they run against.
//!
//! * [`case`] reads the file; [`judge`] says whether what was seen is allowed.
//! * [`shard`] runs a case against a shard over the simulated network: fast enough for every split of every case.
//! * [`socket`] runs it against any gateway at an address, with a scripted engine behind it.
//! * [`gateways`] starts llmgw and its peers for that.
//! * [`parsers`] shows what the gateway sent to engines to other HTTP implementations.
//!
//! **Invariant:** nothing here reads HTTP with the gateway's code, so that both cannot err together.

pub mod case;
pub mod gateways;
pub mod judge;
pub mod mutate;
pub mod parsers;
pub mod shard;
pub mod socket;
pub mod table;
pub mod wire;
