use super::*;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split_whitespace())
}

#[rstest::rstest]
#[case("loadgen run --url http://127.0.0.1:1 --model m")]
#[case("loadgen run --url http://127.0.0.1:1 --model m --rate 100 --arrivals poisson --duration 5s --stream")]
#[case("loadgen run --url http://127.0.0.1:1 --model m --concurrency 4 --requests 10 --json out.json")]
#[case("loadgen run --url http://127.0.0.1:1 --model m --sessions 3 --turns 5 --think 10ms")]
#[case("loadgen run --url http://127.0.0.1:1 --model m --trace t.jsonl --time-scale 60 --trace-output-max 9")]
#[case("loadgen run --url http://127.0.0.1:1 --model m --trace t.jsonl --rate 5")]
#[case(
    "loadgen overhead --direct http://127.0.0.1:1 --via http://127.0.0.1:2 --rate 10 --stream --max-p99-overhead 2ms"
)]
#[case(
    "loadgen disconnect --url http://127.0.0.1:1 --engine http://127.0.0.1:2 http://127.0.0.1:3 --max-delay 9ms"
)]
#[case("loadgen disconnect --url http://127.0.0.1:1 --engine http://127.0.0.1:2 --engine http://127.0.0.1:3")]
fn command_lines_are_read(#[case] line: &str) {
    assert!(parse(line).is_ok(), "{:?}", parse(line).err());
}

#[rstest::rstest]
#[case("loadgen")]
#[case("loadgen run --url http://127.0.0.1:1")]
#[case("loadgen run --url http://127.0.0.1:1 --model m --rate 5 --concurrency 5")]
#[case("loadgen run --url http://127.0.0.1:1 --model m --sessions 5 --trace t")]
#[case("loadgen run --url http://127.0.0.1:1 --model m --duration 5")]
#[case("loadgen run --url http://127.0.0.1:1 --model m --turns 5")]
#[case("loadgen run --url http://127.0.0.1:1 --model m --trace t --prompt-tokens 5")]
#[case("loadgen run --url http://127.0.0.1:1 --model m --header nonsense")]
#[case("loadgen overhead --direct http://127.0.0.1:1")]
#[case("loadgen disconnect --url http://127.0.0.1:1")]
fn wrong_usage_exits_with_2(#[case] line: &str) {
    assert_eq!(parse(line).err().map(|e| e.exit_code()), Some(2));
}

#[test]
fn flags_become_the_run() {
    let config = |line: &str| match parse(line).expect("valid").command {
        Command::Run(args) => run_config(&args).ok().expect("valid"),
        _ => unreachable!("a run"),
    };
    let base = "loadgen run --url http://127.0.0.1:1 --model m";
    assert_eq!(config(base).load, Load::Closed { concurrency: 16 });
    let open = config(&format!("{base} --rate 5 --arrivals poisson --warmup 1s --max-errors 3 --threads 2"));
    assert_eq!(open.load, Load::Open { rate: 5.0, arrivals: Arrivals::Poisson });
    assert_eq!((open.warmup, open.max_errors, open.threads), (Duration::from_secs(1), 3, 2));
    let sample = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/conversation_sample.jsonl");
    let replay = config(&format!("{base} --trace {sample} --time-scale 60 --trace-limit 5"));
    assert_eq!(replay.load, Load::Replay { speed: 60.0 });
    assert!(matches!(replay.prompts, Prompts::Trace { requests, .. } if requests.len() == 5));
}
