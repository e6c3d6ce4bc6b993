use super::*;

fn stream(tag: &str, numbers: &[u32]) -> String {
    numbers.iter().map(|n| token(tag, *n)).collect()
}

#[test]
fn whole_streams_pass_however_they_are_cut() {
    let text = stream("s-1", &(0..120).collect::<Vec<_>>());
    for cut in 1..9 {
        let mut checker = TokenChecker::new("s-1");
        for piece in text.as_bytes().chunks(cut) {
            checker.push(std::str::from_utf8(piece).unwrap()).unwrap();
        }
        assert_eq!(checker.finish(Some(120)), Ok(120), "cut {cut}");
    }
}

#[test]
fn each_kind_of_damage_is_named() {
    let check = |text: &str, expected: Option<u32>| {
        let mut checker = TokenChecker::new("a");
        checker.push(text).and_then(|()| checker.finish(expected))
    };
    let lost = check(&stream("a", &[0, 1, 3]), None);
    assert_eq!(lost, Err(TokenError::WrongNumber { expected: 2, found: 3 }));
    let repeated = check(&stream("a", &[0, 1, 1]), None);
    assert_eq!(repeated, Err(TokenError::WrongNumber { expected: 2, found: 1 }));
    let other = check("a:0 b:1 ", None);
    assert_eq!(other, Err(TokenError::WrongStream { expected: "a".into(), found: "b".into() }));
    assert_eq!(check("a:0 a:1", None), Err(TokenError::Partial { text: "a:1".into() }));
    assert_eq!(check("a:0 ", Some(2)), Err(TokenError::WrongCount { expected: 2, found: 1 }));
    assert_eq!(check("hello ", None), Err(TokenError::Malformed { text: "hello".into() }));
}

#[test]
fn tag_of_the_first_token_binds_the_stream() {
    let mut checker = TokenChecker::any();
    checker.push("x:0 ").unwrap();
    assert_eq!(checker.tag(), Some("x"));
    assert!(checker.push("y:1 ").is_err());
}

#[test]
fn markers_are_found_and_tags_cleaned() {
    let prompt = "say [[not a tag]] or [[tag-1]] please";
    let (tag, range) = find_marker(prompt).unwrap();
    assert_eq!((tag, &prompt[range]), ("tag-1", "[[tag-1]]"));
    assert_eq!(find_marker("[[unclosed"), None);
    assert_eq!(find_marker("[[]] []"), None);
    assert_eq!(sanitize_tag("a b:c\"d").as_deref(), Some("abcd"));
    assert_eq!(sanitize_tag("\u{e9} "), None);
    assert_eq!(choice_tag("t", 2), "t/2");
}

#[test]
fn written_token_equals_formatted_one() {
    for index in [0, 9, 10, 99, 12_345, u32::MAX] {
        let mut out = Vec::new();
        write_token(&mut out, b"t", index);
        assert_eq!(String::from_utf8(out).unwrap(), token("t", index));
    }
}
