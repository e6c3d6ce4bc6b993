//! The route table: what a public model name leads to.
//!
//! [`RouteSpec`] is a route as an operator writes it, in the configuration or through the admin API; [`validate`] is
//! the one judge of both. [`RouteTable`] is what shards read: built once for each change of the table, shared by
//! every snapshot until the next, so that neither building nor dropping it is a shard's work.
//!
//! **Invariants:** one request id is always drawn to the same backend; weights cumulate in listed order. A table that
//! exists was validated.

use crate::ring::hash64;
use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// Most routes of a table.
pub const ROUTES_MAX: usize = 50_000;
/// Most aliases, backends or steps of one route.
pub const LIST_MAX: usize = 1000;
/// Longest model name or alias, bytes.
pub const NAME_MAX: usize = 256;
/// How far from 1 the weights of a route may sum, for decimal fractions that no double holds.
const SUM_TOLERANCE: f64 = 1e-9;

/// A route as an operator writes it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RouteSpec {
    /// Public model name.
    pub model: String,
    /// Further public names.
    pub aliases: Vec<String>,
    /// `unified` or `disaggregated`; empty counts as `unified`.
    pub targets: Vec<String>,
    /// Served models by weight; empty: the route's own model.
    pub backends: Vec<BackendSpec>,
    /// Models asked one after the other; empty: no cascade.
    pub cascade: Vec<StepSpec>,
    /// Priority toward engines; `None`: the router's default.
    pub priority: Option<i32>,
}

impl RouteSpec {
    /// Every served model that the route may lead to, and every model of its cascade; with repetitions.
    pub fn served_models(&self) -> impl Iterator<Item = &str> {
        let backends = self.backends.iter().map(|backend| backend.served_model.as_str());
        let steps = self.cascade.iter().map(|step| step.model.as_str());
        let own = (self.backends.is_empty() && self.cascade.is_empty()).then_some(self.model.as_str());
        backends.chain(steps).chain(own)
    }
}

/// A share of a route.
#[derive(Debug, Clone, PartialEq)]
pub struct BackendSpec {
    /// Model id that engines answer to.
    pub served_model: String,
    /// From 0 to 1; those of a route sum to 1.
    pub weight: f64,
}

/// A step of a cascade.
#[derive(Debug, Clone, PartialEq)]
pub struct StepSpec {
    /// Model that is asked.
    pub model: String,
    /// When its answer is kept, see [`AcceptIf`]; only the last step has none.
    pub accept_if: Option<String>,
}

/// Something wrong with a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteProblem {
    /// Path of the field, such as `routes[0].cascade[1].accept_if`.
    pub param: String,
    /// What is wrong and what to do.
    pub message: String,
}

impl fmt::Display for RouteProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.param, self.message)
    }
}

impl std::error::Error for RouteProblem {}

/// A cascade's rule: `mean_logprob > -1.2`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AcceptIf {
    /// What of an answer's token log-probabilities is compared.
    pub metric: Metric,
    /// How.
    pub op: Comparison,
    /// With what.
    pub bound: f64,
}

/// Left side of an [`AcceptIf`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Their mean.
    MeanLogprob,
    /// The smallest.
    MinLogprob,
}

/// Operator of an [`AcceptIf`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Comparison {
    Above,
    AtLeast,
    Below,
    AtMost,
}

impl FromStr for AcceptIf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            let shown = text.chars().take(80).collect::<String>();
            format!("`{}` is not `mean_logprob|min_logprob >|>=|<|<= NUMBER`", shown.escape_debug())
        };
        let mut parts = text.split_whitespace();
        let (metric, op, bound) = (parts.next(), parts.next(), parts.next());
        let metric = match metric {
            Some("mean_logprob") => Metric::MeanLogprob,
            Some("min_logprob") => Metric::MinLogprob,
            _ => return Err(wrong()),
        };
        let op = match op {
            Some(">") => Comparison::Above,
            Some(">=") => Comparison::AtLeast,
            Some("<") => Comparison::Below,
            Some("<=") => Comparison::AtMost,
            _ => return Err(wrong()),
        };
        let bound = bound.and_then(|bound| bound.parse::<f64>().ok()).filter(|bound| bound.is_finite());
        match (bound, parts.next()) {
            (Some(bound), None) => Ok(AcceptIf { metric, op, bound }),
            _ => Err(wrong()),
        }
    }
}

/// Judges a table as a whole; problems come in the order of the table.
pub fn validate(routes: &[RouteSpec]) -> Result<(), Vec<RouteProblem>> {
    let mut judge = Judge::default();
    if routes.len() > ROUTES_MAX {
        judge.problem(
            "routes".into(),
            format!("{} routes are more than the {ROUTES_MAX} allowed", routes.len()),
        );
        return Err(judge.problems);
    }
    for (i, route) in routes.iter().enumerate() {
        judge.route(&format!("routes[{i}]"), route);
    }
    if judge.problems.is_empty() { Ok(()) } else { Err(judge.problems) }
}

#[derive(Default)]
struct Judge<'a> {
    problems: Vec<RouteProblem>,
    /// Public names with the path at which each was given first.
    names: HashMap<&'a str, String>,
}

impl<'a> Judge<'a> {
    fn problem(&mut self, param: String, message: impl Into<String>) {
        self.problems.push(RouteProblem { param, message: message.into() });
    }

    fn route(&mut self, at: &str, route: &'a RouteSpec) {
        self.public_name(format!("{at}.model"), &route.model);
        for (list, len) in [
            ("aliases", route.aliases.len()),
            ("targets", route.targets.len()),
            ("backends", route.backends.len()),
            ("cascade", route.cascade.len()),
        ] {
            if len > LIST_MAX {
                self.problem(
                    format!("{at}.{list}"),
                    format!("{len} entries are more than the {LIST_MAX} allowed"),
                );
                return;
            }
        }
        for (i, alias) in route.aliases.iter().enumerate() {
            self.public_name(format!("{at}.aliases[{i}]"), alias);
        }
        for (i, target) in route.targets.iter().enumerate() {
            if !matches!(target.as_str(), "unified" | "disaggregated") {
                let message = format!("`{}` is neither unified nor disaggregated", target.escape_debug());
                self.problem(format!("{at}.targets[{i}]"), message);
            } else if route.targets[..i].contains(target) {
                self.problem(format!("{at}.targets[{i}]"), format!("`{target}` is given twice"));
            }
        }
        self.backends(at, &route.backends);
        self.cascade(at, &route.cascade);
        if !route.backends.is_empty() && !route.cascade.is_empty() {
            self.problem(format!("{at}.cascade"), "a route has backends or a cascade, not both");
        }
    }

    fn public_name(&mut self, param: String, name: &'a str) {
        if !self.name(&param, name) {
            return;
        }
        match self.names.get(name) {
            Some(first) => {
                let message = format!("`{name}` is already the model or an alias of a route ({first})");
                self.problem(param, message);
            }
            None => {
                self.names.insert(name, param);
            }
        }
    }

    /// A name that may stand in a header and a label: printable ASCII.
    fn name(&mut self, param: &str, name: &str) -> bool {
        let printable = name.bytes().all(|b| (b' '..=b'~').contains(&b));
        let fits = printable && name.trim() == name && !name.is_empty() && name.len() <= NAME_MAX;
        if !fits {
            let shown = name.chars().take(80).collect::<String>();
            let message =
                format!("`{}` must be 1 to {NAME_MAX} printable ASCII characters", shown.escape_debug());
            self.problem(param.to_owned(), message);
        }
        fits
    }

    fn backends(&mut self, at: &str, backends: &[BackendSpec]) {
        let mut bad = false;
        for (i, backend) in backends.iter().enumerate() {
            let named = self.name(&format!("{at}.backends[{i}].served_model"), &backend.served_model);
            if named && backends[..i].iter().any(|earlier| earlier.served_model == backend.served_model) {
                let message = format!("`{}` is a backend of this route twice", backend.served_model);
                self.problem(format!("{at}.backends[{i}].served_model"), message);
            }
            if !(0.0..=1.0).contains(&backend.weight) {
                bad = true;
                let message = format!("{} must be a number from 0 to 1", backend.weight);
                self.problem(format!("{at}.backends[{i}].weight"), message);
            }
        }
        let sum: f64 = backends.iter().map(|backend| backend.weight).sum();
        if !backends.is_empty() && !bad && (sum - 1.0).abs() > SUM_TOLERANCE {
            self.problem(format!("{at}.backends"), format!("the weights sum to {sum}; they must sum to 1"));
        }
    }

    fn cascade(&mut self, at: &str, cascade: &[StepSpec]) {
        if cascade.len() == 1 {
            self.problem(format!("{at}.cascade"), "needs at least 2 steps");
        }
        for (i, step) in cascade.iter().enumerate() {
            self.name(&format!("{at}.cascade[{i}].model"), &step.model);
            let param = format!("{at}.cascade[{i}].accept_if");
            match (&step.accept_if, i + 1 == cascade.len()) {
                (Some(_), true) => self.problem(param, "the last step of a cascade has none"),
                (None, false) => self.problem(param, "every step but the last needs one"),
                (Some(rule), false) => {
                    if let Err(message) = rule.parse::<AcceptIf>() {
                        self.problem(param, message);
                    }
                }
                (None, true) => {}
            }
        }
    }
}

/// Where requests for one public name go.
#[derive(Debug)]
pub struct Route {
    /// Public name.
    pub name: Arc<str>,
    /// Priority toward engines; `None`: the router's default.
    pub priority: Option<i32>,
    /// Served models and their weights, in listed order; never empty.
    backends: Box<[(Arc<str>, f64)]>,
    /// Sum of the weights.
    total: f64,
}

impl Route {
    fn new(spec: &RouteSpec) -> Route {
        let name: Arc<str> = spec.model.as_str().into();
        let backends: Box<[(Arc<str>, f64)]> = match (&spec.backends[..], spec.cascade.last()) {
            // A stream takes the last step of a cascade in any case; cascades proper are not served yet.
            ([], Some(last)) => Box::new([(last.model.as_str().into(), 1.0)]),
            ([], None) => Box::new([(Arc::clone(&name), 1.0)]),
            (list, _) => list.iter().map(|b| (b.served_model.as_str().into(), b.weight)).collect(),
        };
        let total = backends.iter().map(|(_, weight)| weight).sum();
        Route { name, priority: spec.priority, backends, total }
    }

    /// The served model for this request.
    pub fn backend(&self, request_id: &str) -> &Arc<str> {
        let mut last = &self.backends[0].0;
        if self.backends.len() == 1 {
            return last;
        }
        let drawn = draw(request_id) * self.total;
        let mut upto = 0.0;
        for (served, weight) in self.backends.iter().filter(|(_, weight)| *weight > 0.0) {
            upto += weight;
            last = served;
            if drawn < upto {
                break;
            }
        }
        last
    }

    /// Every served model it may lead to.
    pub fn served_models(&self) -> impl Iterator<Item = &Arc<str>> {
        self.backends.iter().map(|(served, _)| served)
    }
}

/// A request id's place from 0 to below 1: the top 53 bits of its hash.
#[allow(clippy::cast_precision_loss)] // 53 bits are exact
pub fn draw(request_id: &str) -> f64 {
    (hash64(request_id.as_bytes()) >> 11) as f64 / (1u64 << 53) as f64
}

/// Every route by each of its names.
#[derive(Debug, Default)]
pub struct RouteTable {
    /// As the operator wrote them.
    pub specs: Arc<[RouteSpec]>,
    by_name: HashMap<Box<str>, Arc<Route>>,
}

impl RouteTable {
    /// Judges and builds a table.
    pub fn new(specs: Arc<[RouteSpec]>) -> Result<RouteTable, Vec<RouteProblem>> {
        validate(&specs)?;
        let mut by_name = HashMap::with_capacity(specs.len());
        for spec in specs.iter() {
            let route = Arc::new(Route::new(spec));
            for name in std::iter::once(&spec.model).chain(&spec.aliases) {
                by_name.insert(Box::from(name.as_str()), Arc::clone(&route));
            }
        }
        Ok(RouteTable { specs, by_name })
    }

    /// The route of a public name or alias.
    pub fn get(&self, name: &str) -> Option<&Arc<Route>> {
        if self.by_name.is_empty() { None } else { self.by_name.get(name) }
    }

    /// Public names and aliases, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(|name| &**name)
    }
}
