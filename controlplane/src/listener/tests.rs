use super::{LIMITS, Limits, serve};
use axum::Router;
use axum::routing::get;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

async fn start(limits: Limits) -> (SocketAddr, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = watch::channel(false);
    let router = Router::new().route("/", get(|| async { "here" }));
    tokio::spawn(serve(listener, router, limits, stopped));
    (address, stop)
}

async fn answer(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn a_head_that_does_not_come_ends_the_connection() {
    let (address, _stop) = start(Limits { header: Duration::from_millis(50), ..LIMITS }).await;
    for sent in ["", "GET / HTTP/1.1\r\nhost: x\r\n"] {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        assert_eq!(answer(&mut stream).await, "", "after {sent:?}");
    }
    // So does one that comes late after an answer.
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert!(answer(&mut stream).await.ends_with("here"));
}

#[tokio::test]
async fn connections_beyond_the_bound_wait_for_a_place() {
    let (address, _stop) = start(Limits { connections: 1, ..LIMITS }).await;
    let mut first = TcpStream::connect(address).await.unwrap();
    first.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let mut head = [0; 12];
    first.read_exact(&mut head).await.unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    let mut second = TcpStream::connect(address).await.unwrap();
    second.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    let waits = tokio::time::timeout(Duration::from_millis(50), second.read(&mut head)).await;
    assert!(waits.is_err(), "it was answered beside the first");
    drop(first);
    assert!(answer(&mut second).await.ends_with("here"));
}

#[tokio::test]
async fn a_connection_grows_only_so_old() {
    let (address, _stop) = start(Limits { lifetime: Duration::from_millis(50), ..LIMITS }).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert!(answer(&mut stream).await.ends_with("here"), "closed well before its header timeout");
}

#[tokio::test]
async fn heads_are_bounded() {
    let (address, _stop) = start(LIMITS).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!("GET / HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "y".repeat(1_000_000));
    // It may be cut while it is sent.
    let _ = stream.write_all(head.as_bytes()).await;
    let mut text = Vec::new();
    let _ = stream.read_to_end(&mut text).await;
    assert!(text.is_empty() || text.starts_with(b"HTTP/1.1 431 "), "{}", String::from_utf8_lossy(&text));
}
