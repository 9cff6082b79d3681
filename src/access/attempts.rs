//! Failed attempts, counted by address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::net::network_of;

/// Failures that an address has free.
const FREE_MAX: f64 = 10.0;
/// Time until one failure is forgotten.
const FORGET: Duration = Duration::from_secs(6);
/// Addresses that are remembered; beyond them all new ones share one count.
const ADDRESSES_MAX: usize = 4096;

/// Counts failures, in bounded memory.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    addresses: HashMap<IpAddr, Count>,
    others: Count,
}

#[derive(Debug, Clone, Copy)]
struct Count {
    failures: f64,
    at: Instant,
}

impl Default for Count {
    fn default() -> Self {
        Self { failures: 0.0, at: Instant::now() }
    }
}

impl Count {
    fn forget(&mut self, now: Instant) {
        let forgotten = now.saturating_duration_since(self.at).as_secs_f64() / FORGET.as_secs_f64();
        self.failures = (self.failures - forgotten).max(0.0);
        self.at = now;
    }
}

impl Attempts {
    /// How long the address must wait before a guess of its is looked at; `None` if it need not.
    pub(super) fn wait_of(&self, address: IpAddr, now: Instant) -> Option<Duration> {
        let mut counts = self.lock();
        let counts = &mut *counts;
        // An address that is not known yet has failed never, or among the others.
        let is_full = counts.addresses.len() >= ADDRESSES_MAX;
        let count = match counts.addresses.get_mut(&network_of(address)) {
            Some(count) => count,
            None if is_full => &mut counts.others,
            None => return None,
        };
        count.forget(now);
        let over = count.failures - FREE_MAX;
        // At exactly the bound the next failure is one too many.
        (over > -1.0).then(|| FORGET.mul_f64((over + 1.0).clamp(0.01, FREE_MAX)))
    }

    /// Counts a failure; whether it is one that should be logged. What comes in floods is not.
    pub(super) fn failed(&self, address: IpAddr, now: Instant) -> bool {
        let mut counts = self.lock();
        let counts = &mut *counts;
        let key = network_of(address);
        if counts.addresses.len() >= ADDRESSES_MAX && !counts.addresses.contains_key(&key) {
            counts.addresses.retain(|_, count| {
                count.forget(now);
                count.failures > 0.0
            });
        }
        let is_full = counts.addresses.len() >= ADDRESSES_MAX && !counts.addresses.contains_key(&key);
        let count = if is_full { &mut counts.others } else { counts.addresses.entry(key).or_default() };
        count.forget(now);
        let is_new = count.failures <= FREE_MAX - 1.0;
        if is_new {
            count.failures += 1.0;
        }
        is_new
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    fn address(number: u32) -> IpAddr {
        std::net::Ipv4Addr::from(number).into()
    }

    #[test]
    fn an_address_has_ten_failures_and_one_more_every_six_seconds() {
        let (attempts, start) = (Attempts::default(), Instant::now());
        for _ in 0..10 {
            assert_eq!(attempts.wait_of(address(1), start), None);
            assert!(attempts.failed(address(1), start));
        }
        let wait = attempts.wait_of(address(1), start).unwrap();
        assert!(wait > Duration::ZERO && wait <= FORGET, "{wait:?}");
        assert!(!attempts.failed(address(1), start), "a flood is not logged");
        assert_eq!(attempts.wait_of(address(2), start), None, "another address is free");
        let later = start + FORGET + Duration::from_millis(10);
        assert_eq!(attempts.wait_of(address(1), later), None);
        assert!(attempts.failed(address(1), later));
        assert!(attempts.wait_of(address(1), later).is_some());
    }

    #[test]
    fn memory_is_bounded_and_the_rest_share_a_count() {
        let (attempts, start) = (Attempts::default(), Instant::now());
        for number in 0..3 * ADDRESSES_MAX as u32 {
            attempts.failed(address(number), start);
        }
        assert_eq!(attempts.lock().addresses.len(), ADDRESSES_MAX);
        assert!(attempts.wait_of(address(u32::MAX), start).is_some(), "unknown ones failed too often together");
        assert_eq!(attempts.wait_of(address(0), start), None, "known ones have their own");
        let later = start + FORGET * 20;
        attempts.failed(address(u32::MAX), later);
        assert_eq!(attempts.lock().addresses.len(), 1);
    }

    #[test]
    fn a_network_of_version_6_is_one_address() {
        let (attempts, start) = (Attempts::default(), Instant::now());
        for number in 0..10u16 {
            attempts.failed(Ipv6Addr::new(0x2001, 0xdb8, 0, 1, 0, 0, 0, number).into(), start);
        }
        assert!(attempts.wait_of("2001:db8:0:1:ffff::1".parse().unwrap(), start).is_some());
        assert_eq!(attempts.wait_of("2001:db8:0:2::1".parse().unwrap(), start), None);
    }
}
