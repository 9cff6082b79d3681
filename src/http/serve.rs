//! Accepting connections, and ending them.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::{SendFlags, send};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy, sink};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::engine::Engine;
use crate::net::Addresses;
use crate::tls::Refused;

use super::auth::{Doors, Entrance};
use super::{Gateway, HttpOptions, series, until_draining};

/// A request's head must be there so long after the connection opened or the last answer left; a little more than clients keep
/// idle connections in their pools.
const HEAD_TIMEOUT: Duration = Duration::from_secs(120);

/// A connection whose requests were from nobody known is ended after so long.
const STRANGER_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a request's head at most: whoever sends it need not have proved who they are. Bodies are read in pieces of at most so many.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// The answer to who has too many connections.
const TOO_MANY: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\ncontent-type: text/plain\r\nretry-after: 1\r\nconnection: close\r\n\
    content-length: 39\r\n\r\ntoo many connections from this address\n";

/// Time for the handshake of TLS.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The answer to plain HTTP where TLS is spoken.
const NOT_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\ncontent-length: 39\r\n\r\n\
    this port speaks TLS: connect to https\n";

/// Time for the answer that such a connection waits for.
const LAST_ANSWER: Duration = Duration::from_secs(1);

/// Pause after an accept that failed (out of file descriptors), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves HTTP until `shutdown` is ready: then nothing more is accepted, waiting pops are answered, requests under way have
/// [`HttpOptions::drain`] to finish, and what is left is cut off.
pub async fn serve(listener: TcpListener, engine: Engine, options: HttpOptions, shutdown: impl Future<Output = ()> + Send) {
    let drain = options.drain;
    let connections = Arc::new(Semaphore::new(options.connections_max));
    let addresses = Addresses::new(options.connections_per_address_max);
    let gateway = Gateway::new(engine, options, listener.local_addr().ok());
    let doors = Doors::new(gateway.clone());
    let sampler = tokio::spawn(series::sample(gateway.clone()));
    let mut sessions = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = accept(&listener, &connections) => accepted,
            // Finished sessions are taken away so that the set does not grow.
            Some(_) = sessions.join_next() => continue,
        };
        match accepted {
            Ok((stream, peer, permit)) => {
                let Some(place) = addresses.enter(peer.ip()) else {
                    tracing::debug!(%peer, "a connection is turned away: too many from this address");
                    turn_away(&stream, &gateway.options);
                    continue;
                };
                let entrance = Entrance::new(doors.clone(), peer.ip());
                let session = session(stream, entrance, gateway.clone(), gateway.draining.subscribe());
                sessions.spawn(async move {
                    session.await;
                    drop((permit, place));
                });
            }
            Err(error) => {
                tracing::warn!("a connection is not accepted: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    // Before anybody is turned away: who is still there hears why.
    gateway.draining.send_replace(true);
    drop(listener);
    sampler.abort();
    let finished = tokio::time::timeout(drain, async { while sessions.join_next().await.is_some() {} }).await;
    if finished.is_err() {
        tracing::warn!(connections = sessions.len(), "requests did not finish in time and are cut off");
        sessions.shutdown().await;
    }
}

async fn accept(
    listener: &TcpListener,
    connections: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
    // The permit comes first: a connection over the limit waits in the listener's backlog and costs nothing here.
    let permit = connections.clone().acquire_owned().await.map_err(std::io::Error::other)?;
    let (stream, peer) = listener.accept().await?;
    Ok((stream, peer, permit))
}

/// Tells a client that it gets no connection, without waiting for it. Who speaks TLS would not understand it.
fn turn_away(stream: &TcpStream, options: &HttpOptions) {
    if options.tls.is_none() {
        // A fresh connection takes so few bytes at once; if not, the client learns less.
        let _ = send(stream, TOO_MANY, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
}

async fn session(stream: TcpStream, entrance: Entrance, gateway: Arc<Gateway>, draining: watch::Receiver<bool>) {
    let _counted = gateway.metrics.connection();
    let send_timeout_ms = u32::try_from(gateway.options.send_timeout.as_millis()).unwrap_or(u32::MAX);
    let options = stream
        .set_nodelay(true)
        .and_then(|()| rustix::net::sockopt::set_tcp_user_timeout(&stream, send_timeout_ms).map_err(std::io::Error::from));
    if let Err(error) = options {
        tracing::debug!("socket options are not set: {error}");
    }
    let Some(tls) = gateway.options.tls.clone() else { return talk(stream, entrance, &gateway, draining).await };
    match tls.accept(stream, HANDSHAKE_TIMEOUT).await {
        Ok(stream) => talk(stream, entrance, &gateway, draining).await,
        Err(Refused::Plain(mut stream)) => {
            let told = async {
                stream.write_all(NOT_TLS).await?;
                stream.shutdown().await?;
                // Bytes that nobody read would make the operating system take the answer back.
                copy(&mut stream, &mut sink()).await
            };
            let _ = timeout(LAST_ANSWER, told).await;
        }
        Err(error) => tracing::debug!("a connection ended: {error}"),
    }
}

/// Answers requests until the connection ends.
async fn talk(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    entrance: Entrance,
    gateway: &Gateway,
    draining: watch::Receiver<bool>,
) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(HEAD_BYTES_MAX);
    let is_known = entrance.is_known();
    let stranger = async {
        sleep(STRANGER_TIMEOUT).await;
        if is_known.load(Ordering::Relaxed) || !gateway.options.access.is_required() {
            std::future::pending::<()>().await;
        }
    };
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), entrance));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stranger => {
            tracing::debug!("a connection is ended: nobody proved who they are");
            connection.as_mut().graceful_shutdown();
            timeout(LAST_ANSWER, connection).await.unwrap_or(Ok(()))
        }
        () = until_draining(draining) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!("a connection ended: {error}");
    }
}
