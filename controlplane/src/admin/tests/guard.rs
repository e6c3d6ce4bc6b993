use super::{Access, Api};
use axum::body::Body;
use axum::http::header;

#[tokio::test]
async fn a_token_is_asked_for_everywhere() {
    let api = Api::new(Access::Token("right".into()), None);
    for (fields, status) in [
        ("", 401),
        ("authorization: Bearer wrong", 401),
        ("authorization: Bearer rightright", 401),
        ("authorization: Bearer ", 401),
        ("authorization: Basic right", 401),
        ("authorization: right", 401),
        ("authorization: Bearer right\nauthorization: Bearer right", 401),
        ("authorization: Bearer right", 200),
        ("authorization: bearer   right", 200),
        // With a token nobody can be led here, so other names and origins are no matter.
        ("authorization: Bearer right\nhost: gw.example\norigin: http://evil.example", 200),
    ] {
        let answer = api.ask("GET /admin/v1/status", fields, Body::empty()).await;
        assert_eq!(answer.status.as_u16(), status, "{fields}");
        if status == 401 {
            assert_eq!(answer.error().1, "invalid_api_key");
            assert!(answer.header(header::WWW_AUTHENTICATE).starts_with("Bearer"), "{fields}");
        }
    }
    // What there is, is not told either.
    for line in ["GET /nope", "PATCH /admin/v1/routes", "POST /admin/v1/models/m:drain"] {
        assert_eq!(api.ask(line, "", Body::empty()).await.error().0, 401, "{line}");
    }
}

#[tokio::test]
async fn without_a_token_no_web_page_gets_through() {
    let api = Api::open();
    for host in ["localhost", "LOCALHOST:9090", "127.0.0.1", "127.1.2.3:80", "[::1]:9090", "[::1]"] {
        let answer = api.ask("GET /admin/v1/status", &format!("host: {host}"), Body::empty()).await;
        assert_eq!(answer.status, 200, "{host}");
    }
    for host in [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "0.0.0.0",
        "[::1]x",
        "[::2]",
        "a@localhost",
    ] {
        let answer = api.ask("GET /admin/v1/status", &format!("host: {host}"), Body::empty()).await;
        assert_eq!(answer.error().1, "foreign_host", "{host}");
    }
    let answer = api.ask("GET /admin/v1/status", "host: localhost\nhost: localhost", Body::empty()).await;
    assert_eq!(answer.error().0, 400, "one host");
    let answer = api.ask("GET http://evil.example/admin/v1/status", "host: localhost", Body::empty()).await;
    assert_eq!(answer.error().1, "foreign_host", "the target's name counts");

    let host = "host: localhost:9090\n";
    for (field, fits) in [
        ("origin: http://localhost:9090", true),
        ("origin: http://localhost:3000", false),
        ("origin: https://localhost:9090", false),
        ("origin: http://evil.example", false),
        ("origin: null", false),
        ("sec-fetch-site: same-origin", true),
        ("sec-fetch-site: none", true),
        ("sec-fetch-site: cross-site", false),
        ("sec-fetch-site: same-site", false),
    ] {
        let answer = api.ask("POST /admin/v1/models/org/m:undrain", &format!("{host}{field}"), "").await;
        match fits {
            true => assert_eq!(answer.status, 202, "{field}"),
            false => assert_eq!(answer.error(), (403, "foreign_origin", ""), "{field}"),
        }
    }
}
