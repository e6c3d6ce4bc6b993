use super::{AccessLog, Format, access_line, access_on};
use crate::config::{Level, Log, LogFormat};
use crate::fixture::{config, plane};
use crate::metrics::OwnStats;
use llmgw_dataplane::record::{Outcome, Record, RequestId, Surface};
use llmgw_dataplane::shared::record_ring;
use llmgw_routing::scan::{FinishReason, Usage};
use rstest::rstest;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

fn record() -> Record {
    let plane = plane(&config("endpoints: [{ id: e1, model: 'my model', url: 'http://10.0.0.1:1' }]"), true);
    let snapshot = plane.snapshot.load_full();
    Record {
        request_id: RequestId::from_client(b"r=\"1").unwrap(),
        traceparent: None,
        started_wall_ns: 1_700_000_000_123_456_789,
        peer: Ipv4Addr::LOCALHOST.into(),
        surface: Surface::Chat,
        model: snapshot.models.get("my model").map(|model| std::sync::Arc::clone(&model.name)),
        endpoint: snapshot.endpoints.first().cloned(),
        reason: Some("affinity".into()),
        status: 200,
        outcome: Outcome::Completed,
        stream: true,
        attempts: 1,
        bytes_in: 10,
        bytes_out: 20,
        usage: Some(Usage { prompt_tokens: 5, completion_tokens: 7, cached_tokens: Some(2) }),
        events: 9,
        finish_reason: Some(FinishReason::Stop),
        ttft: Some(1_500_000),
        duration: 2_000_001_000,
        detail: None,
    }
}

/// A request that ended before it named a model.
fn bare() -> Record {
    Record {
        request_id: RequestId::from_client(b"r2").unwrap(),
        model: None,
        endpoint: None,
        reason: None,
        status: 404,
        outcome: Outcome::Rejected,
        stream: false,
        attempts: 0,
        usage: None,
        events: 0,
        finish_reason: None,
        ttft: None,
        detail: Some("unknown path"),
        ..record()
    }
}

#[test]
fn peers_are_named_in_both_families() {
    for peer in ["0.0.0.0", "255.255.255.255", "10.0.200.7", "::1", "2001:db8::a:1"] {
        let record = Record { peer: peer.parse().unwrap(), ..bare() };
        assert!(line(&record, Format::Text).contains(&format!(" peer={peer} ")), "{peer}");
    }
}

fn line(record: &Record, format: Format) -> String {
    let mut out = String::new();
    access_line(record, format, &mut out);
    out
}

#[test]
fn text_lines_quote_what_is_no_plain_word() {
    assert_eq!(
        line(&record(), Format::Text),
        "2023-11-14T22:13:20.123Z  INFO access: request_id=\"r=\\\"1\" surface=chat model=\"my model\" endpoint=e1 \
         pool=default reason=affinity status=200 outcome=completed stream=true attempts=1 duration_ms=2000.001 \
         ttft_ms=1.500 prompt_tokens=5 completion_tokens=7 cached_tokens=2 events=9 finish_reason=stop bytes_in=10 \
         bytes_out=20 peer=127.0.0.1\n"
    );
    assert_eq!(
        line(&bare(), Format::Text),
        "2023-11-14T22:13:20.123Z  INFO access: request_id=r2 surface=chat status=404 outcome=rejected stream=false \
         attempts=0 duration_ms=2000.001 bytes_in=10 bytes_out=20 peer=127.0.0.1 detail=\"unknown path\"\n"
    );
}

#[test]
fn times_are_those_of_the_calendar() {
    let days = (0..200_000u64)
        .step_by(13)
        .map(|day| day * 86_400_000_000_000 + day * 7_919_000_123 % 86_400_000_000_000);
    // Leap days, the ends of years and centuries, and the last moment of a clock of 64 bits.
    let named =
        [951_782_400, 951_868_799, 4_107_542_399, 1_709_164_800, 1_735_689_599].map(|s| s * 1_000_000_000);
    for ns in days.chain(named).chain([0, 999_999, u64::MAX]) {
        let mut text = String::new();
        super::access::put_time(&mut text, ns);
        let expected = jiff::Timestamp::from_nanosecond(i128::from(ns)).unwrap();
        assert_eq!(text, format!("{expected:.3}"), "{ns}");
    }
}

#[test]
fn json_lines_are_objects_of_the_same_keys() {
    let json: serde_json::Value = serde_json::from_str(&line(&record(), Format::Json)).unwrap();
    assert_eq!(json["timestamp"], "2023-11-14T22:13:20.123Z");
    assert_eq!((&json["request_id"], &json["model"]), (&"r=\"1".into(), &"my model".into()));
    assert_eq!(
        (&json["status"], &json["stream"], &json["ttft_ms"]),
        (&200.into(), &true.into(), &1.5.into())
    );
    assert_eq!(json["cached_tokens"], 2);
    let json: serde_json::Value = serde_json::from_str(&line(&bare(), Format::Json)).unwrap();
    assert!(json.get("model").is_none() && json.get("ttft_ms").is_none(), "{json}");
}

#[rstest]
#[case(true, Level::Info, true)]
#[case(true, Level::Debug, true)]
#[case(true, Level::Warn, false)]
#[case(false, Level::Info, false)]
fn access_lines_are_of_level_info(#[case] access: bool, #[case] level: Level, #[case] on: bool) {
    assert_eq!(access_on(&Log { level, format: LogFormat::Text, access }), on);
}

static WRITTEN: Mutex<Vec<u8>> = Mutex::new(Vec::new());

#[tokio::test(start_paused = true)]
async fn rings_are_drained_to_the_last_record() {
    let (mut one, one_end) = record_ring();
    let (mut two, two_end) = record_ring();
    let own = Arc::new(OwnStats::default());
    let mut log = AccessLog::new(
        vec![one_end, two_end],
        LogFormat::Json,
        Arc::new(AtomicBool::new(true)),
        Arc::clone(&own),
    );
    log.write = |batch| {
        WRITTEN.lock().unwrap().extend_from_slice(batch);
        Ok(())
    };
    for _ in 0..500 {
        one.push(record()).unwrap();
    }
    two.push(bare()).unwrap();
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(log.run(stopped));
    while !(one.slots() == 8192 && two.slots() == 8192) {
        tokio::task::yield_now().await;
    }
    two.push(bare()).unwrap();
    stop.send(true).unwrap();
    task.await.unwrap();
    let text = String::from_utf8(WRITTEN.lock().unwrap().clone()).unwrap();
    assert_eq!(text.lines().count(), 502);
    assert_eq!(own.access_lines_lost.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn lines_that_cannot_be_written_are_counted() {
    let (mut ring, end) = record_ring();
    let own = Arc::new(OwnStats::default());
    let mut log =
        AccessLog::new(vec![end], LogFormat::Text, Arc::new(AtomicBool::new(true)), Arc::clone(&own));
    log.write = |_| Err(std::io::ErrorKind::BrokenPipe.into());
    ring.push(record()).unwrap();
    let (stop, stopped) = watch::channel(false);
    stop.send(true).unwrap();
    log.run(stopped).await;
    assert_eq!(own.access_lines_lost.load(Ordering::Relaxed), 1);
}

#[test]
fn records_are_taken_even_when_nothing_is_written() {
    let (mut ring, end) = record_ring();
    let mut log =
        AccessLog::new(vec![end], LogFormat::Text, Arc::new(AtomicBool::new(false)), Arc::default());
    ring.push(record()).unwrap();
    assert!(log.take().is_none());
    assert_eq!(ring.slots(), 8192);
}
