//! What is known of a head is what the parser says of it.

use crate::http1::memo::{self, Memo, Place, Varying};
use crate::http1::{HeadLimits, RequestBody, find_head_end, parse_request, parse_response};

const LIMITS: HeadLimits = HeadLimits { max_headers: 100 };

/// Lines of requests, alike enough to be mistaken for each other.
const LINES: &[&str] = &[
    "Host: h.example",
    "host: h.example",
    "Content-Type: application/json",
    "Content-Length: 12",
    "Content-Length: 7",
    "Content-Length: 0",
    "Content-Length: 07",
    "Content-Length: +7",
    "Content-Length: 7 ",
    "Content-Length: 99999999999999999999",
    "Content-Length: 1234567890123456",
    "content-length: 12",
    "Transfer-Encoding: chunked",
    "Authorization: Bearer a",
    "Authorization: Bearer bb",
    "Authorization:",
    "Authorization: \u{e9}",
    "X-Api-Key: k",
    "x-request-id: one",
    "x-request-id: two",
    "x-request-id: two words",
    "X-Request-Id: ",
    "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "traceparent: 00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate: a=b",
    "Connection: close",
    "Connection: traceparent",
    "Accept: */*",
    "A: b\rc",
];

fn request(rng: &mut fastrand::Rng) -> String {
    let mut head = "POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\n".to_owned();
    for _ in 0..rng.usize(0..6) {
        head.push_str(LINES[rng.usize(1..LINES.len())]);
        head.push_str("\r\n");
    }
    head + "\r\n"
}

/// Another head that differs from this one by a value, a byte, or altogether.
fn relative(of: &str, rng: &mut fastrand::Rng) -> Vec<u8> {
    let mut lines: Vec<String> = of.split("\r\n").map(str::to_owned).collect();
    match rng.u8(0..4) {
        0 => {
            for line in &mut lines {
                let name = line.split(':').next().unwrap_or_default().to_owned();
                let same: Vec<&&str> = LINES.iter().filter(|l| l.split(':').next() == Some(&name)).collect();
                if !same.is_empty() {
                    *line = same[rng.usize(0..same.len())].to_string();
                }
            }
            lines.join("\r\n").into_bytes()
        }
        1 => {
            let mut bytes = of.as_bytes().to_vec();
            let at = rng.usize(0..bytes.len());
            bytes[at] = *rng.choice(b"\r\n :;0aZ\t\0\x80").unwrap_or(&b'x');
            bytes
        }
        2 => of.as_bytes().to_vec(),
        _ => request(rng).into_bytes(),
    }
}

#[test]
fn what_is_known_is_what_the_parser_says() {
    let mut hits = 0;
    for seed in 0..40_000 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let first = request(&mut rng);
        let Ok(parsed) = parse_request(first.as_bytes(), &LIMITS) else { continue };
        let mut known = Memo::default();
        let mut place = Place::default();
        known.put(
            &mut place,
            first.as_bytes(),
            &parsed.headers,
            memo::REQUEST,
            (parsed.keep_alive, parsed.body),
        );

        let second = relative(&first, &mut rng);
        let mut buf = second.clone();
        buf.extend_from_slice(b"{}\r\n\r\n");
        let Some(hit) = known.find(&mut place, &buf) else { continue };
        hits += 1;
        let text = String::from_utf8_lossy(&second);
        assert_eq!(Some(hit.end), find_head_end(&buf, 0), "seed {seed}: {text:?}");
        let now = parse_request(&buf[..hit.end], &LIMITS);
        let now = now.unwrap_or_else(|error| panic!("seed {seed}: known, but {error}: {text:?}"));
        let body = hit.length().map_or(hit.facts.1, RequestBody::Sized);
        assert_eq!((hit.facts.0, body), (now.keep_alive, now.body), "seed {seed}: {text:?}");
        assert_eq!(now.connection.len(), parsed.connection.len());
        for (varying, value) in &hit.values {
            let name = match varying {
                Varying::Length => "content-length",
                Varying::RequestId => "x-request-id",
                Varying::Passing(name) => name,
                Varying::Ignored => continue,
            };
            assert_eq!(now.headers.get(name), Some(*value), "seed {seed}: {text:?}");
        }
        let fixed = |head: &crate::http1::RequestHead<'_>| -> Vec<(String, Vec<u8>)> {
            let varies = |name: &str| memo::REQUEST.iter().any(|(n, _)| name.eq_ignore_ascii_case(n));
            let fields = head.headers.iter().filter(|(name, _)| !varies(name));
            fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
        };
        assert_eq!(fixed(&parsed), fixed(&now), "seed {seed}: {text:?}");
    }
    assert!(hits > 4_000, "{hits} heads were known: the test tests nothing");
}

#[test]
fn an_answer_is_known_but_for_its_length_and_date() {
    let head = |length: &str, date: &str, more: &str| {
        format!(
            "HTTP/1.1 200 OK\r\ndate: {date}\r\ncontent-length: {length}\r\nx-request-id: 1\r\n{more}\r\n"
        )
    };
    let first = head("5", "Mon", "");
    let parsed = parse_response(first.as_bytes(), &LIMITS, false).expect("a head");
    let (mut known, mut place) = (Memo::default(), Place::default());
    known.put(&mut place, first.as_bytes(), &parsed.headers, memo::RESPONSE, ());
    let mut length = |bytes: String| known.find(&mut place, bytes.as_bytes()).map(|hit| hit.length());
    assert_eq!(length(head("1200", "Tue", "")), Some(Some(1200)));
    assert_eq!(length(head("01", "Tue", "")), None, "the parser refuses it");
    assert_eq!(length(head("-1", "Tue", "")), None);
    assert_eq!(length(head("5", "", "")), None);
    assert_eq!(length(head("5", "Tue", "content-length: 5\r\n")), None, "another head");
    assert_eq!(length(head("5", "Tue\r\nx: y", "")), None);
    assert_eq!(length(head("5", "Tue", "")[..40].to_owned()), None, "incomplete");
}

#[test]
fn heads_that_never_come_again_are_given_up() {
    let (mut known, mut place) = (Memo::default(), Place::default());
    let mut put = |place: &mut Place, n: u32| {
        let head = format!("POST / HTTP/1.1\r\nHost: h\r\nx-n: {n}\r\n\r\n");
        let parsed = parse_request(head.as_bytes(), &LIMITS).expect("a head");
        known.put(place, head.as_bytes(), &parsed.headers, memo::REQUEST, n);
        known.find(place, head.as_bytes()).map(|hit| *hit.facts)
    };
    // Met again at once each time: it goes on.
    assert!((0..100).all(|n| put(&mut place, n) == Some(n)));
    let mut unlucky = Place::default();
    let mut vain = |n: u32| {
        let head = format!("POST / HTTP/1.1\r\nHost: h\r\nx-n: {n}\r\n\r\n");
        let parsed = parse_request(head.as_bytes(), &LIMITS).expect("a head");
        known.put(&mut unlucky, head.as_bytes(), &parsed.headers, memo::REQUEST, n);
    };
    (200..210).for_each(&mut vain);
    let last = b"POST / HTTP/1.1\r\nHost: h\r\nx-n: 209\r\n\r\n";
    assert!(known.find(&mut Place::default(), last).is_none(), "remembered after many tries in vain");
    assert!(known.find(&mut Place::default(), b"POST / HTTP/1.1\r\nHost: h\r\nx-n: 203\r\n\r\n").is_some());
}
