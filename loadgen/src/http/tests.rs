use super::*;

/// The status, the body, and whether the answer is complete; or what was wrong.
fn decode(bytes: &[u8], cut: usize) -> Result<(Head, Vec<u8>, bool), Malformed> {
    let mut decoder = Decoder::default();
    let mut head = Head::default();
    let mut body = Vec::new();
    for piece in bytes.chunks(cut) {
        decoder.feed(piece, |part| match part {
            Part::Head(h) => head = h.clone(),
            Part::Body(bytes) => body.extend_from_slice(bytes),
        })?;
    }
    Ok((head, body, decoder.done()))
}

#[rstest::rstest]
#[case::sized("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello", 200, "hello", true, true)]
#[case::empty("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, "", true, true)]
#[case::unfinished("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel", 200, "hel", false, true)]
#[case::close("HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 1\r\n\r\nx", 200, "x", true, false)]
#[case::old("HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\nx", 200, "x", true, false)]
#[case::old_kept(
    "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 1\r\n\r\nx",
    200,
    "x",
    true,
    true
)]
#[case::until_close("HTTP/1.1 200 OK\r\n\r\nabc", 200, "abc", false, false)]
#[case::no_content("HTTP/1.1 204 No Content\r\n\r\n", 204, "", true, true)]
#[case::interim(
    "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nx",
    200,
    "x",
    true,
    true
)]
#[case::chunked(
    "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\nA;ext=1\r\n0123456789\r\n0\r\nt: 1\r\n\r\n",
    200,
    "abc0123456789",
    true,
    true
)]
fn answers_in_any_split(
    #[case] bytes: &str,
    #[case] status: u16,
    #[case] body: &str,
    #[case] done: bool,
    #[case] keep_alive: bool,
) {
    for cut in 1..=bytes.len() {
        let (head, got, complete) = decode(bytes.as_bytes(), cut).expect("valid");
        assert_eq!((head.status, head.keep_alive, complete), (status, keep_alive, done), "cut at {cut}");
        assert_eq!(got, body.as_bytes(), "cut at {cut}");
    }
}

#[rstest::rstest]
#[case("HTTP/1.1 2OO OK\r\n\r\n")]
#[case("HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nx")]
#[case("HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n")]
#[case("HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n")]
#[case("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n")]
#[case("HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\nxy")]
#[case("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n")]
#[case("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\r\n")]
#[case("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nxy\r\n")]
#[case("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\nx\r\n")]
#[case("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n+1\r\nx\r\n")]
fn what_breaks_http_is_refused_in_any_split(#[case] bytes: &str) {
    for cut in 1..=bytes.len() {
        assert!(decode(bytes.as_bytes(), cut).is_err(), "cut at {cut}");
    }
}

#[test]
fn heads_and_chunk_lines_are_bounded() {
    let mut decoder = Decoder::default();
    let endless = [b"HTTP/1.1 200 OK\r\nx: ".as_slice(), &vec![b'a'; HEAD_MAX]].concat();
    assert!(decoder.feed(&endless, |_| {}).is_err());
    let head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n".as_slice();
    let endless = [head, &vec![b'1'; CHUNK_LINE_MAX + 1]].concat();
    assert!(decode(&endless, 100).is_err());
}

#[test]
fn a_stream_is_known_by_its_type() {
    let head = |kind: &str| {
        let bytes = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: 0\r\n\r\n");
        decode(bytes.as_bytes(), 1000).expect("valid").0.event_stream
    };
    assert!(
        head("text/event-stream") && head("Text/Event-Stream; charset=utf-8") && !head("application/json")
    );
}
