//! Request heads: what passes, and the status with which everything else is refused.

use crate::http1::{HeadLimits, Method, RequestBody, RequestError, RequestHead, parse_request};
use proptest::prelude::*;

fn parse(head: &str) -> Result<RequestHead<'_>, RequestError> {
    parse_request(head.as_bytes(), &HeadLimits::default())
}

/// Parses a POST with `Host: a` and these further field lines.
fn status_with(fields: &str) -> Result<RequestBody, u16> {
    let head = format!("POST /v1/completions HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n");
    parse(&head).map(|h| h.body).map_err(|e| e.status())
}

#[test]
fn an_ordinary_request() {
    let head = parse(
        "POST /v1/chat/completions?x=1 HTTP/1.1\r\nHost: localhost:8080\r\nContent-Type: application/json\r\n\
         authorization:Bearer k\r\nContent-Length: 42\r\nX-Empty:\r\nX-Padded: \t a b \t\r\n\r\n",
    )
    .unwrap();
    assert_eq!((head.method, head.method_str), (Method::Post, "POST"));
    assert_eq!((head.path, head.query), ("/v1/chat/completions", Some("x=1")));
    assert_eq!(head.body, RequestBody::Sized(42));
    assert!(head.http11 && head.keep_alive && !head.expect_continue);
    assert_eq!(head.headers.len(), 6);
    assert_eq!(head.headers.get("AUTHORIZATION"), Some(&b"Bearer k"[..]));
    assert_eq!(head.headers.get_str("x-empty"), Some(""));
    assert_eq!(head.headers.get_str("x-padded"), Some("a b"));
    assert_eq!(head.headers.get("absent"), None);
}

#[test]
fn request_lines() {
    let ok = |line: &str| {
        let head = format!("{line}\r\nHost: h.example\r\n\r\n");
        parse(&head).map(|h| (h.path.to_owned(), h.query.map(str::to_owned))).map_err(|e| e.status())
    };
    let path = |p: &str| Ok((p.to_owned(), None));
    let path_query = |p: &str, q: &str| Ok((p.to_owned(), Some(q.to_owned())));
    let cases = [
        ("GET / HTTP/1.1", path("/")),
        ("PURGE /v1/models/a%2Fb HTTP/1.1", path("/v1/models/a%2Fb")),
        ("GET /a?b?c&d={e} HTTP/1.1", path_query("/a", "b?c&d={e}")),
        ("GET /? HTTP/1.1", path_query("/", "")),
        ("OPTIONS * HTTP/1.1", path("*")),
        ("GET http://h.example/v1/models?x HTTP/1.1", path_query("/v1/models", "x")),
        ("GET HTTP://H.EXAMPLE:80 HTTP/1.1", path("/")),
        ("GET http://h.example?q HTTP/1.1", path_query("/", "q")),
        ("OPTIONS http://h.example HTTP/1.1", path("*")),
        ("GET / HTTP/1.0", path("/")),
        ("\r\nGET / HTTP/1.1", path("/")),
        ("\r\n\r\nGET / HTTP/1.1", Err(400)),
        ("GET  / HTTP/1.1", Err(400)),
        ("GET /  HTTP/1.1", Err(400)),
        ("GET / HTTP/1.1 ", Err(400)),
        (" GET / HTTP/1.1", Err(400)),
        ("GET\t/ HTTP/1.1", Err(400)),
        ("GET /", Err(400)),
        ("GET / ", Err(400)),
        ("GET", Err(400)),
        ("GE(T / HTTP/1.1", Err(400)),
        ("GET / HTTP/2.0", Err(505)),
        ("GET / HTTP/1.2", Err(505)),
        ("PRI * HTTP/2.0", Err(505)),
        ("GET / HTTP/0.9", Err(505)),
        ("GET / http/1.1", Err(400)),
        ("GET / HTTP/1.1x", Err(400)),
        ("GET / HTTP/11", Err(400)),
        ("GET / HTTP/1.10", Err(400)),
        ("GET / HTTPS/1.1", Err(400)),
        ("GET * HTTP/1.1", Err(400)),
        ("GET v1/models HTTP/1.1", Err(400)),
        ("GET /a#b HTTP/1.1", Err(400)),
        ("GET /a\\b HTTP/1.1", Err(400)),
        ("GET /a%zz HTTP/1.1", Err(400)),
        ("GET /a%2 HTTP/1.1", Err(400)),
        ("GET /\u{e9} HTTP/1.1", Err(400)),
        ("GET /a?b\u{e9} HTTP/1.1", Err(400)),
        ("GET /a\0 HTTP/1.1", Err(400)),
        ("GET /a\x7f HTTP/1.1", Err(400)),
        ("GET /a\rb HTTP/1.1", Err(400)),
        ("GET / HTTP/1.1\rHost: x", Err(400)),
        ("CONNECT h.example:443 HTTP/1.1", Err(501)),
        ("GET ftp://h.example/ HTTP/1.1", Err(400)),
        ("GET http:///v1 HTTP/1.1", Err(400)),
        ("GET http://u@h.example/ HTTP/1.1", Err(400)),
        ("GET http://other.example/ HTTP/1.1", Err(400)),
        ("GET http://h.example:81/ HTTP/1.1", Err(400)),
        ("GET https://h.example:80/ HTTP/1.1", Err(400)),
    ];
    for (line, expect) in cases {
        assert_eq!(ok(line), expect, "{}", line.escape_debug());
    }
}

#[test]
fn hosts() {
    let check = |fields: &str| parse(&format!("GET / HTTP/1.1\r\n{fields}\r\n\r\n")).err();
    for host in ["a", "a.b-c_d~", "A:8080", "a:", "127.0.0.1:1", "[::1]", "[::1]:65535", "a%20b"] {
        assert_eq!(check(&format!("Host: {host}")), None, "{host}");
    }
    for host in [
        "", "a b", "a,b", "u@a", "a/b", "a:b", "a:65536", "a:1:2", "[::1", "::1", "[x]", "[::1]x", "a\u{e9}",
        "a%2", "a?b",
    ] {
        assert_eq!(check(&format!("Host: {host}")), Some(RequestError::Host), "{host}");
    }
    assert_eq!(check("X: a"), Some(RequestError::MissingHost));
    assert_eq!(check("Host: a\r\nHost: a"), Some(RequestError::RepeatedHost));
    assert_eq!(check("Host: a\r\nhost: b"), Some(RequestError::RepeatedHost));
    assert!(parse("GET / HTTP/1.0\r\n\r\n").is_ok());
    assert!(parse("GET / HTTP/1.0\r\nHost: a b\r\n\r\n").is_err());
}

#[test]
fn field_lines() {
    let cases = [
        ("Transfer-Encoding : chunked", Err(400)),
        ("X\t: a", Err(400)),
        (" X: a", Err(400)),
        ("X: a\r\n b", Err(400)),
        ("X: a\r\n\tb", Err(400)),
        (": a", Err(400)),
        ("X", Err(400)),
        ("X Y: a", Err(400)),
        ("X(: a", Err(400)),
        ("X\u{e9}: a", Err(400)),
        ("X\0: a", Err(400)),
        ("X: a\0b", Err(400)),
        ("X: a\x01b", Err(400)),
        ("X: a\x7fb", Err(400)),
        ("X: a\rb", Err(400)),
        ("X: a\r", Err(400)),
        ("X:\rb", Err(400)),
        ("X: a\nY: b", Err(400)),
        ("X: a\r\n\r\nY: b", Err(400)),
        ("X: tab\tinside", Ok(RequestBody::None)),
        ("X: \u{e9}", Ok(RequestBody::None)),
        ("X::a", Ok(RequestBody::None)),
    ];
    for (fields, expect) in cases {
        assert_eq!(status_with(fields), expect, "{}", fields.escape_debug());
    }
}

#[test]
fn framing() {
    use RequestBody::{Chunked, Sized};
    let cases = [
        ("Content-Length: 0", Ok(Sized(0))),
        ("Content-Length: 18446744073709551615", Ok(Sized(u64::MAX))),
        ("Content-Length: 18446744073709551616", Err(400)),
        ("Content-Length: 99999999999999999999999999", Err(400)),
        ("Content-Length:", Err(400)),
        ("Content-Length: +5", Err(400)),
        ("Content-Length: -5", Err(400)),
        ("Content-Length: 0x5", Err(400)),
        ("Content-Length: 05", Err(400)),
        ("Content-Length: 5 5", Err(400)),
        ("Content-Length: 5, 5", Err(400)),
        ("Content-Length: 5,", Err(400)),
        ("Content-Length: 5.0", Err(400)),
        ("Content-Length: 5e1", Err(400)),
        ("Content-Length: 5\r\nContent-Length: 5", Err(400)),
        ("Content-Length: 5\r\ncontent-length: 6", Err(400)),
        ("Transfer-Encoding: chunked", Ok(Chunked)),
        ("transfer-encoding: CHUNKED", Ok(Chunked)),
        ("Transfer-Encoding:\tchunked \t", Ok(Chunked)),
        ("Transfer-Encoding: identity", Err(400)),
        ("Transfer-Encoding:", Err(400)),
        ("Transfer-Encoding: xchunked", Err(400)),
        ("Transfer-Encoding: chunkedx", Err(400)),
        ("Transfer-Encoding: x chunked", Err(400)),
        ("Transfer-Encoding: \"chunked\"", Err(400)),
        ("Transfer-Encoding: \x0bchunked", Err(400)),
        ("Transfer-Encoding: chunked;a=b", Err(400)),
        ("Transfer-Encoding: chunked,", Err(400)),
        ("Transfer-Encoding: ,chunked", Err(400)),
        ("Transfer-Encoding: chunked, chunked", Err(400)),
        ("Transfer-Encoding: chunked, identity", Err(400)),
        ("Transfer-Encoding: identity, chunked", Err(400)),
        ("Transfer-Encoding: chunked, gzip", Err(400)),
        ("Transfer-Encoding: gzip", Err(400)),
        ("Transfer-Encoding: gzip, chunked", Err(501)),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", Err(400)),
        ("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", Err(400)),
        ("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked", Err(400)),
        ("Content-Length: 5\r\nTransfer-Encoding: chunked", Err(400)),
        ("Transfer-Encoding: chunked\r\nContent-Length: 5", Err(400)),
        ("Transfer-Encoding: chunked\r\nContent-Length: 0", Err(400)),
    ];
    for (fields, expect) in cases {
        assert_eq!(status_with(fields), expect, "{}", fields.escape_debug());
    }
    let http10 = parse("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap_err();
    assert_eq!(http10.status(), 400);
}

#[test]
fn connection_and_expectation() {
    // (version, fields, keep_alive, expect_continue)
    let cases = [
        ("1.1", "", Ok((true, false))),
        ("1.1", "Connection: close\r\n", Ok((false, false))),
        ("1.1", "Connection: Keep-Alive, CLOSE\r\n", Ok((false, false))),
        ("1.1", "Connection: keep-alive\r\nConnection: close\r\n", Ok((false, false))),
        ("1.1", "Connection: , x-a ,,\r\n", Ok((true, false))),
        ("1.1", "Connection: a b\r\n", Err(400)),
        ("1.1", "Connection: \"close\"\r\n", Err(400)),
        ("1.0", "", Ok((false, false))),
        ("1.0", "Connection: keep-alive\r\n", Ok((true, false))),
        ("1.0", "Connection: keep-alive, close\r\n", Ok((false, false))),
        ("1.1", "Expect: 100-Continue\r\nContent-Length: 1\r\n", Ok((true, true))),
        ("1.1", "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n", Ok((true, true))),
        ("1.1", "Expect: 100-continue\r\nContent-Length: 0\r\n", Ok((true, false))),
        ("1.1", "Expect: 100-continue\r\n", Ok((true, false))),
        ("1.0", "Expect: 100-continue\r\nContent-Length: 1\r\n", Ok((false, false))),
        ("1.1", "Expect: 200-ok\r\nContent-Length: 1\r\n", Err(417)),
        ("1.1", "Expect: 100-continue, x\r\nContent-Length: 1\r\n", Err(417)),
        ("1.1", "Expect: 100-continue\r\nExpect: x\r\nContent-Length: 1\r\n", Err(417)),
    ];
    for (version, fields, expect) in cases {
        let head = format!("POST / HTTP/{version}\r\nHost: a\r\n{fields}\r\n");
        let got = parse(&head).map(|h| (h.keep_alive, h.expect_continue)).map_err(|e| e.status());
        assert_eq!(got, expect, "{version} {fields}");
    }
    let head = parse("GET / HTTP/1.1\r\nHost: a\r\nConnection: close, X-Secret, upgrade\r\n\r\n").unwrap();
    assert!(head.connection.contains("x-secret") && head.connection.contains("Upgrade"));
    assert!(!head.connection.contains("close") && head.connection.len() == 2);
}

#[test]
fn fields_are_bounded() {
    let limits = HeadLimits { max_headers: 100 };
    let with = |n: usize| format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "X: y\r\n".repeat(n - 1));
    assert_eq!(parse_request(with(100).as_bytes(), &limits).unwrap().headers.len(), 100);
    assert_eq!(parse_request(with(101).as_bytes(), &limits).unwrap_err().status(), 431);
    let names =
        |n: usize| format!("GET / HTTP/1.1\r\nHost: a\r\nConnection: {}\r\n\r\n", vec!["x"; n].join(","));
    assert_eq!(parse(&names(32)).unwrap().connection.len(), 32);
    assert_eq!(parse(&names(33)).unwrap_err().status(), 400);
}

#[test]
fn every_refusal_is_explained() {
    for head in ["", "\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\n", "GET / HTTP/1.1\r\n\r\nrest", "x"] {
        let error = parse(head).unwrap_err();
        assert_eq!(error.status(), 400);
        assert!(error.to_string().len() > 10 && error.to_string().is_ascii(), "{error}");
    }
}

/// Field lines that matter for framing, mangled: whatever parses has exactly one framing.
fn framing_line() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        Just("Content-Length"),
        Just("Transfer-Encoding"),
        Just("content_length"),
        Just("Transfer-Encoding "),
        Just("\tContent-Length"),
    ];
    let value =
        prop_oneof![Just("5"), Just("chunked"), Just("5, 5"), Just("chunked, x"), Just(""), Just("\u{b}5")];
    (name, value).prop_map(|(name, value)| format!("{name}: {value}\r\n"))
}

proptest! {
    #[test]
    fn accepted_framing_is_unique(lines in proptest::collection::vec(framing_line(), 0..4)) {
        let head = format!("POST / HTTP/1.1\r\nHost: a\r\n{}\r\n", lines.concat());
        if let Ok(head) = parse(&head) {
            let framing = head.headers.iter().filter(|(name, _)| {
                name.eq_ignore_ascii_case("content-length") || name.eq_ignore_ascii_case("transfer-encoding")
            });
            let expect = match head.body {
                RequestBody::None => 0,
                RequestBody::Sized(bytes) => { prop_assert_eq!(bytes, 5); 1 }
                RequestBody::Chunked => 1,
            };
            prop_assert_eq!(framing.count(), expect);
        }
    }
}
