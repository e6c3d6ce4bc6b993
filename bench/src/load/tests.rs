use super::stage::quantile;
use super::wire::{Answers, JSON_BYTES, Kind, LARGE_BYTES, content_length, events, parse_request, request};

#[test]
fn requests_say_what_they_want() {
    for kind in [Kind::Json, Kind::Large, Kind::Stream(0), Kind::Stream(7), Kind::Stream(99)] {
        let bytes = request(kind);
        assert_eq!(parse_request(&bytes), Some((kind, bytes.len())));
        for cut in 0..bytes.len() {
            assert_eq!(parse_request(&bytes[..cut]), None, "{kind:?} cut at {cut}");
        }
    }
    let health = b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n";
    assert_eq!(parse_request(health), Some((Kind::Other, health.len())));
}

#[test]
fn lengths_are_found_however_they_are_spelled() {
    for (head, length) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 600\r\n\r\n", Some(600)),
        ("HTTP/1.1 200 OK\r\ncontent-length:7\r\n\r\n", Some(7)),
        ("HTTP/1.1 200 OK\r\nx-length: 5\r\ncontent-length: 8\r\n\r\n", Some(8)),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", None),
    ] {
        assert_eq!(content_length(head.as_bytes()), length, "{head}");
    }
}

#[test]
fn answers_have_the_sizes_that_are_told() {
    let answers = Answers::new();
    for (answer, bytes) in [(&answers.json, JSON_BYTES), (&answers.large, LARGE_BYTES)] {
        let head = memchr::memmem::find(answer, b"\r\n\r\n").unwrap() + 4;
        assert_eq!(content_length(&answer[..head]), Some(bytes));
        assert_eq!(answer.len() - head, bytes);
        serde_json::from_slice::<serde_json::Value>(&answer[head..]).unwrap();
    }
    assert_eq!(events(b'\n', &answers.stream_start), 1);
    assert_eq!(events(b'\n', &answers.event), 1);
    assert_eq!(events(b'\n', b"\n\r\n"), 1);
}

#[test]
fn quantiles() {
    assert_eq!(quantile(&[], 0.5), 0);
    assert_eq!(quantile(&[3], 0.99), 3);
    let hundred: Vec<u64> = (0..100).collect();
    assert_eq!((quantile(&hundred, 0.5), quantile(&hundred, 0.99)), (50, 99));
}
