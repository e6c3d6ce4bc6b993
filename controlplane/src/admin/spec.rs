//! Route tables between the wire and what the fleet takes, and the judge of both.

use super::dto::{Backend, Route, Step, Target, unified};
use llmgw_routing::snapshot::{self, BackendSpec, RouteSpec, StepSpec};

impl From<&RouteSpec> for Route {
    fn from(spec: &RouteSpec) -> Route {
        let target = |name: &String| match name.as_str() {
            "disaggregated" => Target::Disaggregated,
            _ => Target::Unified,
        };
        let backend = |b: &BackendSpec| Backend { served_model: b.served_model.clone(), weight: b.weight };
        let step = |s: &StepSpec| Step { model: s.model.clone(), accept_if: s.accept_if.clone() };
        let targets: Vec<Target> = spec.targets.iter().map(target).collect();
        Route {
            model: spec.model.clone(),
            aliases: spec.aliases.clone(),
            targets: if targets.is_empty() { unified() } else { targets },
            backends: spec.backends.iter().map(backend).collect(),
            cascade: spec.cascade.iter().map(step).collect(),
            priority: spec.priority,
        }
    }
}

impl From<Route> for RouteSpec {
    fn from(route: Route) -> RouteSpec {
        let target = |target| match target {
            Target::Unified => "unified".to_owned(),
            Target::Disaggregated => "disaggregated".to_owned(),
        };
        let backend = |b: Backend| BackendSpec { served_model: b.served_model, weight: b.weight };
        let step = |s: Step| StepSpec { model: s.model, accept_if: s.accept_if };
        RouteSpec {
            model: route.model,
            aliases: route.aliases,
            targets: route.targets.into_iter().map(target).collect(),
            backends: route.backends.into_iter().map(backend).collect(),
            cascade: route.cascade.into_iter().map(step).collect(),
            priority: route.priority,
        }
    }
}

/// What is wrong with a table, if anything: the path of the field, and what is wrong with it.
pub fn validate(routes: &[Route]) -> Result<(), (String, String)> {
    let specs: Vec<RouteSpec> = routes.iter().cloned().map(Into::into).collect();
    snapshot::validate(&specs).map_err(|problems| {
        let first = problems.into_iter().next();
        first.map_or_else(Default::default, |problem| (problem.param, problem.message))
    })
}
