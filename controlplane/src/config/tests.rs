//! Tables of configurations and what is said about them.

use super::{Config, DriverChoice, HalfClose, Level, Loaded, LogFormat, Picker, Store};
use llmgw_routing::snapshot::{Engine, Role, Settings};
use rstest::rstest;
use std::time::Duration;

/// Line 1 of every configuration under test.
const KEYLESS: &str = "auth: { required: false }\n";

fn parse(text: &str, vars: &[(&str, &str)]) -> Result<Loaded, String> {
    let vars = vars.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    Config::parse("s.yaml", text, vars).map_err(|error| error.to_string())
}

fn complaint(rest: &str) -> String {
    match parse(&format!("{KEYLESS}{rest}"), &[]) {
        Ok(loaded) => format!("accepted, warnings {:?}", loaded.warnings),
        Err(text) => text,
    }
}

fn config(rest: &str) -> Config {
    parse(&format!("{KEYLESS}{rest}"), &[]).unwrap().config
}

// === unknown keys ===

#[rstest]
#[case("listn: x", "s.yaml:2:1: listn: unknown key; did you mean `listen`?")]
#[case("limits:\n  max_bdy: 3MiB", "s.yaml:3:3: limits.max_bdy: unknown key; did you mean `max_body`?")]
#[case(
    "timeouts: { first-token: 1s }",
    "s.yaml:2:13: timeouts.first-token: unknown key; did you mean `first_token`?"
)]
#[case("log: { levle: info }", "s.yaml:2:8: log.levle: unknown key; did you mean `level`?")]
#[case("cors: { zzz: 1 }", "s.yaml:2:9: cors.zzz: unknown key; known here: allow_origins, max_age")]
#[case(
    "endpoints:\n- { id: a, model: m, url: 'http://h:1', wieght: 1 }",
    "s.yaml:3:41: endpoints[0].wieght: unknown key; did you mean `weight`?"
)]
#[case(
    "router: { profiles: { chat: { scorers: { prefx: 1 } } } }",
    "s.yaml:2:42: router.profiles.chat.scorers.prefx: unknown key; did you mean `prefix`?"
)]
#[case(
    "router: { admission: { bands: [{ name: g, priority: 1, saturation_ceiling: 1, ttl: 2s }] } }",
    "s.yaml:2:79: router.admission.bands[0].ttl: unknown key; known here: name, priority, saturation_ceiling"
)]
#[case(
    "models: [{ name: a, sorce: /m }]",
    "s.yaml:2:21: models[0].sorce: unknown key; did you mean `source`?"
)]
fn unknown_keys_name_their_place_and_the_nearest(#[case] text: &str, #[case] expected: &str) {
    assert_eq!(complaint(text), expected);
}

// === values ===

#[rstest]
#[case(
    "listen: ':8080'",
    "2:9: listen: `:8080` names no address: write `0.0.0.0:8080` or `[::]:8080` for all"
)]
#[case(
    "listen: nowhere",
    "2:9: listen: `nowhere` is not an address and port, such as `127.0.0.1:8080` or `[::]:8080`"
)]
#[case("shards: -1", "2:9: shards: must be a whole number from 0 to 1024, not `-1`")]
#[case(
    "driver: uring",
    "2:9: driver: must be auto | io_uring | epoll, not `uring`; did you mean `io_uring`?"
)]
#[case("log: 3", "2:6: log: must be a section of keys, not `3`")]
#[case(
    "log: { level: inf }",
    "2:15: log.level: must be error | warn | info | debug | trace, not `inf`; did you mean `info`?"
)]
#[case("log: { access: yes }", "2:16: log.access: must be `true` or `false`, not `yes`")]
#[case("limits: { max_header: 100 }", "2:23: limits.max_header: must be from 1KiB to 1MiB, not `100`")]
#[case(
    "limits: { max_body: 32MB }",
    "2:21: limits.max_body: `32MB` is not a size: write `32MiB` (sizes are in KiB, MiB, GiB or plain bytes)"
)]
#[case(
    "limits: { max_body: big }",
    "2:21: limits.max_body: `big` is not a size: write a whole number of bytes, or one with KiB, MiB or GiB, such as \
     `32MiB`"
)]
#[case(
    "limits: { buffered_total: 1MiB }",
    "2:27: limits.buffered_total: a body of max_body (32MiB) would never fit into buffered_total (1MiB)"
)]
#[case(
    "limits: { half_close: abrot }",
    "2:23: limits.half_close: must be abort | allow, not `abrot`; did you mean `abort`?"
)]
#[case("timeouts: { header: 0s }", "2:21: timeouts.header: must be from 1ms to 24h, not `0s`")]
#[case("timeouts: { idle: 30 }", "2:19: timeouts.idle: `30` has no unit: write `30s`, or use ms, m or h")]
#[case(
    "timeouts: { total: 3 sec }",
    "2:20: timeouts.total: `3 sec` is not a duration: write a whole number and ms, s, m or h, such as `250ms` or `2s`"
)]
#[case("router: { retry_budget: 1.5 }", "2:25: router.retry_budget: must be a number from 0 to 1, not `1.5`")]
#[case(
    "router: { affinity_load_factor: 0.9 }",
    "2:33: router.affinity_load_factor: must be a number of at least 1, not `0.9`"
)]
#[case(
    "router: { keep_alive_comment: 0s }",
    "2:31: router.keep_alive_comment: must be from 100ms to 24h, not `0s`"
)]
#[case(
    "router: { policy: afinity }",
    "2:19: router.policy: `afinity` is neither a policy nor one of router.profiles (affinity, weighted, \
     least_outstanding); did you mean `affinity`?"
)]
#[case(
    "router: { cooldown: 1s, cooldown_seconds: 1 }",
    "2:43: router.cooldown_seconds: is an older name of `cooldown`; give one of them"
)]
#[case(
    "router: { profiles: { x: { picker: { type: p2c, temperature: 1 } } } }",
    "2:62: router.profiles.x.picker.temperature: only the picker `softmax` has a temperature"
)]
#[case(
    "router: { profiles: { weighted: {} } }",
    "2:33: router.profiles.weighted: `weighted` is a built-in policy; a profile needs another name"
)]
#[case(
    "cors: { allow_origins: [example.com] }",
    "2:25: cors.allow_origins[0]: `example.com` is not an origin: write `*` or `https://host[:port]`"
)]
#[case("endpoints: {}", "2:12: endpoints: must be a list, not a section")]
#[case("tls: { cert: a }", "2:14: tls.cert: `cert` and `key` come together")]
#[case(
    "store: { path: a, postgres: 'postgres://u:pw@h/d' }",
    "2:29: store.postgres: give either `path` or `postgres`, not both"
)]
#[case("store: 'postgres://u:pw@h/d'", "2:8: store: must be a section of keys, not `postgres://***@h/d`")]
#[case(
    "health_listen: '127.0.0.1:8080'",
    "2:16: health_listen: 127.0.0.1:8080 is also listen; each listener needs its own port"
)]
#[case(
    "admin: { token_env: a-b }",
    "2:21: admin.token_env: `a-b` is not the name of an environment variable"
)]
#[case(
    "routes: [{ model: a, backends: [{ served_model: x, weight: 0.5 }] }]",
    "2:32: routes[0].backends: the weights sum to 0.5; they must sum to 1"
)]
#[case("routes: [{ model: a, cascade: [{ model: b }] }]", "2:31: routes[0].cascade: needs at least 2 steps")]
#[case(
    "routes: [{ model: a, cascade: [{ model: b, accept_if: 'p > 1' }, { model: c }] }]",
    "2:55: routes[0].cascade[0].accept_if: `p > 1` is not `mean_logprob|min_logprob >|>=|<|<= NUMBER`"
)]
#[case(
    "routes: [{ model: a, aliases: [b] }, { model: b }]",
    "2:47: routes[1].model: `b` is already the model or an alias of a route (routes[0].aliases[0])"
)]
#[case(
    "models: [{ name: a, scaling: { min: 3, max: 2 } }]",
    "2:37: models[0].scaling.min: 3 is above max, 2"
)]
fn impossible_values_are_refused(#[case] text: &str, #[case] expected: &str) {
    assert_eq!(complaint(text), format!("s.yaml:{expected}"));
}

#[rstest]
#[case("id: 'a b'", "5: `a b` must not hold spaces")]
#[case("engine: vlm", "9: must be vllm | sglang | llamacpp | sim | openai, not `vlm`; did you mean `vllm`?")]
#[case("role: both", "7: must be unified | prefill | decode, not `both`")]
#[case("weight: -1", "9: must be a number of at least 0, not `-1`")]
#[case("weight: .inf", "9: must be a number of at least 0, not `.inf`")]
#[case("weight: .nan", "9: must be a number of at least 0, not `.nan`")]
#[case(
    "url: 'https://h:1'",
    "6: `https://h:1` is not http://host:port[/base] (engines are reached over plain http)"
)]
#[case("url: 'h:1'", "6: `h:1` is not http://host:port[/base] (no http://)")]
#[case("url: 'http://h'", "6: `http://h` is not http://host:port[/base] (no port)")]
#[case("url: 'http://u:pw@h:1'", "6: `http://***@h:1` is not http://host:port[/base] (no host and port)")]
#[case(
    "url: 'http://h:1/v1'",
    "6: `http://h:1/v1` ends in /v1, which is added to every path: write `http://h:1`"
)]
#[case(
    "url: 'http://h:1/a?b'",
    "6: `http://h:1/a?b` is not http://host:port[/base] (the path holds a character that no path has)"
)]
#[case("grpc_address: h", "15: `h` is not host:port")]
fn impossible_endpoints_are_refused(#[case] pair: &str, #[case] expected: &str) {
    let key = pair.split(':').next().unwrap();
    let mut pairs = vec!["id: a", "model: m", "url: 'http://h:1'"];
    pairs.retain(|other| !other.starts_with(&format!("{key}:")));
    let text = format!("endpoints:\n- {pair}\n  {}", pairs.join("\n  "));
    let (column, message) = expected.split_once(": ").unwrap();
    let column = column.parse::<usize>().unwrap() + 2;
    let got = complaint(&text);
    assert_eq!(got, format!("s.yaml:3:{column}: endpoints[0].{key}: {message}"));
}

#[test]
fn an_endpoint_id_is_unique() {
    let text =
        "endpoints:\n- { id: a, model: m, url: 'http://h:1' }\n- { id: a, model: n, url: 'http://h:2' }";
    assert_eq!(
        complaint(text),
        "s.yaml:4:9: endpoints[1].id: `a` is the id of another endpoint too (line 3)"
    );
}

#[test]
fn all_problems_are_reported_at_once_in_the_order_of_the_file() {
    let text = "endpoints: [{ id: a }]\nshards: x\nlimits: { max_headers: 0, nope: 1 }";
    let lines: Vec<String> = complaint(text).lines().map(str::to_owned).collect();
    assert_eq!(
        lines,
        [
            "s.yaml:2:13: endpoints[0]: `model` is missing",
            "s.yaml:2:13: endpoints[0]: `url` is missing",
            "s.yaml:3:9: shards: must be a whole number from 0 to 1024, not `x`",
            "s.yaml:4:24: limits.max_headers: must be a whole number from 1 to 1000, not `0`",
            "s.yaml:4:27: limits.nope: unknown key; known here: max_body, max_header, max_headers, max_connections, \
             max_connections_per_client, max_json_depth, buffered_total, half_close, default_max_tokens",
        ]
    );
}

#[rstest]
#[case("shards: 2\nshards: 3", "3:1: `shards` stands here twice")]
#[case("---\na: 1", "3:1: a second YAML document begins here; a configuration is one")]
#[case("limits: [", "2:9: not YAML: unclosed bracket '['")]
#[case("limits: *x", "2:9: not YAML: alias references unknown anchor")]
fn what_is_not_one_yaml_document_is_refused(#[case] text: &str, #[case] expected: &str) {
    assert_eq!(complaint(text), format!("s.yaml:{expected}"));
}

// === keys and loopback ===

#[test]
fn keys_are_required_by_default_and_that_is_refused_until_they_exist() {
    let reason = "cannot be honoured: this version has no API keys yet. To serve without keys on this machine \
                  alone, write `auth: { required: false }` and keep every listener on a loopback address";
    assert_eq!(parse("", &[]).unwrap_err(), format!("s.yaml: auth.required: `true` (the default) {reason}"));
    let given = parse("auth: { required: true }", &[]).unwrap_err();
    assert_eq!(given, format!("s.yaml:1:19: auth.required: `true` {reason}"));
    let given = parse("auth: { required: maybe }", &[]).unwrap_err();
    assert_eq!(given, "s.yaml:1:19: auth.required: must be `true` or `false`, not `maybe`");
}

#[rstest]
#[case("listen: '0.0.0.0:8080'", "listen is 0.0.0.0:8080")]
#[case(
    "listen: '[::]:8080'\nhealth_listen: '10.0.0.1:9464'",
    "listen is [::]:8080 and health_listen is 10.0.0.1:9464"
)]
#[case("agent_listen: '192.168.0.1:7443'", "agent_listen is 192.168.0.1:7443")]
fn without_keys_every_listener_is_loopback(#[case] text: &str, #[case] named: &str) {
    let expected = format!(
        "s.yaml:1:19: auth.required: `false` is refused because {named}: without keys, whoever reaches a listener may \
         use the engines. Put every listener on a loopback address"
    );
    assert_eq!(complaint(text), expected);
    assert!(parse("auth: { required: false }\nlisten: '[::1]:8080'", &[]).is_ok());
}

#[rstest]
#[case("listen: '127.0.0.1:0'\nhealth_listen: '127.0.0.1:0'", true)]
#[case("listen: '127.0.0.1:9090'", false)]
#[case("listen: '127.0.0.1:7443'", true)] // the default listener of agents is not opened yet
#[case("listen: '127.0.0.1:9090'\nadmin_listen: '127.0.0.1:9090'", false)]
#[case("listen: '127.0.0.1:80'\nhealth_listen: '127.0.0.2:80'", true)]
fn listeners_collide_on_one_address_and_port(#[case] text: &str, #[case] fits: bool) {
    assert_eq!(parse(&format!("{KEYLESS}{text}"), &[]).is_ok(), fits, "{}", complaint(text));
}

// === defaults and whole files ===

#[test]
fn defaults_are_the_documented_ones() {
    let c = config("");
    let listeners = [c.listen, c.admin_listen, c.health_listen, c.registry_listen, c.agent_listen];
    let expected =
        ["127.0.0.1:8080", "127.0.0.1:9090", "127.0.0.1:9464", "127.0.0.1:50060", "127.0.0.1:7443"];
    assert_eq!(listeners.map(|l| l.to_string()), expected);
    assert_eq!((c.shards, c.driver, c.busy_poll), (0, DriverChoice::Auto, Duration::ZERO));
    assert_eq!((c.log.level, c.log.format, c.log.access), (Level::Info, LogFormat::Text, true));
    assert_eq!(c.admin.token_env, "LLMGW_ADMIN_TOKEN");
    assert!(matches!(&c.store, Store::Path(path) if path.as_os_str() == "./llmgw-data"));
    let l = &c.limits;
    assert_eq!((l.max_body, l.max_header, l.max_headers), (32 << 20, 32 << 10, 100));
    assert_eq!((l.max_connections, l.max_connections_per_client, l.max_json_depth), (65536, 4096, 64));
    assert_eq!((l.buffered_total, l.half_close, l.default_max_tokens), (1 << 30, HalfClose::Abort, 4096));
    let t = &c.timeouts;
    let seconds = [
        t.header,
        t.idle,
        t.body_idle,
        t.connect,
        t.first_token,
        t.between_tokens,
        t.total,
        t.upstream_idle,
        t.shutdown,
    ];
    assert_eq!(seconds, [10, 75, 30, 2, 300, 120, 3600, 4, 30].map(Duration::from_secs));
    let r = &c.router;
    assert_eq!((r.policy.as_str(), r.affinity_load_factor, r.heartbeat_miss_limit), ("affinity", 1.25, 3));
    assert_eq!((r.retries, r.retry_budget, r.inject_usage), (2, 0.2, true));
    let seconds = [
        r.heartbeat_interval,
        r.cooldown,
        r.keep_alive_comment,
        r.scrape_interval,
        r.endpoint_cache_max_age,
        c.cors.max_age,
    ];
    assert_eq!(seconds, [2, 15, 15, 2, 300, 600].map(Duration::from_secs));
    assert_eq!(c.cors.allow_origins, ["*"]);
    assert!(c.endpoints.is_empty() && c.routes.is_empty() && c.models.is_empty() && c.fabrics.is_empty());
}

#[test]
fn default_settings_are_those_of_the_snapshot() {
    let ours = config("").settings();
    let theirs = Settings { debug_headers: true, ..Settings::default() };
    assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
}

/// Every key with its documented default, and the sections of later versions as their documentation shows them.
#[test]
fn the_documented_file_is_accepted_and_names_what_is_not_acted_on() {
    let loaded = parse(include_str!("../../tests/data/full.yaml"), &[]).unwrap();
    let expected = "s.yaml: accepted, but this version does not act on: agent_listen, \
                    limits.default_max_tokens, router.profiles.chat.scorers.queue, router.profiles.chat.scorers.kv, \
                    router.profiles.chat.scorers.prefix, router.profiles.long-context.picker.type, \
                    router.scrape_interval, \
                    router.endpoint_cache_max_age, router.admission, router.prefix, endpoints[1].grpc_address, \
                    endpoints[1].kv_address, endpoints[1].role, routes[1].cascade, tls, models, fabrics";
    assert_eq!(loaded.warnings, [expected]);
    let c = loaded.config;
    let e = &c.endpoints[0];
    assert_eq!((e.id.as_str(), e.model.as_str(), e.pool.as_str()), ("e1", "m", "default"));
    assert_eq!((e.engine, e.role, e.weight), (Engine::Vllm, Role::Unified, 1.0));
    assert_eq!((e.url.authority().as_str(), e.url.base_path.as_str()), ("127.0.0.1:9001", ""));
    let e = &c.endpoints[1];
    assert_eq!(
        (e.model.as_str(), e.url.authority().as_str(), e.url.base_path.as_str()),
        ("1.10", "[::1]:9002", "/team/a")
    );
    assert_eq!(c.router.profiles[0].name, "chat");
    assert_eq!(
        c.router.profiles[0].scorers,
        [("queue", 1.0), ("kv", 1.0), ("prefix", 3.0), ("inflight", 1.0)]
    );
    assert_eq!(c.router.profiles[1].picker, Picker::Softmax { temperature: 0.2 });
    let backends: Vec<_> = c.routes[0].backends.iter().map(|b| (b.served_model.as_str(), b.weight)).collect();
    assert_eq!(backends, [("smol-v3", 0.9), ("smol-v4", 0.1)]);
}

#[rstest]
#[case(include_str!("../../../deploy/examples/minimal.yaml"))]
#[case(include_str!("../../../deploy/examples/server.yaml"))]
#[case(include_str!("../../../deploy/examples/demo-fleet.yaml"))]
fn the_examples_are_good_and_hold_only_what_is_acted_on(#[case] text: &str) {
    let loaded = parse(text, &[]).unwrap();
    assert!(loaded.warnings.is_empty() && !loaded.config.endpoints.is_empty(), "{:?}", loaded.warnings);
}

/// The example with every key shows the defaults.
#[test]
fn the_full_example_shows_the_defaults() {
    let shown = parse(include_str!("../../../deploy/examples/server.yaml"), &[]).unwrap().config;
    assert_eq!(format!("{:?}", shown.settings()), format!("{:?}", config("").settings()));
    assert_eq!(shown.router.policy, config("").router.policy);
}

#[test]
fn secrets_are_never_printed() {
    let c = config("store: { postgres: 'postgres://u:hunter2@h/d' }");
    assert!(matches!(&c.store, Store::Postgres(url) if url.expose().contains("hunter2")));
    assert!(!format!("{c:?}").contains("hunter2"));
}

// === environment ===

#[test]
fn variables_stand_over_the_file() {
    let text = "auth: { required: false }\nlimits: { max_body: 2MiB }\n\
                router: { profiles: { long-context: { picker: { type: p2c } } } }\n\
                endpoints: [{ id: a, model: m, url: 'http://h:1' }]";
    let vars = [
        ("LLMGW_LISTEN", "127.0.0.1:1"),
        ("LLMGW_SHARDS", "3"),
        ("LLMGW_LIMITS__MAX_BODY", "1MiB"),
        ("LLMGW_LOG__ACCESS", "false"),
        ("LLMGW_ROUTER__RETRY_BUDGET", "0.5"),
        ("LLMGW_ROUTER__PROFILES__LONG_CONTEXT__PICKER__TYPE", "round-robin"),
        ("LLMGW_ENDPOINTS__0__URL", "http://h:2"),
        // Not configuration.
        ("LLMGW_ADMIN", "x"),
        ("LLMGW_TOKEN", "x"),
        ("LLMGW_ADMIN_TOKEN", "x"),
        ("LLMGW_SIM_X__Y", "x"),
        ("PATH", "x"),
    ];
    let loaded = parse(text, &vars).unwrap();
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    let c = loaded.config;
    assert_eq!((c.listen.port(), c.shards, c.limits.max_body, c.log.access), (1, 3, 1 << 20, false));
    assert_eq!((c.router.retry_budget, c.router.profiles[0].picker), (0.5, Picker::RoundRobin));
    assert_eq!(c.endpoints[0].url.port, 2);
}

#[rstest]
#[case("LLMGW_LIMITS__MAX_BDY", "1", "limits.max_bdy: unknown key; did you mean LLMGW_LIMITS__MAX_BODY?")]
#[case("LLMGW_LIMITS_MAX_BODY", "1", "names no configuration key; did you mean LLMGW_LIMITS__MAX_BODY?")]
#[case("LLMGW_LISTN", "1", "names no configuration key; did you mean LLMGW_LISTEN?")]
#[case(
    "LLMGW_LOG",
    "debug",
    "log: must be a section of keys, not `debug`; name a key in it, as LLMGW_LOG__KEY"
)]
#[case("LLMGW_SHARDS", "x", "shards: must be a whole number from 0 to 1024, not `x`")]
#[case("LLMGW_SHARDS__A", "x", "shards: must be a whole number from 0 to 1024, not a section")]
#[case(
    "LLMGW_LIMITS__MAX_BODY",
    "32MB",
    "limits.max_body: `32MB` is not a size: write `32MiB` (sizes are in KiB, MiB, GiB or plain bytes)"
)]
#[case("LLMGW_CORS__ALLOW_ORIGINS", "*", "cors.allow_origins: must be a list, not `*`")]
#[case("LLMGW_ENDPOINTS__4__URL", "x", "endpoints.4.url: `4` is no position in this list of 0")]
fn bad_variables_are_refused(#[case] name: &str, #[case] value: &str, #[case] expected: &str) {
    let text = "auth: { required: false }\nendpoints: []";
    assert_eq!(parse(text, &[(name, value)]).unwrap_err(), format!("environment {name}: {expected}"));
}

#[test]
fn a_variable_of_somebody_else_is_a_warning() {
    let loaded = parse(KEYLESS, &[("LLMGW_HOMEPAGE", "x")]).unwrap();
    assert_eq!(loaded.warnings, ["environment LLMGW_HOMEPAGE names no configuration key and is ignored"]);
}

#[test]
fn an_empty_variable_is_a_value_like_any_other() {
    let said = parse(KEYLESS, &[("LLMGW_LISTEN", "")]).unwrap_err();
    assert_eq!(said, "environment LLMGW_LISTEN: listen: must not be empty");
}

// === units, descriptors, reload ===

#[rstest]
#[case("50us", 50)]
#[case("250ms", 250_000)]
#[case("2s", 2_000_000)]
#[case("5m", 300_000_000)]
#[case("1h", 3_600_000_000)]
fn durations_read_and_print(#[case] text: &str, #[case] us: u64) {
    let duration = super::parse_duration(text).unwrap();
    assert_eq!(duration, Duration::from_micros(us));
    assert_eq!(super::show_duration(duration), text);
}

#[rstest]
#[case("1", 1)]
#[case("1_000", 1000)]
#[case("32KiB", 32 << 10)]
#[case("3MiB", 3 << 20)]
#[case("2 GiB", 2 << 30)]
fn sizes_read(#[case] text: &str, #[case] bytes: u64) {
    assert_eq!(super::parse_size(text), Ok(bytes));
}

#[rstest]
#[case("99999999999GiB")]
#[case("-1")]
#[case("1.5MiB")]
#[case("")]
fn impossible_sizes_are_refused(#[case] text: &str) {
    assert!(super::parse_size(text).is_err());
    assert!(super::parse_duration(text).is_err());
}

#[test]
fn connections_beyond_the_descriptor_limit_are_told_and_clamped() {
    let c = config("limits: { max_connections: 1000 }");
    let fits = c.effective_limits(2 * 2 * 1000 + 256, 2);
    assert_eq!((fits.max_connections, fits.message), (1000, None));
    let clamped = c.effective_limits(1256, 2);
    assert_eq!(clamped.max_connections, 250);
    assert_eq!(
        clamped.message.as_deref(),
        Some(
            "limits.max_connections 1000 on 2 shards may need 4256 descriptors, but the hard limit of open files is \
             1256: 250 connections a shard are allowed. Raise the limit (ulimit -Hn, LimitNOFILE=) or lower \
             limits.max_connections"
        )
    );
    assert_eq!(c.effective_limits(10, 2).max_connections, 1);
    assert_eq!(c.effective_limits(u64::MAX, 2).message, None);
}

#[test]
fn keys_fixed_at_start_are_named_when_they_change() {
    let old = config("");
    let new = config(
        "listen: '127.0.0.1:1'\nshards: 2\ndriver: epoll\nlog: { format: json }\nlimits: { max_headers: 7 }",
    );
    assert_eq!(old.fixed_keys_changed(&new), ["listen", "shards", "driver", "log.format"]);
    assert!(old.fixed_keys_changed(&config("limits: { max_headers: 7 }")).is_empty());
}
