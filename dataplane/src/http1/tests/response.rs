//! Response heads: the framing of each answer, and what is refused.

use crate::http1::{HeadLimits, ResponseBody, ResponseError, ResponseHead, parse_response};

fn parse(head: &str) -> Result<ResponseHead<'_>, ResponseError> {
    parse_response(head.as_bytes(), &HeadLimits::default(), false)
}

#[test]
fn answers_of_real_engines() {
    let vllm = "HTTP/1.1 200 OK\r\ndate: Tue, 01 Dec 2026 00:00:00 GMT\r\nserver: uvicorn\r\n\
                content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n";
    let head = parse(vllm).unwrap();
    assert_eq!((head.status, head.body, head.keep_alive), (200, ResponseBody::Chunked, true));
    let llamacpp = "HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nAccess-Control-Allow-Origin: \r\nContent-Length: 7\r\n\
                    Keep-Alive: timeout=5, max=100\r\n\r\n";
    let head = parse(llamacpp).unwrap();
    assert_eq!((head.body, head.keep_alive_timeout_s), (ResponseBody::Sized(7), Some(5)));
    let refusal = "HTTP/1.1 400 Bad Request\r\nContent-Length: 195\r\nConnection: close\r\n\r\n";
    assert!(!parse(refusal).unwrap().keep_alive);
}

#[test]
fn status_lines() {
    for line in
        ["HTTP/1.1 200 OK", "HTTP/1.1 200 ", "HTTP/1.1 200", "HTTP/1.0 599 x", "HTTP/1.1 200 caf\u{e9}\tx"]
    {
        assert!(parse(&format!("{line}\r\n\r\n")).is_ok(), "{line}");
    }
    for line in [
        "HTTP/1.1  200 OK",
        "HTTP/1.1 20 OK",
        "HTTP/1.1 2000 OK",
        "HTTP/1.1 099 x",
        "HTTP/1.1 600 x",
        "HTTP/1.1 2x0 OK",
        "HTTP/1.1 +20 OK",
        "HTTP/1.1 200\tOK",
        "HTTP/1.1 200 O\0K",
        "HTTP/1.1 200 O\rK",
        "HTTP/1.1",
        "HTTP/2 200",
        "HTTP/1.2 200 OK",
        "http/1.1 200 OK",
        "ICY 200 OK",
        "\r\nHTTP/1.1 200 OK",
        "HTTP/1.1 101 Switching Protocols",
    ] {
        assert!(parse(&format!("{line}\r\n\r\n")).is_err(), "{}", line.escape_debug());
    }
}

#[test]
fn framing() {
    use ResponseBody::{Chunked, None as NoBody, Sized, UntilClose};
    // (status line, fields, answer to HEAD, (body, keep_alive))
    let cases = [
        ("1.1 200", "", false, Some((UntilClose, false))),
        ("1.1 200", "Content-Length: 0\r\n", false, Some((Sized(0), true))),
        ("1.1 200", "Content-Length: 9\r\n", true, Some((NoBody, true))),
        ("1.1 200", "Transfer-Encoding: chunked\r\n", true, Some((NoBody, true))),
        ("1.1 200", "", true, Some((NoBody, true))),
        ("1.1 204", "", false, Some((NoBody, true))),
        ("1.1 204", "Content-Length: 0\r\n", false, Some((NoBody, true))),
        ("1.1 204", "Content-Length: 5\r\n", false, None),
        ("1.1 204", "Transfer-Encoding: chunked\r\n", false, None),
        ("1.1 205", "Content-Length: 0\r\n", false, Some((Sized(0), true))),
        ("1.1 205", "Content-Length: 5\r\n", false, None),
        ("1.1 205", "Transfer-Encoding: chunked\r\n", false, None),
        ("1.1 205", "", false, None),
        ("1.1 304", "Content-Length: 5\r\n", false, Some((NoBody, true))),
        ("1.1 100", "", false, Some((NoBody, true))),
        ("1.1 103", "Link: x\r\n", false, Some((NoBody, true))),
        ("1.1 100", "Content-Length: 5\r\n", false, None),
        ("1.0 200", "Content-Length: 5\r\n", false, Some((Sized(5), false))),
        ("1.0 200", "Content-Length: 5\r\nConnection: keep-alive\r\n", false, Some((Sized(5), true))),
        ("1.0 200", "Connection: keep-alive\r\n", false, Some((UntilClose, false))),
        ("1.0 200", "Transfer-Encoding: chunked\r\n", false, None),
        ("1.1 200", "Transfer-Encoding: Chunked\r\n", false, Some((Chunked, true))),
        ("1.1 200", "Transfer-Encoding: gzip, chunked\r\n", false, None),
        ("1.1 200", "Transfer-Encoding: identity\r\n", false, None),
        ("1.1 200", "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", false, None),
        ("1.1 200", "Content-Length: 5\r\nContent-Length: 5\r\n", false, None),
        ("1.1 200", "Content-Length: 5, 5\r\n", false, None),
        ("1.1 200", "Content-Length : 5\r\n", false, None),
        ("1.1 200", "Content-Length: 5\nX: y\r\n", false, None),
        ("1.1 200", "X: a\r\n b\r\n", false, None),
    ];
    for (line, fields, was_head, expect) in cases {
        let head = format!("HTTP/{line} x\r\n{fields}\r\n");
        let got = parse_response(head.as_bytes(), &HeadLimits::default(), was_head);
        assert_eq!(got.ok().map(|h| (h.body, h.keep_alive)), expect, "{line} {fields} {was_head}");
    }
    assert!(parse("HTTP/1.1 103 x\r\n\r\n").unwrap().interim());
    assert!(!parse("HTTP/1.1 200 x\r\n\r\n").unwrap().interim());
}

#[test]
fn keep_alive_timeouts() {
    let cases = [
        ("timeout=5", Some(5)),
        ("max=9, Timeout=75", Some(75)),
        ("timeout=", None),
        ("timeout=x", None),
        ("timeout=+5", None),
        ("timeout=99999999999999999999", None),
        ("max=1", None),
    ];
    for (value, expect) in cases {
        let head = format!("HTTP/1.1 204 x\r\nKeep-Alive: {value}\r\n\r\n");
        assert_eq!(parse(&head).unwrap().keep_alive_timeout_s, expect, "{value}");
    }
}
