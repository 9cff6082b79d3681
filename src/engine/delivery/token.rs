//! Lease tokens: numbers that name one hand-out for ever.

use std::fmt;

/// Names a lease. Later tokens are greater, also over restarts: the start number grows with each start of the server and was
/// made durable before the first token of that start, the counter grows within it. So a token of a lease that is over never
/// names another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseToken {
    /// Which start of the server gave it.
    pub start_number: u64,
    /// Which lease of that start it is.
    pub counter: u64,
}

impl LeaseToken {
    /// Reads a lease id as [`fmt::Display`] writes it. Anything else, also the same number written another way, is `None`:
    /// an id that this server did not write names no lease.
    pub fn parse(text: &str) -> Option<Self> {
        let (start_number, counter) = text.split_once('-')?;
        let token =
            Self { start_number: u64::from_str_radix(start_number, 16).ok()?, counter: u64::from_str_radix(counter, 16).ok()? };
        (token.to_string() == text).then_some(token)
    }
}

impl fmt::Display for LeaseToken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:x}-{:x}", self.start_number, self.counter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_id_has_one_spelling() {
        for token in [(0, 0), (1, 0x2a), (u64::MAX, u64::MAX)].map(|(start_number, counter)| LeaseToken { start_number, counter })
        {
            assert_eq!(LeaseToken::parse(&token.to_string()), Some(token));
        }
        assert_eq!(LeaseToken { start_number: 1, counter: 0x2a }.to_string(), "1-2a");
        for text in ["", "-", "1", "1-", "-1", "01-2a", "+1-2a", "1-2A", "1-2a-", " 1-2a", "1-10000000000000000", "ü-1"] {
            assert_eq!(LeaseToken::parse(text), None, "{text}");
        }
    }
}
