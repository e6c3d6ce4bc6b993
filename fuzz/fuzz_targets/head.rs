//! Heads: the search for the end does not depend on splits, and whatever is accepted is unambiguous: written anew from
//! what was parsed, it parses to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use llmgw_dataplane::http1::write::{put_header, put_request_line};
use llmgw_dataplane::http1::{
    HeadLimits, Headers, RequestBody, RequestHead, ResponseBody, find_head_end, parse_request, parse_response,
};
use llmgw_fuzz::{every_byte, ranges, split_recipe};

const LIMITS: HeadLimits = HeadLimits { max_headers: 16 };

fuzz_target!(|data: &[u8]| {
    let Some((input, cuts)) = split_recipe(data) else { return };
    let end = find_head_end(input, 0);
    assert_eq!(search(input, &cuts), end);
    assert_eq!(search(input, &every_byte(input)), end);
    let head = &input[..end.unwrap_or(input.len())];
    if let Ok(request) = parse_request(head, &LIMITS) {
        assert!(end == Some(head.len()), "an incomplete head was accepted");
        check_request(&request);
    }
    for request_was_head in [false, true] {
        let Ok(response) = parse_response(head, &LIMITS, request_was_head) else { continue };
        check_fields(&response.headers);
        let framing = framing_fields(&response.headers);
        let expect = match response.body {
            ResponseBody::None => 0..=1,
            ResponseBody::Sized(_) | ResponseBody::Chunked => 1..=1,
            ResponseBody::UntilClose => 0..=0,
        };
        assert!(expect.contains(&framing));
        assert!((100..600).contains(&response.status) && response.status != 101);
        assert!(!(response.keep_alive && response.body == ResponseBody::UntilClose));
    }
});

fn search(input: &[u8], cuts: &[usize]) -> Option<usize> {
    ranges(cuts, input.len()).find_map(|range| find_head_end(&input[..range.end], range.start))
}

fn framing_fields(headers: &Headers<'_>) -> usize {
    let framing = ["content-length", "transfer-encoding"];
    headers.iter().filter(|(name, _)| framing.iter().any(|f| name.eq_ignore_ascii_case(f))).count()
}

fn check_fields(headers: &Headers<'_>) {
    assert!(headers.len() <= LIMITS.max_headers);
    for (name, value) in headers.iter() {
        assert!(
            !name.is_empty()
                && name.bytes().all(|b| b.is_ascii_graphic() && !b"\"(),/:;<=>?@[\\]{}".contains(&b))
        );
        assert!(value.iter().all(|&b| b == b'\t' || (b >= b' ' && b != 0x7f)));
        assert!(!matches!(value, [b' ' | b'\t', ..] | [.., b' ' | b'\t']));
    }
}

fn check_request(request: &RequestHead<'_>) {
    check_fields(&request.headers);
    assert_eq!(framing_fields(&request.headers), usize::from(request.body != RequestBody::None));
    let hosts = request.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case("host")).count();
    assert!(hosts == 1 || (hosts == 0 && !request.http11));
    let target = request.path.bytes().chain(request.query.unwrap_or("").bytes());
    assert!(target.into_iter().all(|b| b.is_ascii_graphic() && b != b'#'));
    if !request.http11 {
        return;
    }
    let mut again = Vec::new();
    put_request_line(&mut again, request.method_str, "", request.path, request.query);
    for (name, value) in request.headers.iter() {
        put_header(&mut again, name, value);
    }
    again.extend_from_slice(b"\r\n");
    assert_eq!(find_head_end(&again, 0), Some(again.len()));
    let reparsed = parse_request(&again, &LIMITS).expect("what was accepted is accepted again");
    assert_eq!(
        (reparsed.path, reparsed.query, reparsed.body, reparsed.keep_alive, reparsed.expect_continue),
        (request.path, request.query, request.body, request.keep_alive, request.expect_continue)
    );
    assert_eq!(reparsed.headers.len(), request.headers.len());
    for ((name, value), (name_before, value_before)) in reparsed.headers.iter().zip(request.headers.iter()) {
        assert_eq!((name, value), (name_before, value_before));
    }
}
