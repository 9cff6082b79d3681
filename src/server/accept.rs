//! Taking connections: a permit for each, over all and for each address.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::model::{Error, ErrorCode};
use crate::net::{Addresses, Place};

use super::ServerOptions;
use super::session::error_frame;

/// The longest pause after a failed accept.
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// The first pause after a failed accept.
const PAUSE_MIN: Duration = Duration::from_millis(5);

/// The part of the places before a hello that one address may have: alone it keeps nobody else out.
const HANDSHAKES_SHARE: usize = 4;

/// Counts connections.
pub(super) struct Door {
    all: Arc<Semaphore>,
    connections_max: usize,
    addresses: Addresses,
    handshakes: Arc<Semaphore>,
    strangers: Addresses,
}

/// The right to have a connection; over when dropped.
pub(super) struct Permit {
    /// A place among those whose hello is not answered.
    handshake: Option<(OwnedSemaphorePermit, Place)>,
    _all: OwnedSemaphorePermit,
    _place: Place,
    address: IpAddr,
}

impl Door {
    pub(super) fn new(options: &ServerOptions) -> Self {
        Self {
            all: Arc::new(Semaphore::new(options.connections_max)),
            connections_max: options.connections_max,
            addresses: Addresses::new(options.connections_per_address_max),
            handshakes: Arc::new(Semaphore::new(options.handshakes_max)),
            strangers: Addresses::new((options.handshakes_max / HANDSHAKES_SHARE).max(1)),
        }
    }

    /// Counts the permits that are out.
    pub(super) fn counter(&self) -> impl Fn() -> usize + Send + Sync + use<> {
        let (all, connections_max) = (self.all.clone(), self.connections_max);
        move || connections_max.saturating_sub(all.available_permits())
    }

    /// A permit, or which bound is reached.
    pub(super) fn enter(&self, address: IpAddr) -> Result<Permit, Error> {
        let busy = |text: &str| Error::new(ErrorCode::Busy, text);
        let all = self.all.clone().try_acquire_owned().map_err(|_| busy("server has too many connections"))?;
        let handshake = self.handshakes.clone().try_acquire_owned();
        let handshake = handshake.map_err(|_| busy("too many connections have not said hello"))?;
        let place = self.addresses.enter(address).ok_or_else(|| busy("too many connections from this address"))?;
        let stranger = self.strangers.enter(address);
        let stranger = stranger.ok_or_else(|| busy("too many connections from this address have not said hello"))?;
        Ok(Permit { handshake: Some((handshake, stranger)), _all: all, _place: place, address })
    }
}

impl Permit {
    /// The hello is answered: the place is free for another.
    pub(super) fn end_handshake(&mut self) {
        self.handshake = None;
    }

    /// Where the connection comes from.
    pub(super) fn address(&self) -> IpAddr {
        self.address
    }
}

/// Tells a client that it gets no connection, without waiting for it.
pub(super) fn turn_away(stream: &TcpStream, error: Error) {
    let frame = error_frame(0, 0, error).into_bytes();
    // A fresh connection takes so few bytes at once; if not, the client learns less.
    let _ = stream.try_write(&frame);
}

/// Makes a connection quick for small frames, and finds out about peers that vanished.
pub(super) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    rustix::net::sockopt::set_socket_keepalive(stream, true)?;
    rustix::net::sockopt::set_tcp_keepidle(stream, Duration::from_secs(60))?;
    rustix::net::sockopt::set_tcp_keepintvl(stream, Duration::from_secs(10))?;
    rustix::net::sockopt::set_tcp_keepcnt(stream, 6)?;
    Ok(())
}

/// How long to wait after failed accepts. No error ends the accepting: out of files, memory or buffers, it goes on when some come
/// back, and errors of the connection that was to be accepted are over with it.
#[derive(Debug, Default)]
pub(super) struct Pause {
    next: Option<Duration>,
}

impl Pause {
    pub(super) fn reset(&mut self) {
        self.next = None;
    }

    /// The pause after this error; zero if the next connection may do better.
    pub(super) fn after(&mut self, error: &io::Error) -> Duration {
        if matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted)
        {
            return Duration::ZERO;
        }
        let pause = self.next.unwrap_or(PAUSE_MIN);
        self.next = Some((pause * 2).min(PAUSE_MAX));
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permits_are_counted_over_all_and_for_each_address_and_come_back() {
        let options = ServerOptions { connections_max: 3, connections_per_address_max: 2, ..ServerOptions::default() };
        let door = Door::new(&options);
        let [first, second] = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse::<IpAddr>().unwrap());
        let one = door.enter(first).unwrap();
        let _two = door.enter(first).unwrap();
        assert_eq!(door.enter(first).err().unwrap().code, ErrorCode::Busy);
        let _three = door.enter(second).unwrap();
        assert!(door.enter(second).is_err(), "the server is full");
        assert_eq!(door.counter()(), 3);
        drop(one);
        assert_eq!(door.counter()(), 2);
        drop(door.enter(second).unwrap());
    }

    #[test]
    fn those_without_a_hello_do_not_take_the_places_of_those_with_one() {
        let door = Door::new(&ServerOptions { connections_max: 9, handshakes_max: 1, ..ServerOptions::default() });
        let address = IpAddr::from([10, 0, 0, 1]);
        let mut first = door.enter(address).unwrap();
        assert_eq!(door.enter(address).err().unwrap().code, ErrorCode::Busy);
        first.end_handshake();
        assert!(door.enter(address).is_ok());
    }

    /// One address used to have as many places before the hello as there were, and nobody else could say it.
    #[test]
    fn an_address_without_hellos_leaves_places_to_others() {
        let door = Door::new(&ServerOptions { connections_max: 99, handshakes_max: 8, ..ServerOptions::default() });
        let [first, second] = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse::<IpAddr>().unwrap());
        let mut silent: Vec<Permit> = std::iter::from_fn(|| door.enter(first).ok()).collect();
        assert_eq!(silent.len(), 2);
        assert!(door.enter(second).is_ok());
        silent[0].end_handshake();
        assert!(door.enter(first).is_ok());
    }

    #[test]
    fn pauses_grow_while_accepting_fails_and_start_anew() {
        let mut pause = Pause::default();
        let full = io::Error::from_raw_os_error(24);
        let pauses: Vec<u128> = (0..10).map(|_| pause.after(&full).as_millis()).collect();
        assert_eq!(pauses[..4], [5, 10, 20, 40]);
        assert_eq!(pauses[9], 1000);
        assert_eq!(pause.after(&io::ErrorKind::ConnectionAborted.into()), Duration::ZERO);
        pause.reset();
        assert_eq!(pause.after(&full).as_millis(), 5);
    }
}
