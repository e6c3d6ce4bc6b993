use super::*;

#[rstest::rstest]
#[case("http://127.0.0.1:8080", "127.0.0.1:8080", "")]
#[case("http://127.0.0.1:8080/", "127.0.0.1:8080", "")]
#[case("http://127.0.0.1:8080/v1", "127.0.0.1:8080", "")]
#[case("http://127.0.0.1:8080/v1/", "127.0.0.1:8080", "")]
#[case("http://127.0.0.1:8080/llm/v1", "127.0.0.1:8080", "/llm")]
#[case("http://[::1]:9000/llm", "[::1]:9000", "/llm")]
fn urls_are_read(#[case] url: &str, #[case] authority: &str, #[case] prefix: &str) {
    let target = Target::parse(url).expect("a URL");
    assert_eq!((target.authority.as_str(), target.prefix.as_str()), (authority, prefix));
    assert_eq!(target.address.to_string(), authority);
}

#[rstest::rstest]
#[case("127.0.0.1:8080")]
#[case("https://127.0.0.1:8080")]
#[case("http://")]
#[case("http://127.0.0.1:8080/?x=1")]
#[case("http://127.0.0.1:99999")]
fn what_is_no_url_is_refused(#[case] url: &str) {
    assert!(Target::parse(url).is_err(), "{url}");
}

#[test]
fn a_request_is_whole() {
    let target = Target::parse("http://127.0.0.1:80/p").expect("a URL");
    let head = HeadTemplate::post(&target, "/v1/x", &["authorization: Bearer k".to_owned()]);
    let request = String::from_utf8(head.request("id-1", Some("s"), "{}")).expect("text");
    assert_eq!(
        request,
        "POST /p/v1/x HTTP/1.1\r\nhost: 127.0.0.1:80\r\nuser-agent: loadgen\r\ncontent-type: application/json\r\n\
         authorization: Bearer k\r\nx-request-id: id-1\r\nx-session-id: s\r\ncontent-length: 2\r\n\r\n{}"
    );
}
