use super::*;
use serde_json::{Value, json};

fn normalized(status: u16, body: &str) -> Value {
    let mut out = Vec::new();
    normalize_engine_error(status, body.as_bytes(), &["10.0.0.7:8000", "gpu-a:8000"], &mut out);
    serde_json::from_slice(&out).expect("valid JSON")
}

#[test]
fn engine_errors_take_one_shape() {
    let error = |message: &str, kind: &str, param: Value, code: Value| json!({"error": {"message": message, "type": kind, "param": param, "code": code}});
    let cases = [
        // OpenAI's own shape passes with its fields.
        (
            400,
            r#"{"error":{"message":"m","type":"BadRequestError","param":"input_tokens","code":400}}"#,
            error("m", "BadRequestError", json!("input_tokens"), json!(400)),
        ),
        // llama.cpp: no param.
        (
            500,
            r#"{"error":{"code":500,"message":"parse error","type":"server_error"}}"#,
            error("parse error", "server_error", Value::Null, json!(500)),
        ),
        // FastAPI.
        (
            404,
            r#"{"detail":"Not Found"}"#,
            error("Not Found", "invalid_request_error", Value::Null, Value::Null),
        ),
        // Older vLLM: fields at the top.
        (
            400,
            r#"{"object":"error","message":"too long","type":"BadRequestError","param":null,"code":400}"#,
            error("too long", "BadRequestError", Value::Null, json!(400)),
        ),
        // A string under `error`.
        (500, r#"{"error":"boom"}"#, error("boom", "server_error", Value::Null, Value::Null)),
        // Not JSON at all, with an address in it.
        (
            500,
            "connect to 10.0.0.7:8000 failed\n",
            error("connect to engine failed\n", "server_error", Value::Null, Value::Null),
        ),
        (500, "", error("The engine answered with status 500", "server_error", Value::Null, Value::Null)),
        // Addresses hide in any text field.
        (
            500,
            r#"{"error":{"message":"at gpu-a:8000","type":"x","param":"http://10.0.0.7:8000/v1","code":"c"}}"#,
            error("at engine", "x", json!("http://engine/v1"), json!("c")),
        ),
    ];
    for (status, body, expected) in cases {
        assert_eq!(normalized(status, body), expected, "{body}");
    }
}

#[test]
fn messages_are_valid_json_whatever_the_client_sent() {
    let path = "/v1/\"\\\u{1}\u{7f}é".repeat(100);
    for error in [ApiError::unknown_path(&path), ApiError::model_not_found(&path)] {
        let mut out = Vec::new();
        error.write_json(&mut out);
        let value: Value = serde_json::from_slice(&out).expect("valid JSON");
        assert!(value["error"]["message"].as_str().unwrap().len() < 400);
    }
}

#[test]
fn retry_after_is_rounded_up_and_never_zero() {
    let seconds = |ns| ApiError::no_capacity("x", ns).retry_after_s.unwrap();
    assert_eq!([seconds(0), seconds(1), seconds(1_000_000_000), seconds(1_000_000_001)], [1, 1, 1, 2]);
}
