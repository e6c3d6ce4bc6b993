//! Reading what a request carries: JSON bodies within bounds, and query strings.

use super::ApiError;
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use std::time::Duration;

/// A route table of 10,000 routes with room to spare.
pub const TABLE_BYTES: usize = 8 << 20;
/// Any other body.
pub const SMALL_BYTES: usize = 1 << 20;
/// What a body may take to come, whole.
const BODY_TIME: Duration = Duration::from_secs(30);

/// The body as `T`. The error names the field, or the line and column of what is no JSON.
pub async fn body<T: DeserializeOwned>(request: Request, limit: usize) -> Result<T, ApiError> {
    content_type(request.headers())?;
    parse(&bytes(request.into_body(), limit).await?)
}

/// Reads the body of a request that needs none: nothing, or an empty object.
pub async fn no_body(request: Request) -> Result<(), ApiError> {
    let bytes = bytes(request.into_body(), SMALL_BYTES).await?;
    let squeezed: Vec<u8> = bytes.into_iter().filter(|b| !b.is_ascii_whitespace()).collect();
    match &squeezed[..] {
        b"" | b"{}" => Ok(()),
        _ => Err(ApiError::invalid("", "this request takes no body")),
    }
}

fn content_type(headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let value = value.to_str().unwrap_or("what cannot be read");
    let kind = value.split(';').next().unwrap_or_default().trim();
    if kind.eq_ignore_ascii_case("application/json") { Ok(()) } else { Err(ApiError::not_json(value)) }
}

async fn bytes(body: Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    let collected = tokio::time::timeout(BODY_TIME, Limited::new(body, limit).collect());
    match collected.await {
        Err(_) => Err(ApiError::too_slow()),
        Ok(Ok(whole)) => Ok(whole.to_bytes().into()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ApiError::too_large(limit)),
        Ok(Err(error)) => Err(ApiError::invalid("", format!("the body cannot be read: {error}"))),
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        // The root is called `.`, and an unknown step `?`.
        let path = if path == "." { String::new() } else { path.replace(".?", "") };
        let inner = error.into_inner();
        if inner.is_data() {
            let path = match unknown_field(&inner.to_string()) {
                Some(field) if path.is_empty() => field,
                Some(field) if !path.ends_with(&field) => format!("{path}.{field}"),
                _ => path,
            };
            ApiError::invalid(path, inner.to_string())
        } else {
            ApiError::invalid("", format!("the body is not JSON: {inner}"))
        }
    })?;
    json.end().map_err(|error| ApiError::invalid("", format!("the body is not JSON: {error}")))?;
    Ok(value)
}

/// The field that a message is about, where serde's path stops short of it.
fn unknown_field(message: &str) -> Option<String> {
    let marks = ["unknown field `", "missing field `", "duplicate field `"];
    let rest = marks.iter().find_map(|mark| message.strip_prefix(mark))?;
    Some(rest.split('`').next()?.to_owned())
}

/// The parameters of a query string: each of `names` at most once, and no other.
pub fn query<const N: usize>(
    text: Option<&str>,
    names: [&'static str; N],
) -> Result<[Option<String>; N], ApiError> {
    let mut values = [const { None }; N];
    let text = text.unwrap_or_default();
    if percent_encoding::percent_decode_str(text).decode_utf8().is_err() {
        return Err(ApiError::invalid("", "the query string is not UTF-8"));
    }
    for (name, value) in form_urlencoded::parse(text.as_bytes()) {
        let Some(at) = names.iter().position(|known| *known == name) else {
            let known = if N == 0 { "none".to_owned() } else { names.join(", ") };
            let name = name.chars().take(100).collect::<String>();
            return Err(ApiError::invalid(name, format!("unknown parameter; known here: {known}")));
        };
        if values[at].replace(value.into_owned()).is_some() {
            return Err(ApiError::invalid(names[at], "given twice"));
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::{parse, query};
    use crate::admin::dto::{Drain, PutRoutes};

    /// `param`, and a part of the message.
    fn refused<T: serde::de::DeserializeOwned + std::fmt::Debug>(body: &str) -> (String, String) {
        let error = format!("{:?}", parse::<T>(body.as_bytes()).unwrap_err());
        let field = |name: &str| {
            let rest = error.split_once(&format!("{name}: ")).unwrap().1;
            rest.trim_start_matches("Some(").split('"').nth(1).unwrap_or_default().to_owned()
        };
        let param = if error.contains("param: None") { String::new() } else { field("param") };
        (param, field("message"))
    }

    #[test]
    fn the_field_at_fault_is_named() {
        let cases = [
            (r#"{"routes":[{"model":"m","weight":1}]}"#, "routes[0].weight", "unknown field"),
            (r#"{"routes":[{}]}"#, "routes[0].model", "missing field"),
            (
                r#"{"routes":[{"model":7}]}"#,
                "routes[0].model",
                "invalid type: integer `7`, expected a string",
            ),
            (
                r#"{"routes":[{"model":"a"},{"model":"m","backends":[{"served_model":"s","weight":"1"}]}]}"#,
                "routes[1].backends[0].weight",
                "invalid type: string",
            ),
            (
                r#"{"routes":[{"model":"m","targets":["up"]}]}"#,
                "routes[0].targets[0]",
                "unknown variant `up`",
            ),
            (
                r#"{"routes":[{"model":"m","cascade":[{"model":"a","if":1}]}]}"#,
                "routes[0].cascade[0].if",
                "unknown field",
            ),
            (r#"{"routes":[{"model":"m","model":"n"}]}"#, "routes[0].model", "duplicate field"),
            (r#"{"routs":[]}"#, "routs", "unknown field `routs`, expected one of `routes`"),
            ("{}", "routes", "missing field"),
            ("[]", "", ""),
        ];
        for (body, param, message) in cases {
            let (got, said) = refused::<PutRoutes>(body);
            assert!(got == param && said.contains(message), "{body}: {got}: {said}");
        }
        assert_eq!(refused::<Drain>(r#"{"deadline_s":-1}"#).0, "deadline_s");
        assert_eq!(refused::<Drain>(r#"{"deadline_s":1.5}"#).0, "deadline_s");
    }

    #[test]
    fn what_is_no_json_is_told_by_line_and_column() {
        for (body, place) in [
            ("{\n  \"routes\": [,]}", "line 2 column 14"),
            ("", "line 1 column 0"),
            ("{\"routes\":[]} x", "line 1 column 15"),
            ("{\"routes\":[\u{0}]}", "line 1 column 12"),
        ] {
            let (param, said) = refused::<PutRoutes>(body);
            assert!(param.is_empty() && said.contains(place), "{body:?}: {said}");
        }
    }

    #[test]
    fn a_query_holds_known_names_once() {
        let names = ["model", "prompt"];
        let got = query(Some("model=org%2Fm&prompt=a+b"), names).unwrap();
        assert_eq!(got, [Some("org/m".to_owned()), Some("a b".to_owned())]);
        assert_eq!(query(None, names).unwrap(), [None, None]);
        for wrong in ["model=a&model=b", "modell=a", "model=%FF"] {
            assert!(query(Some(wrong), names).is_err(), "{wrong}");
        }
    }
}
