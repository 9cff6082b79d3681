//! Room for requests in flight, in bytes. A connection that finds none waits, and meanwhile is not read: its client feels it as
//! back-pressure, and the server's memory stays flat.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::model::{Error, ErrorCode, Result};

use super::ServerOptions;

/// Frames over this size get their room before they are received, so that half frames cannot fill the memory. Smaller ones are
/// bounded by the number of connections.
pub(super) const LARGE_FRAME_BYTES: usize = 64 << 10;
/// What a request takes beside the bytes of its frame: decoded values, bookkeeping, the reply.
pub(super) const REQUEST_OVERHEAD_BYTES: usize = 4 << 10;

/// Room of the whole server. Large frames have their own: whoever claims them and sends slowly holds up nobody but the like.
#[derive(Debug)]
pub(super) struct ServerBudget {
    small: Pool,
    large: Pool,
}

/// Room of one connection.
#[derive(Debug)]
pub(super) struct ConnectionBudget {
    pool: Pool,
}

/// Room that a request holds until it is answered.
#[derive(Debug)]
pub(super) struct Room {
    _connection: OwnedSemaphorePermit,
    _server: OwnedSemaphorePermit,
}

/// A place among those that wait, of the connection and of the server.
#[derive(Debug)]
pub(super) struct WaitSlot {
    _connection: OwnedSemaphorePermit,
    _server: OwnedSemaphorePermit,
}

impl WaitSlot {
    /// A place, if both have one left.
    pub(super) fn take(connection: &Arc<Semaphore>, server: &Arc<Semaphore>) -> Result<Self> {
        let busy = |whose: &str| Error::new(ErrorCode::Busy, format!("{whose} has too many waiting requests"));
        Ok(Self {
            _connection: connection.clone().try_acquire_owned().map_err(|_| busy("connection"))?,
            _server: server.clone().try_acquire_owned().map_err(|_| busy("server"))?,
        })
    }
}

/// Bytes to share. A claim for more than there are takes all of them, so that it can be met.
#[derive(Debug)]
struct Pool {
    semaphore: Arc<Semaphore>,
    bytes: u32,
}

impl ServerBudget {
    pub(super) fn new(options: &ServerOptions) -> Self {
        let small = options.in_flight_bytes_max / 4;
        Self { small: Pool::new(small), large: Pool::new(options.in_flight_bytes_max - small) }
    }

    fn pool(&self, frame_bytes: usize) -> &Pool {
        if frame_bytes > LARGE_FRAME_BYTES { &self.large } else { &self.small }
    }
}

impl ConnectionBudget {
    pub(super) fn new(options: &ServerOptions) -> Self {
        Self { pool: Pool::new(options.connection_in_flight_bytes_max) }
    }

    /// Requests that can be in flight at most.
    pub(super) fn requests_max(options: &ServerOptions) -> u32 {
        u32::try_from(options.connection_in_flight_bytes_max / REQUEST_OVERHEAD_BYTES).unwrap_or(u32::MAX).max(1)
    }

    /// Room for a frame of this length, if there is some at once.
    pub(super) fn try_claim(&self, server: &ServerBudget, frame_bytes: usize) -> Option<Room> {
        let cost = frame_bytes + REQUEST_OVERHEAD_BYTES;
        Some(Room { _connection: self.pool.try_take(cost)?, _server: server.pool(frame_bytes).try_take(cost)? })
    }

    /// Waits for room for a frame of this length.
    pub(super) async fn claim(&self, server: &ServerBudget, frame_bytes: usize) -> Option<Room> {
        let cost = frame_bytes + REQUEST_OVERHEAD_BYTES;
        Some(Room { _connection: self.pool.take(cost).await?, _server: server.pool(frame_bytes).take(cost).await? })
    }

    /// Waits until no request of this connection is in flight.
    pub(super) async fn idle(&self) {
        drop(self.pool.take(usize::MAX).await);
    }
}

impl Pool {
    fn new(bytes: usize) -> Self {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX).max(1);
        Self { semaphore: Arc::new(Semaphore::new(bytes as usize)), bytes }
    }

    fn share(&self, cost: usize) -> u32 {
        u32::try_from(cost).unwrap_or(u32::MAX).min(self.bytes)
    }

    fn try_take(&self, cost: usize) -> Option<OwnedSemaphorePermit> {
        self.semaphore.clone().try_acquire_many_owned(self.share(cost)).ok()
    }

    /// `None` never happens: the semaphore is not closed.
    async fn take(&self, cost: usize) -> Option<OwnedSemaphorePermit> {
        self.semaphore.clone().acquire_many_owned(self.share(cost)).await.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(server: usize, connection: usize) -> ServerOptions {
        ServerOptions { in_flight_bytes_max: server, connection_in_flight_bytes_max: connection, ..ServerOptions::default() }
    }

    #[tokio::test]
    async fn a_connection_waits_for_its_own_room_and_is_idle_when_all_is_back() {
        let options = options(1 << 20, 3 * REQUEST_OVERHEAD_BYTES);
        let (server, connection) = (ServerBudget::new(&options), ConnectionBudget::new(&options));
        let rooms: Vec<Room> = (0..3).map(|_| connection.try_claim(&server, 0).unwrap()).collect();
        assert!(connection.try_claim(&server, 0).is_none());
        assert!(ConnectionBudget::new(&options).try_claim(&server, 0).is_some(), "another connection has its own");
        drop(rooms);
        connection.idle().await;
        assert!(connection.try_claim(&server, 0).is_some());
        assert_eq!(ConnectionBudget::requests_max(&options), 3);
    }

    #[tokio::test]
    async fn a_frame_over_the_bound_takes_all_of_it_and_large_frames_leave_room_for_small_ones() {
        let options = options(1 << 20, 1 << 20);
        let (server, connection) = (ServerBudget::new(&options), ConnectionBudget::new(&options));
        let room = connection.claim(&server, 8 << 20).await.unwrap();
        let other = ConnectionBudget::new(&options);
        assert!(other.try_claim(&server, LARGE_FRAME_BYTES + 1).is_none());
        assert!(other.try_claim(&server, LARGE_FRAME_BYTES).is_some());
        drop(room);
        assert!(other.try_claim(&server, 8 << 20).is_some());
    }
}
