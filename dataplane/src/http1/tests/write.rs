//! What is written, and which fields pass.

use crate::http1::write::{
    ChunkStart, forward_request_header, forward_response_header, is_hop_by_hop, put_header, put_header_u64,
    put_request_line, put_status_line, reason,
};
use crate::http1::{HeadLimits, parse_request, parse_response};

#[test]
fn heads_that_are_written_parse() {
    let mut out = Vec::new();
    put_request_line(&mut out, "POST", "/base", "/v1/completions", Some("a=b"));
    put_header(&mut out, "host", b"10.0.0.1:8000");
    put_header_u64(&mut out, "content-length", 12);
    out.extend_from_slice(b"\r\n");
    assert_eq!(
        out,
        b"POST /base/v1/completions?a=b HTTP/1.1\r\nhost: 10.0.0.1:8000\r\ncontent-length: 12\r\n\r\n"
    );
    assert!(parse_request(&out, &HeadLimits::default()).is_ok());
    for status in [200, 299, 431, 503] {
        let mut out = Vec::new();
        put_status_line(&mut out, status);
        out.extend_from_slice(b"\r\n");
        assert_eq!(parse_response(&out, &HeadLimits::default(), false).unwrap().status, status);
    }
    assert_eq!((reason(429), reason(299)), ("Too Many Requests", ""));
}

#[test]
fn chunk_starts() {
    for len in [1, 9, 10, 15, 16, 255, 256, 65535, 1 << 20, usize::MAX] {
        assert_eq!(ChunkStart::new(len).as_bytes(), format!("{len:x}\r\n").as_bytes());
    }
}

#[test]
fn fields_toward_engines() {
    for name in
        ["Content-Type", "accept", "User-Agent", "traceparent", "tracestate", "X-Custom", "x-stainless-lang"]
    {
        assert!(forward_request_header(name), "{name}");
    }
    for name in [
        "Host",
        "Content-Length",
        "Transfer-Encoding",
        "Expect",
        "Authorization",
        "X-API-Key",
        "Cookie",
        "Proxy-Authorization",
        "proxy-anything",
        "Accept-Encoding",
        "X-Request-Id",
        "X-LLMGW-Debug",
        "x-tl-kv-handle",
        "Forwarded",
        "X-Forwarded-For",
        "Origin",
        "Referer",
        "TE",
        "Trailer",
        "Upgrade",
        "Keep-Alive",
        "Connection",
        "content_length",
        "Transfer_Encoding",
        "X_TL-Priority",
        "Content_Type",
        "content_encoding",
        "Proxy",
        "X-Original-URL",
        "X-Rewrite-Url",
        "X-HTTP-Method",
        "X-HTTP-Method-Override",
        "X-Method-Override",
    ] {
        assert!(!forward_request_header(name), "{name}");
    }
}

#[test]
fn fields_toward_clients() {
    for name in
        ["Content-Type", "Cache-Control", "Retry-After", "date", "openai-processing-ms", "X-Custom", "vary"]
    {
        assert!(forward_response_header(name), "{name}");
    }
    for name in [
        "Server",
        "Clear-Site-Data",
        "Strict-Transport-Security",
        "Public-Key-Pins",
        "Service-Worker-Allowed",
        "Refresh",
        "NEL",
        "Report-To",
        "Reporting-Endpoints",
        "Via",
        "Location",
        "Set-Cookie",
        "X-Accel-Buffering",
        "Access-Control-Allow-Origin",
        "X-Request-Id",
        "x-llmgw-replica",
        "X-TL-KV-Handle",
        "x-ratelimit-limit-requests",
        "Alt-Svc",
        "Process-Start-Time-Unix",
        "Content-Length",
        "Transfer-Encoding",
        "Trailer",
        "Connection",
        "Keep-Alive",
        "Proxy-Authenticate",
    ] {
        assert!(!forward_response_header(name), "{name}");
    }
}

#[test]
fn hop_by_hop_in_any_case() {
    assert!(is_hop_by_hop("CONNECTION") && is_hop_by_hop("te") && is_hop_by_hop("Proxy-Connection"));
    assert!(!is_hop_by_hop("t") && !is_hop_by_hop("") && !is_hop_by_hop("content-type"));
}
