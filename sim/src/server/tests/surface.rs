//! The OpenAI surface, held against what real engines answered (`tests/data`).

use std::collections::BTreeSet;

use rstest::rstest;
use serde_json::{Value, json};

use super::client::*;
use crate::MetricsFormat;

/// The JSON body of a captured answer.
fn captured(name: &str) -> Value {
    let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    serde_json::from_str(text.split_once("\r\n\r\n").unwrap().1).unwrap()
}

/// The chunks of a captured stream.
fn captured_stream(name: &str) -> Vec<Value> {
    let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data: ")?).ok()).collect()
}

/// Keys that are vLLM's own, not OpenAI's, and that the simulated engine leaves out.
const VLLM_ONLY: [&str; 18] = [
    "token_ids",
    "routed_experts",
    "prompt_token_ids",
    "prompt_text",
    "prompt_logprobs",
    "kv_transfer_params",
    "ec_transfer_params",
    "metrics",
    "service_tier",
    "system_fingerprint",
    "annotations",
    "audio",
    "function_call",
    "reasoning",
    "completion_tokens_details",
    "permission",
    "timings",
    "usage",
];

/// Every key a real engine has must be here, with a value of the same kind (null fits all).
fn covers(real: &Value, ours: &Value, path: &str) {
    match (real, ours) {
        (Value::Object(real), Value::Object(ours)) => {
            for (key, value) in real.iter().filter(|(key, _)| !VLLM_ONLY.contains(&key.as_str())) {
                let Some(our) = ours.get(key) else { panic!("{path}.{key} is missing") };
                covers(value, our, &format!("{path}.{key}"));
            }
        }
        (Value::Array(real), Value::Array(ours)) => {
            if let (Some(real), Some(our)) = (real.first(), ours.first()) {
                covers(real, our, &format!("{path}[0]"));
            }
        }
        (Value::Null, _) | (_, Value::Null) => {}
        (real, ours) => {
            let same = std::mem::discriminant(real) == std::mem::discriminant(ours);
            assert!(same, "{path}: {ours} is not like {real}");
        }
    }
}

#[rstest]
#[case("vllm-chat.http", "POST", CHAT, &chat("t", ""))]
#[case("vllm-chat-logprobs.http", "POST", CHAT, &chat("t", r#","logprobs":true,"top_logprobs":2"#))]
#[case("vllm-err-unknown-model.http", "POST", CHAT, r#"{"model":"nope","messages":[]}"#)]
#[case("vllm-models.http", "GET", "/v1/models", "")]
#[case("vllm-tokenize.http", "POST", "/tokenize", r#"{"model":"m","prompt":"hello"}"#)]
fn answers_have_the_shape_of_real_ones(
    #[case] file: &str,
    #[case] method: &str,
    #[case] path: &str,
    #[case] body: &str,
) {
    let engine = engine(|_| {});
    let answer = Client::new(engine.local_addr()).ask(method, path, body);
    covers(&captured(file), &answer.json(), "");
}

#[test]
fn chat_stream_has_the_shape_of_a_real_one() {
    let engine = engine(|_| {});
    let options = r#","stream":true,"max_tokens":3,"stream_options":{"include_usage":true,"continuous_usage_stats":true}"#;
    let answer = Client::new(engine.local_addr()).ask("POST", CHAT, &chat("t", options));
    assert_eq!(answer.field("content-type"), Some("text/event-stream; charset=utf-8"));
    let (real, ours) = (captured_stream("vllm-chat-stream-usage.rawhttp"), answer.objects());
    assert_eq!(answer.tokens("t"), 3);
    assert_eq!(ours.len(), 6, "role, three tokens, finish, usage");
    for (real, ours) in real.iter().take(4).zip(&ours).chain(real.iter().rev().take(2).zip(ours.iter().rev()))
    {
        covers(real, ours, "");
        assert!(ours["usage"].is_object());
    }
    assert_eq!(ours[5]["choices"], json!([]));
    assert_eq!(answer.events().last().unwrap(), "[DONE]");
    let ids: BTreeSet<_> = ours.iter().map(|o| o["id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 1);
}

#[test]
fn completion_stream_has_the_shape_of_a_real_one() {
    let engine = engine(|config| config.metrics_format = MetricsFormat::Llamacpp);
    let body = r#"{"model":"m","prompt":"hi [[t]]","stream":true}"#;
    let answer = Client::new(engine.local_addr()).ask("POST", "/v1/completions", body);
    let real = captured_stream("llamacpp-completions-stream.rawhttp");
    covers(&real[0], &answer.objects()[0], "");
    assert_eq!(answer.tokens("t"), 16);
    assert_eq!(answer.objects().last().unwrap()["choices"][0]["finish_reason"], "stop");
}

#[test]
fn usage_comes_only_when_asked_for() {
    let engine = engine(|_| {});
    let mut client = Client::new(engine.local_addr());
    let plain = client.ask("POST", CHAT, &stream("t", 2));
    assert!(plain.objects().iter().all(|o| o.get("usage").is_none()));
    let asked = chat("t", r#","stream":true,"max_tokens":2,"stream_options":{"include_usage":true}"#);
    let objects = client.ask("POST", CHAT, &asked).objects();
    assert_eq!(objects.iter().filter(|o| o.get("usage").is_some()).count(), 1);
    assert_eq!(objects.last().unwrap()["usage"]["completion_tokens"], 2);
}

#[test]
fn cached_tokens_are_reported() {
    let engine = engine(|_| {});
    let mut client = Client::new(engine.local_addr());
    let body = format!(r#"{{"model":"m","prompt":"{}","max_tokens":1}}"#, "x".repeat(400));
    let cached: Vec<_> = (0..2)
        .map(|_| {
            let usage = &client.ask("POST", "/v1/completions", &body).json()["usage"];
            (usage["prompt_tokens"].clone(), usage["prompt_tokens_details"]["cached_tokens"].clone())
        })
        .collect();
    assert_eq!(cached, [(json!(100), json!(0)), (json!(100), json!(96))]);
}

#[rstest]
#[case(CHAT, "{", "body")]
#[case(CHAT, "[]", "body")]
#[case(CHAT, r#"{"model":7}"#, "model")]
#[case(CHAT, r#"{"model":"m"}"#, "messages")]
#[case(CHAT, r#"{"messages":[]}"#, "messages")]
#[case(CHAT, r#"{"messages":[{"content":"x"}]}"#, "messages")]
#[case(CHAT, &chat("t", r#","temperature":-3"#), "temperature")]
#[case(CHAT, &chat("t", r#","max_tokens":0"#), "max_tokens")]
#[case(CHAT, &chat("t", r#","max_tokens":999999"#), "max_tokens")]
#[case(CHAT, &chat("t", r#","max_tokens":"9""#), "max_tokens")]
#[case(CHAT, &chat("t", r#","n":0"#), "n")]
#[case(CHAT, &chat("t", r#","stream":"yes""#), "stream")]
#[case(CHAT, &chat("t", r#","stop":7"#), "stop")]
#[case(CHAT, &chat("t", r#","stream_options":{"include_usage":true}"#), "stream_options")]
#[case(CHAT, &chat("t", r#","logprobs":true,"top_logprobs":99"#), "top_logprobs")]
#[case("/v1/completions", r#"{"prompt":[]}"#, "prompt")]
#[case("/v1/completions", r#"{"prompt":[[1,"x"]]}"#, "prompt")]
#[case("/v1/embeddings", r#"{"model":"m"}"#, "input")]
fn wrong_requests_get_400_naming_the_parameter(#[case] path: &str, #[case] body: &str, #[case] param: &str) {
    let engine = engine(|_| {});
    let answer = Client::new(engine.local_addr()).ask("POST", path, body);
    let error = &answer.json()["error"];
    assert_eq!(
        (answer.status, &error["param"], &error["code"]),
        (400, &param.into(), &400.into()),
        "{error}"
    );
    assert_eq!(engine.state()["rejected"], 1);
}

#[rstest]
#[case("GET", "/nope", 404)]
#[case("GET", CHAT, 405)]
#[case("POST", "/health", 405)]
#[case("GET", "/health", 200)]
#[case("HEAD", "/v1/models", 200)]
#[case("GET", "/version", 200)]
#[case("GET", "/v1/models/m", 200)]
#[case("GET", "/v1/models/x", 404)]
fn paths_and_methods(#[case] method: &str, #[case] path: &str, #[case] status: u16) {
    let engine = engine(|_| {});
    let mut client = Client::new(engine.local_addr());
    client.send(method, path, "", "");
    assert_eq!(client.head().unwrap().status, status);
}

#[test]
fn text_is_the_seed_and_prompts_and_else_the_requests() {
    let engine = engine(|_| {});
    let mut client = Client::new(engine.local_addr());
    let mut text = |prompt: &str, rest: &str, id: &str| {
        let body = format!(r#"{{"model":"m","prompt":"{prompt}","max_tokens":2{rest}}}"#);
        client.send("POST", "/v1/completions", &format!("x-request-id: {id}\r\n"), &body);
        client.answer().unwrap().json()["choices"][0]["text"].as_str().unwrap().to_owned()
    };
    let seeded = text("p", r#","seed":7"#, "a");
    assert_eq!(seeded, text("p", r#","seed":7"#, "b"));
    assert_ne!(seeded, text("p", r#","seed":8"#, "b"));
    assert_ne!(seeded, text("q", r#","seed":7"#, "b"));
    assert_eq!(text("p", r#","temperature":0"#, "a"), text("p", r#","temperature":0"#, "b"));
    assert_eq!(text("p", "", "a"), "a:0 a:1 ");
    assert_eq!(text("p [[z]]", r#","seed":7"#, "a"), "z:0 z:1 ");
}

#[test]
fn stop_texts_cut_plain_and_streamed_answers_alike() {
    let engine = engine(|_| {});
    let mut client = Client::new(engine.local_addr());
    let stop = r#","max_tokens":50,"stop":["t:12 ","never"]"#;
    let plain = client.ask("POST", CHAT, &chat("t", stop)).json();
    let choice = &plain["choices"][0];
    assert!(choice["message"]["content"].as_str().unwrap().ends_with("t:11 "));
    assert_eq!((&choice["finish_reason"], &choice["stop_reason"]), (&"stop".into(), &"t:12 ".into()));
    assert_eq!(plain["usage"]["completion_tokens"], 13);
    let streamed = client.ask("POST", CHAT, &chat("t", &format!("{stop},\"stream\":true")));
    assert_eq!(streamed.tokens("t"), 12);
}

#[test]
fn choices_of_one_request_are_streams_of_their_own() {
    let engine = engine(|_| {});
    let body = chat("t", r#","n":3,"max_tokens":4,"stream":true"#);
    let answer = Client::new(engine.local_addr()).ask("POST", CHAT, &body);
    for k in 0..3 {
        let mut checker = crate::TokenChecker::new(crate::tokens::choice_tag("t", k));
        for object in answer.objects() {
            let choice = &object["choices"][0];
            if choice["index"] == k {
                checker.push(choice["delta"]["content"].as_str().unwrap_or_default()).unwrap();
            }
        }
        assert_eq!(checker.finish(Some(4)), Ok(4));
    }
}

#[rstest]
#[case(r#","tool_choice":"required""#, Some("f"))]
#[case(r#","tool_choice":{"type":"function","function":{"name":"g"}}"#, Some("g"))]
#[case(r#","tool_choice":"none""#, None)]
#[case("", None)]
fn tools_are_called_when_forced(#[case] choice: &str, #[case] called: Option<&str>) {
    let engine = engine(|_| {});
    let mut client = Client::new(engine.local_addr());
    let tools = r#","max_tokens":3,"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}]"#;
    let plain = client.ask("POST", CHAT, &chat("t", &format!("{tools}{choice}"))).json();
    let streamed = client.ask("POST", CHAT, &chat("t", &format!("{tools}{choice},\"stream\":true")));
    let call = &plain["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!(call["name"].as_str(), called);
    if called.is_none() {
        assert_eq!(streamed.tokens("t"), 3);
        return;
    }
    assert_eq!(plain["choices"][0]["finish_reason"], "tool_calls");
    let mut arguments = String::new();
    for object in streamed.objects() {
        let function = &object["choices"][0]["delta"]["tool_calls"][0]["function"];
        arguments.push_str(function["arguments"].as_str().unwrap_or_default());
    }
    assert_eq!(call["arguments"], arguments.as_str());
    let arguments: Value = serde_json::from_str(&arguments).unwrap();
    assert_eq!(arguments["tokens"], "t:0 t:1 t:2 ");
}

#[test]
fn completion_logprobs_are_lists_of_one_length() {
    let engine = engine(|_| {});
    let mut client = Client::new(engine.local_addr());
    let body = r#"{"model":"m","prompt":["a [[t]]","b"],"max_tokens":3,"logprobs":2,"echo":true}"#;
    let answer = client.ask("POST", "/v1/completions", body).json();
    assert_eq!(answer["choices"].as_array().unwrap().len(), 2);
    let logprobs = &answer["choices"][0]["logprobs"];
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        assert_eq!(logprobs[list].as_array().unwrap().len(), 3, "{list}");
    }
    let text = answer["choices"][0]["text"].as_str().unwrap();
    for (token, offset) in
        logprobs["tokens"].as_array().unwrap().iter().zip(logprobs["text_offset"].as_array().unwrap())
    {
        let at = usize::try_from(offset.as_u64().unwrap()).unwrap();
        assert!(text[at..].starts_with(token.as_str().unwrap()));
    }
}

#[test]
fn embeddings_as_floats_and_base64_agree() {
    let engine = engine(|_| {});
    let mut client = Client::new(engine.local_addr());
    let floats =
        client.ask("POST", "/v1/embeddings", r#"{"model":"m","input":["a","b"],"dimensions":5}"#).json();
    let body = r#"{"model":"m","input":"b","dimensions":5,"encoding_format":"base64"}"#;
    let packed = client.ask("POST", "/v1/embeddings", body).json();
    let vector: Vec<f64> =
        floats["data"][1]["embedding"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
    assert!((vector.iter().map(|v| v * v).sum::<f64>() - 1.0).abs() < 1e-5);
    // 20 bytes: 27 digits and one '='.
    let text = packed["data"][0]["embedding"].as_str().unwrap();
    assert_eq!((text.len(), text.find('=')), (28, Some(27)));
    assert_ne!(floats["data"][0]["embedding"], floats["data"][1]["embedding"]);
}

#[test]
fn tokens_turn_back_into_text() {
    let engine = engine(|_| {});
    let mut client = Client::new(engine.local_addr());
    let tokens = client.ask("POST", "/v1/tokenize", r#"{"model":"m","prompt":"hello world"}"#).json();
    assert_eq!(tokens["count"], 3);
    let body = json!({ "model": "m", "tokens": tokens["tokens"] }).to_string();
    assert_eq!(client.ask("POST", "/detokenize", &body).json()["prompt"], "hello world");
}

#[rstest]
#[case(MetricsFormat::Vllm, &["vllm:num_requests_running{engine=\"0\",model_name=\"m\"} 0", "vllm:num_requests_waiting{",
    "vllm:kv_cache_usage_perc{", "vllm:prompt_tokens_total{engine=\"0\",model_name=\"m\"} ", "vllm:generation_tokens_total{engine=\"0\",model_name=\"m\"} 16",
    "vllm:prefix_cache_hits_total{", "vllm:time_to_first_token_seconds_count{engine=\"0\",model_name=\"m\"} 1",
    "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"65536\""])]
#[case(MetricsFormat::Sglang, &["sglang:num_running_reqs{", "sglang:num_queue_reqs{", "sglang:token_usage{",
    "sglang:max_total_num_tokens{", "sglang:cache_hit_rate{", "sglang:generation_tokens_total{"])]
#[case(MetricsFormat::Llamacpp, &["llamacpp:requests_processing 0", "llamacpp:requests_deferred 0",
    "llamacpp:tokens_predicted_total 16", "llamacpp:prompt_tokens_total "])]
fn metrics_have_the_engines_names(#[case] format: MetricsFormat, #[case] names: &[&str]) {
    let engine = engine(|config| config.metrics_format = format);
    let mut client = Client::new(engine.local_addr());
    client.ask("POST", CHAT, &chat("t", ""));
    let page = client.ask("GET", "/metrics", "").text();
    for name in names {
        assert!(page.lines().any(|line| line.starts_with(name)), "{name} is not in\n{page}");
    }
}
