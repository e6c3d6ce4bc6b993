//! `server.yaml`: read, checked, and turned into what shards need.
//!
//! **Invariants**
//!
//! * A [`Config`] that exists is possible: every value is in its bounds, every name resolves, no two keys contradict.
//! * Nothing is ignored in silence: an unknown key is an error, and a key on which this version does not act is a
//!   warning.
//! * The environment is passed in; nothing here reads the process's own.

mod decode;
mod env;
mod fit;
mod fleet;
mod sections;
mod tree;
mod types;
mod units;
mod view;

pub use decode::Problem;
pub use env::variable;
pub use fit::EffectiveLimits;
pub use fleet::{parse_url, split_authority};
pub use sections::{LISTENERS, POLICIES};
pub use tree::Origin;
pub use types::*;
pub use units::{parse_duration, parse_size, show_duration, show_size};
pub use view::{sample, view};

use llmgw_routing::Nanos;
use llmgw_routing::snapshot::{self, Settings};
use std::fmt;
use std::path::Path;
use std::time::Duration;

/// Why a configuration cannot be used: everything that is wrong with it, a line each.
#[derive(Debug)]
pub struct ConfigError {
    file: String,
    problems: Vec<Problem>,
}

impl ConfigError {
    /// What is wrong, in the order of the file.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    fn one(file: &str, at: Origin, message: String) -> Self {
        ConfigError { file: file.to_owned(), problems: vec![Problem { at, path: String::new(), message }] }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, problem) in self.problems.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            f.write_str(&problem.show(&self.file))?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}

/// A configuration and what is to be said about it at start.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// One line each.
    pub warnings: Vec<String>,
}

/// Sections whose names, as prefixes, mark a variable as meant for the configuration.
const SECTIONS: [&str; 14] = [
    "log",
    "auth",
    "admin",
    "store",
    "limits",
    "timeouts",
    "router",
    "cors",
    "tls",
    "registry_tls",
    "endpoints",
    "routes",
    "models",
    "fabrics",
];
const TOP_LEVEL_SCALARS: [&str; 7] =
    ["listen", "admin_listen", "health_listen", "registry_listen", "agent_listen", "shards", "driver"];

impl Config {
    /// Reads and checks a file, with environment variables over it.
    pub fn load(
        path: &Path,
        vars: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Loaded, ConfigError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::one(&file, Origin::Default, format!("cannot be read: {error}")))?;
        Self::parse(&file, &text, vars)
    }

    /// Checks a text; `file` names it in messages.
    pub fn parse(
        file: &str,
        text: &str,
        vars: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Loaded, ConfigError> {
        let mut root = tree::parse(text).map_err(|error| ConfigError::one(file, error.at, error.message))?;
        let notes = decode::Notes::default();
        let top: Vec<&str> = SECTIONS.into_iter().chain(TOP_LEVEL_SCALARS).collect();
        let strangers = env::apply(&mut root, &top, vars, &notes);
        let mut config = sections::root(&notes, &root);
        config.origins = notes.origins();
        let known = notes.known();
        let mut warnings = env::judge(strangers, &known, &SECTIONS, &notes);
        let (problems, later) = notes.into_parts();
        if !problems.is_empty() {
            return Err(ConfigError { file: file.to_owned(), problems });
        }
        if !later.is_empty() {
            let later = later.join(", ");
            warnings.push(format!("{file}: accepted, but this version does not act on: {later}"));
        }
        Ok(Loaded { config, warnings })
    }

    /// What of it shards act on.
    pub fn settings(&self) -> Settings {
        let (limits, timeouts, router) = (&self.limits, &self.timeouts, &self.router);
        Settings {
            max_body: to_usize(limits.max_body),
            max_header: to_usize(limits.max_header),
            max_headers: to_usize(limits.max_headers),
            max_connections: to_usize(limits.max_connections),
            max_connections_per_client: u32::try_from(limits.max_connections_per_client).unwrap_or(u32::MAX),
            max_json_depth: u16::try_from(limits.max_json_depth).unwrap_or(u16::MAX),
            buffered_total: to_usize(limits.buffered_total),
            half_close_abort: limits.half_close == HalfClose::Abort,
            busy_poll: nanos(self.busy_poll),
            timeout_header: nanos(timeouts.header),
            timeout_idle: nanos(timeouts.idle),
            timeout_body_idle: nanos(timeouts.body_idle),
            timeout_connect: nanos(timeouts.connect),
            timeout_first_token: nanos(timeouts.first_token),
            timeout_between_tokens: nanos(timeouts.between_tokens),
            timeout_total: nanos(timeouts.total),
            timeout_upstream_idle: nanos(timeouts.upstream_idle),
            timeout_shutdown: nanos(timeouts.shutdown),
            retries: router.retries,
            retry_budget: router.retry_budget,
            cooldown: nanos(router.cooldown),
            inject_usage: router.inject_usage,
            keep_alive_comment: nanos(router.keep_alive_comment),
            default_priority: router.default_priority,
            debug_headers: !self.auth.required,
            cors: snapshot::Cors {
                allow_origins: self.cors.allow_origins.iter().map(|origin| origin.as_str().into()).collect(),
                max_age_s: u32::try_from(self.cors.max_age.as_secs()).unwrap_or(u32::MAX),
            },
        }
    }

    /// Names of the keys that differ from `new` and cannot change while the process runs.
    pub fn fixed_keys_changed(&self, new: &Config) -> Vec<&'static str> {
        let listeners =
            |c: &Config| [c.listen, c.admin_listen, c.health_listen, c.registry_listen, c.agent_listen];
        let pairs = listeners(self).into_iter().zip(listeners(new));
        let changed = LISTENERS.iter().zip(pairs).filter(|(_, (old, new))| old != new);
        let mut names: Vec<&'static str> = changed.map(|((name, ..), _)| *name).collect();
        let others = [
            ("shards", self.shards != new.shards),
            ("driver", self.driver != new.driver),
            ("log.format", self.log.format != new.log.format),
            ("registry_tls", self.registry_tls != new.registry_tls),
            ("auth.required", self.auth.required != new.auth.required),
        ];
        names.extend(others.iter().filter(|(_, changed)| *changed).map(|(name, _)| *name));
        names
    }
}

fn nanos(duration: Duration) -> Nanos {
    Nanos::try_from(duration.as_nanos()).unwrap_or(Nanos::MAX)
}

fn to_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
