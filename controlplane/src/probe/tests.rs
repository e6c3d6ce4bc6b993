use super::{Finding, Prober, probe, status_of};
use crate::fixture::{config, plane};
use crate::metrics::OwnStats;
use llmgw_dataplane::shared::Shared;
use llmgw_routing::load::Health;
use rstest::rstest;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};

/// An engine that answers every connection with `answer`, and remembers what it was asked.
async fn engine(answer: &'static str) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                if stream.read_buf(&mut request).await.unwrap() == 0 {
                    break;
                }
            }
            log.lock().unwrap().push(String::from_utf8(request).unwrap());
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (address, asked)
}

fn fleet(address: SocketAddr, rest: &str) -> Arc<Shared<()>> {
    plane(&config(&format!("endpoints: [{{ id: a, model: m, url: 'http://{address}{rest} }}]")), true)
}

fn prober(plane: &Arc<Shared<()>>) -> (Prober, Arc<OwnStats>) {
    let own = Arc::new(OwnStats::default());
    (Prober::new(Arc::<Shared<()>>::clone(plane), Arc::clone(&own), || 0), own)
}

fn health(plane: &Shared<()>) -> Health {
    plane.loads.health(plane.snapshot.load().endpoints[0].slot.index(), 0)
}

/// An address where nobody listens.
async fn nowhere() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

#[rstest]
#[case("HTTP/1.1 200 OK\r\n\r\n", Finding::Up)]
#[case("HTTP/1.0 404 Not Found\r\n\r\n", Finding::Up)]
#[case("HTTP/1.1 503 Service Unavailable\r\n\r\n", Finding::Unwell)]
#[case("", Finding::Unwell)]
#[case("SSH-2.0-x\r\n", Finding::Unwell)]
#[tokio::test]
async fn an_answer_tells_how_the_engine_is(#[case] answer: &'static str, #[case] expected: Finding) {
    let (address, _) = engine(answer).await;
    let plane = fleet(address, "'");
    assert_eq!(probe(&plane.snapshot.load().endpoints[0]).await, expected);
}

#[rstest]
#[case("', engine: vllm", "GET /health HTTP/1.1\r\n")]
#[case("/team', engine: sim", "GET /team/health HTTP/1.1\r\n")]
#[case("', engine: openai", "GET /v1/models HTTP/1.1\r\n")]
#[tokio::test]
async fn the_page_depends_on_the_engine(#[case] rest: &str, #[case] line: &str) {
    let (address, asked) = engine("HTTP/1.1 200 OK\r\n\r\n").await;
    probe(&fleet(address, rest).snapshot.load().endpoints[0]).await;
    let asked = asked.lock().unwrap();
    assert!(
        asked[0].starts_with(line) && asked[0].contains(&format!("\r\nhost: {address}\r\n")),
        "{asked:?}"
    );
}

#[tokio::test]
async fn a_failed_endpoint_that_answers_is_back() {
    let (address, _) = engine("HTTP/1.1 200 OK\r\n\r\n").await;
    let plane = fleet(address, "'");
    let (mut prober, own) = prober(&plane);
    let slot = plane.snapshot.load().endpoints[0].slot.index();
    prober.pass().await;
    plane.loads.mark_failed(slot, 1000);
    prober.pass().await;
    assert_eq!(health(&plane), Health::Ready);
    prober.pass().await;
    assert_eq!(own.probes[Finding::Up as usize].load(Ordering::Relaxed), 2, "a healthy one is left alone");
}

#[tokio::test]
async fn an_endpoint_that_was_never_up_is_marked_and_probed_until_it_is() {
    let address = nowhere().await;
    let plane = fleet(address, "'");
    let (mut prober, own) = prober(&plane);
    prober.pass().await;
    let cooldown = plane.snapshot.load().settings.cooldown;
    assert_eq!(health(&plane), Health::Failed { until: cooldown });
    prober.pass().await;
    assert_eq!(own.probes[Finding::Unreachable as usize].load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn a_bad_health_page_does_not_prolong_a_cooldown() {
    let (address, _) = engine("HTTP/1.1 500 x\r\n\r\n").await;
    let plane = fleet(address, "'");
    let slot = plane.snapshot.load().endpoints[0].slot.index();
    plane.loads.mark_failed(slot, 7);
    prober(&plane).0.pass().await;
    assert_eq!(health(&plane), Health::Failed { until: 7 });
}

#[tokio::test]
async fn a_busy_mark_stays() {
    let (address, _) = engine("HTTP/1.1 200 OK\r\n\r\n").await;
    let plane = fleet(address, "'");
    plane.loads.mark_busy(plane.snapshot.load().endpoints[0].slot.index(), 7, 0);
    prober(&plane).0.pass().await;
    assert_eq!(health(&plane), Health::Busy { until: 7 });
}

#[tokio::test]
async fn the_task_probes_at_once_and_ends_when_told() {
    let (address, asked) = engine("HTTP/1.1 200 OK\r\n\r\n").await;
    let plane = fleet(address, "'");
    let (prober, own) = prober(&plane);
    let (stop, stopped) = watch::channel(false);
    let task = tokio::spawn(prober.run(Arc::new(Notify::new()), stopped));
    while own.probes[Finding::Up as usize].load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(asked.lock().unwrap().len(), 1);
    stop.send(true).unwrap();
    task.await.unwrap();
}

#[rstest]
#[case(b"HTTP/1.1 200 OK\r\n", Some(200))]
#[case(b"HTTP/1.1 200", Some(200))]
#[case(b"HTTP/1.1 2000\r\n", None)]
#[case(b"HTTP/1.1 099 x\r\n", None)]
#[case(b"HTTP/2 200\r\n", None)]
#[case(b"", None)]
fn status_lines(#[case] answer: &[u8], #[case] status: Option<u16>) {
    assert_eq!(status_of(answer), status);
}
