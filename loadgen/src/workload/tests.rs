use super::*;

#[rstest::rstest]
#[case("128", Lengths::Fixed(128))]
#[case("fixed:5", Lengths::Fixed(5))]
#[case("uniform:10:20", Lengths::Uniform(10, 20))]
#[case("lognormal:200:0.8", Lengths::LogNormal { median: 200.0, sigma: 0.8, max: 131_072 })]
#[case("lognormal:200:0.8:900", Lengths::LogNormal { median: 200.0, sigma: 0.8, max: 900 })]
fn lengths_are_read(#[case] text: &str, #[case] expected: Lengths) {
    assert_eq!(text.parse(), Ok(expected));
}

#[rstest::rstest]
#[case("")]
#[case("-1")]
#[case("uniform:20:10")]
#[case("uniform:1")]
#[case("lognormal:x:1")]
#[case("lognormal:5:-1")]
#[case("normal:1:2")]
fn nonsense_is_refused(#[case] text: &str) {
    assert!(text.parse::<Lengths>().is_err(), "{text}");
}

#[test]
fn draws_follow_their_distribution() {
    let mut rng = fastrand::Rng::with_seed(3);
    let mut uniform: Vec<u32> = (0..5_000).map(|_| Lengths::Uniform(10, 20).draw(&mut rng)).collect();
    uniform.sort_unstable();
    assert_eq!((uniform[0], uniform[4_999]), (10, 20));
    let lengths = Lengths::LogNormal { median: 200.0, sigma: 0.5, max: 1_000 };
    let mut drawn: Vec<u32> = (0..20_000).map(|_| lengths.draw(&mut rng)).collect();
    drawn.sort_unstable();
    // One sigma below and above: 200 * exp(-0.5) = 121, 200 * exp(0.5) = 330.
    for (rank, expected) in [(3_173, 121.3), (10_000, 200.0), (16_827, 329.7)] {
        let got = f64::from(drawn[rank]);
        assert!((got / expected - 1.0).abs() < 0.04, "rank {rank}: {got} instead of {expected}");
    }
    assert!(drawn[19_999] <= 1_000);
}

#[test]
fn bodies_are_json_whatever_the_text() {
    let odd = "quote \" backslash \\ line\nbell\u{7} ü";
    let turns = [Turn { user: odd.into(), assistant: "plain".into() }];
    let spec = BodySpec { api: Api::Chat, model: odd, stream: true, include_usage: true, max_tokens: 7 };
    let body: serde_json::Value = serde_json::from_str(&write_body(spec, &turns, odd)).expect("JSON");
    assert_eq!(body["model"], odd);
    assert_eq!(body["messages"][0]["content"], odd);
    assert_eq!(body["messages"][1]["role"], "assistant");
    assert_eq!(body["messages"][2]["content"], odd);
    assert_eq!(body["max_tokens"], 7);
    assert_eq!(body["stream_options"]["include_usage"], true);
    let of =
        |api| serde_json::from_str::<serde_json::Value>(&write_body(BodySpec { api, ..spec }, &[], "hi"));
    assert_eq!(of(Api::Completions).expect("JSON")["prompt"], "hi");
    assert_eq!(of(Api::Embeddings).expect("JSON"), serde_json::json!({"model": odd, "input": "hi"}));
}

#[test]
fn a_token_is_four_bytes_of_text() {
    let mut text = String::new();
    push_text(&mut text, 50, &mut fastrand::Rng::with_seed(1));
    assert_eq!(text.len(), 50 * BYTES_PER_TOKEN);
    assert!(text.bytes().all(|b| b == b' ' || b.is_ascii_lowercase()));
}
