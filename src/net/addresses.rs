//! Connections, counted by where they come from.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Counts connections by address, up to a bound for each. Remembers nobody who has none.
#[derive(Debug)]
pub struct Addresses {
    counts: Arc<Mutex<HashMap<IpAddr, usize>>>,
    each_max: usize,
}

/// A connection that is counted; until it is dropped.
#[derive(Debug)]
pub struct Place {
    counts: Arc<Mutex<HashMap<IpAddr, usize>>>,
    network: IpAddr,
}

impl Addresses {
    /// So many connections of each address at most.
    pub fn new(each_max: usize) -> Self {
        Self { counts: Arc::default(), each_max }
    }

    /// Counts one more of this address; `None` if it has as many as it may.
    pub fn enter(&self, address: IpAddr) -> Option<Place> {
        let network = network_of(address);
        let mut counts = lock(&self.counts);
        let count = counts.entry(network).or_default();
        if *count >= self.each_max {
            return None;
        }
        *count += 1;
        Some(Place { counts: self.counts.clone(), network })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = lock(&self.counts);
        if let Some(count) = counts.get_mut(&self.network) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.network);
            }
        }
    }
}

/// What stands for an address where one is counted: whoever has one of IPv6 has a whole network of them.
pub fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        address => address,
    }
}

fn lock(counts: &Mutex<HashMap<IpAddr, usize>>) -> MutexGuard<'_, HashMap<IpAddr, usize>> {
    // Counts are whole or not there: a panic elsewhere leaves nothing half done.
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_its_bound_and_places_come_back() {
        let addresses = Addresses::new(2);
        let [first, second] = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse().unwrap());
        let one = addresses.enter(first).unwrap();
        let two = addresses.enter(first).unwrap();
        assert!(addresses.enter(first).is_none());
        let other = addresses.enter(second).unwrap();
        drop(one);
        let again = addresses.enter(first).unwrap();
        assert!(addresses.enter("::ffff:10.0.0.1".parse().unwrap()).is_none(), "it is the same address");
        drop((two, again, other));
        assert!(lock(&addresses.counts).is_empty());
        assert!(Addresses::new(0).enter(first).is_none());
    }

    #[test]
    fn a_network_of_version_6_is_one_address() {
        let addresses = Addresses::new(1);
        let _one = addresses.enter("2001:db8:0:1::1".parse().unwrap()).unwrap();
        assert!(addresses.enter("2001:db8:0:1:ffff::2".parse().unwrap()).is_none());
        assert!(addresses.enter("2001:db8:0:2::1".parse().unwrap()).is_some());
        assert_eq!(network_of("::ffff:10.0.0.1".parse().unwrap()), "10.0.0.1".parse::<IpAddr>().unwrap());
    }
}
