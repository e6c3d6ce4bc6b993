use super::*;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

struct Accepting {
    address: SocketAddr,
    accepted: mpsc::Receiver<io::Result<Conn>>,
    own: Arc<OwnStats>,
    _stop: watch::Sender<bool>,
}

impl Accepting {
    async fn start(most: usize) -> Accepting {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (into, accepted) = mpsc::channel(4);
        let (stop, stopped) = watch::channel(false);
        let own = Arc::<OwnStats>::default();
        tokio::spawn(accept(listener, most, into, Arc::clone(&own), stopped));
        Accepting { address, accepted, own, _stop: stop }
    }

    async fn connect(&mut self) -> (TcpStream, Conn) {
        let peer = TcpStream::connect(self.address).await.unwrap();
        (peer, self.accepted.recv().await.unwrap().unwrap())
    }
}

#[tokio::test]
async fn one_connection_too_many_is_closed_at_once() {
    let mut accepting = Accepting::start(1).await;
    let first = accepting.connect().await;
    let mut second = TcpStream::connect(accepting.address).await.unwrap();
    assert_eq!(second.read(&mut [0]).await.unwrap(), 0);
    let counts = |own: &OwnStats| {
        (own.registry_refused.load(Ordering::Relaxed), own.registry_connections.load(Ordering::Relaxed))
    };
    assert_eq!(counts(&accepting.own), (1, 1));
    drop(first);
    let _third = accepting.connect().await;
    assert_eq!(counts(&accepting.own), (1, 1), "its place was free again");
}

#[tokio::test(start_paused = true)]
async fn a_silent_connection_ends_after_a_minute() {
    let mut accepting = Accepting::start(4).await;
    let (mut peer, mut conn) = accepting.connect().await;
    let begun = Instant::now();
    tokio::time::advance(Duration::from_secs(59)).await;
    peer.write_all(b"x").await.unwrap();
    assert_eq!(conn.read(&mut [0]).await.unwrap(), 1);
    let error = conn.read(&mut [0]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    let ended = begun.elapsed();
    assert!((119..=120).contains(&ended.as_secs()), "a minute after its last byte, not {ended:?}");
}
