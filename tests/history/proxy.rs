//! Stands between clients and the server, and cuts, delays, and delivers half a frame.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use crate::random::Random;

/// Listens for clients for as long as it is kept.
#[derive(Debug)]
pub struct Proxy {
    pub address: String,
    wires: Arc<Mutex<Vec<Arc<Wire>>>>,
    ending: CancellationToken,
}

/// A connection that goes through.
#[derive(Debug)]
struct Wire {
    cut: CancellationToken,
    /// To the server, and to the client.
    ways: [Way; 2],
}

/// One direction of it.
#[derive(Debug)]
struct Way {
    delay_ms: AtomicU64,
    /// Bytes before the cut.
    left: AtomicI64,
}

impl Proxy {
    pub async fn start(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (wires, ending) = (Arc::new(Mutex::new(Vec::new())), CancellationToken::new());
        tokio::spawn(accept(listener, server, Arc::clone(&wires), ending.clone()));
        Self { address, wires, ending }
    }

    /// Does something to one connection or to all.
    pub fn harm(&self, random: &mut Random) {
        let mut wires = self.wires.lock().unwrap();
        wires.retain(|wire| !wire.cut.is_cancelled());
        if random.chance(1, 6) {
            wires.iter().for_each(|wire| wire.cut.cancel());
            return;
        }
        for _ in 0..1 + random.below(3) {
            let Some(wire) = wires.get(random.index(wires.len())) else { return };
            let way = &wire.ways[random.index(2)];
            match random.below(3) {
                0 => wire.cut.cancel(),
                1 => way.left.store(random.below(600) as i64, Ordering::Relaxed),
                _ => way.delay_ms.store(random.below(300), Ordering::Relaxed),
            }
        }
    }

    /// Lets everything through at once from here on. A connection that waits for its last bytes is cut.
    pub fn heal(&self) {
        for wire in self.wires.lock().unwrap().drain(..) {
            if wire.ways.iter().any(|way| way.left.load(Ordering::Relaxed) < i64::MAX / 2) {
                wire.cut.cancel();
            }
            wire.ways.iter().for_each(|way| way.delay_ms.store(0, Ordering::Relaxed));
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.ending.cancel();
    }
}

async fn accept(listener: TcpListener, server: String, wires: Arc<Mutex<Vec<Arc<Wire>>>>, ending: CancellationToken) {
    loop {
        let client = tokio::select! {
            () = ending.cancelled() => return,
            accepted = listener.accept() => accepted.unwrap().0,
        };
        // A server that is not there closes the connection, as it would without a proxy.
        let Ok(upstream) = TcpStream::connect(&server).await else { continue };
        let way = || Way { delay_ms: AtomicU64::new(0), left: AtomicI64::new(i64::MAX) };
        let wire = Arc::new(Wire { cut: ending.child_token(), ways: [way(), way()] });
        wires.lock().unwrap().push(Arc::clone(&wire));
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = upstream.into_split();
        tokio::spawn(carry(Arc::clone(&wire), 0, from_client, to_server));
        tokio::spawn(carry(wire, 1, from_server, to_client));
    }
}

/// Carries bytes until either end is done or the wire is cut.
async fn carry(wire: Arc<Wire>, way: usize, from: OwnedReadHalf, to: OwnedWriteHalf) {
    tokio::select! {
        () = wire.cut.cancelled() => {}
        () = copy(&wire.ways[way], from, to) => wire.cut.cancel(),
    }
}

async fn copy(way: &Way, mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let mut bytes = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        let delay_ms = way.delay_ms.load(Ordering::Relaxed);
        if delay_ms > 0 {
            tokio::time::sleep(Duration::from_millis(delay_ms)).await;
        }
        let left = way.left.fetch_sub(count as i64, Ordering::Relaxed).max(0);
        let goes = count.min(usize::try_from(left).unwrap_or(count));
        if to.write_all(&bytes[..goes]).await.is_err() || goes < count {
            return;
        }
    }
}
