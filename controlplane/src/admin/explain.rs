//! `/admin/v1/route-explain`: where a request would go, and why. Asking changes nothing.

use super::dto::{Affinity, Considered, Explanation, Filtered, Scored};
use super::{Admin, ApiError, ErrorBody, json, read};
use axum::extract::{Request, State};
use axum::response::Response;
use llmgw_routing::pipeline::{self, Prompt, RouteExplanation, explain_route};
use std::sync::Arc;

/// Where a request would go.
///
/// The decision that a shard would make, told step by step: route, candidates, what filters and scorers say of each,
/// the pick. Nothing is sent, and nothing changes.
#[utoipa::path(
    get,
    path = "/admin/v1/route-explain",
    operation_id = "route_explain",
    tag = "routes",
    params(
        ("model" = String, Query, description = "The model that the request names", min_length = 1),
        ("prompt" = Option<String>, Query, description = "The begin of its prompt"),
        ("prompt_kind" = Option<PromptKind>, Query, description = "What the prompt is; `chat` unless said"),
        ("request_id" = Option<String>, Query, description = "Its id, which draws the backend; empty unless said"),
    ),
    responses(
        (status = 200, body = Explanation),
        (status = 404, body = ErrorBody, description = "`model_not_found`"),
        (status = "4XX", body = ErrorBody, description = "Refused"),
        (status = "5XX", body = ErrorBody, description = "Failed"),
    )
)]
pub async fn get(State(admin): State<Arc<Admin>>, request: Request) -> Result<Response, ApiError> {
    let names = ["model", "prompt", "prompt_kind", "request_id"];
    let [model, prompt, kind, id] = read::query(request.uri().query(), names)?;
    let model = model.filter(|model| !model.is_empty());
    let model = model.ok_or_else(|| ApiError::invalid("model", "must be given"))?;
    let prompt = match (kind.as_deref(), &prompt) {
        (None | Some("chat" | "completion"), None) => Prompt::None,
        (None | Some("chat"), Some(text)) => Prompt::Chat(text),
        (Some("completion"), Some(text)) => Prompt::Completion(text),
        _ => return Err(ApiError::invalid("prompt_kind", "must be `chat` or `completion`")),
    };
    let (plane, id) = (admin.fleet.plane(), id.unwrap_or_default());
    let (snapshot, now) = (plane.snapshot(), (admin.clock)());
    let told = explain_route(&snapshot, plane.loads(), &model, prompt, &id, now);
    let told = told.ok_or_else(|| ApiError::no_such_model(&model))?;
    Ok(json(&explanation(model, id, told)))
}

/// What a prompt is.
#[derive(utoipa::ToSchema)]
#[schema(rename_all = "lowercase")]
#[allow(dead_code)] // it stands in the document only
pub enum PromptKind {
    /// The message of a user.
    Chat,
    /// The prompt of a completion.
    Completion,
}

fn explanation(model: String, request_id: String, told: RouteExplanation) -> Explanation {
    let decision = told.decision;
    let (pick, reason, no_pick) = match decision.pick {
        Ok((endpoint, reason)) => (Some(endpoint.to_string()), Some(reason.to_string()), None),
        Err(why) => (None, None, Some(why.to_string())),
    };
    let affinity = decision.affinity.map(|terms| Affinity {
        hash: format!("{:016x}", terms.hash),
        owner: terms.owner.map(|owner| owner.to_string()),
        capacity: terms.capacity,
    });
    Explanation {
        model,
        request_id,
        route: told.routed.then(|| told.name.to_string()),
        served_model: told.served_model.to_string(),
        draw: told.draw,
        priority: told.priority,
        profile: decision.profile.to_string(),
        picker: decision.picker.to_owned(),
        certainty: decision.certainty.name().to_owned(),
        endpoints: decision.endpoints.into_iter().map(considered).collect(),
        affinity,
        pick,
        reason,
        no_pick,
    }
}

fn considered(endpoint: pipeline::Considered) -> Considered {
    let filter = |(name, kept): (&'static str, bool)| Filtered { filter: name.to_owned(), kept };
    let score = |s: pipeline::Score| Scored { scorer: s.scorer.to_owned(), value: s.value, weight: s.weight };
    Considered {
        worker_id: endpoint.endpoint.id.to_string(),
        in_flight: endpoint.inflight,
        queue_depth: endpoint.queue_depth,
        load: endpoint.load,
        weight: endpoint.weight,
        filters: endpoint.filters.into_iter().map(filter).collect(),
        candidate: endpoint.candidate,
        scores: endpoint.scores.into_iter().map(score).collect(),
        score: endpoint.score,
    }
}
