//! Which queues a caller may use.

use std::fmt;
use std::sync::Arc;

use super::{Error, ErrorCode, Result};

/// Queues whose names begin with one of some prefixes, and who is bound to them.
///
/// An engine that is [`within`](crate::engine::Engine::within) a scope refuses the other queues by name and shows none of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct QueueScope {
    holder: Arc<str>,
    prefixes: Arc<[String]>,
}

impl QueueScope {
    /// The scope of `holder`, a word for people such as `role read-write`. Without prefixes it holds no queue at all.
    pub fn new(holder: impl Into<Arc<str>>, prefixes: impl Into<Arc<[String]>>) -> Self {
        Self { holder: holder.into(), prefixes: prefixes.into() }
    }

    /// Whether a queue of this name is in the scope.
    pub fn contains(&self, queue: &str) -> bool {
        self.prefixes.iter().any(|prefix| queue.starts_with(prefix.as_str()))
    }

    /// Refuses a queue that is not in the scope.
    ///
    /// # Errors
    ///
    /// `Unauthorized`, which names the holder, the queue and the prefixes; it does not say whether there is such a queue.
    pub fn check(&self, queue: &str) -> Result<()> {
        if self.contains(queue) {
            return Ok(());
        }
        let text = format!("{} may not use queue {queue:?}, only queues that begin with {self}", self.holder);
        Err(Error::new(ErrorCode::Unauthorized, text))
    }
}

/// The prefixes, for people.
impl fmt::Display for QueueScope {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, prefix) in self.prefixes.iter().enumerate() {
            let separator = if index == 0 { "" } else { " or " };
            write!(formatter, "{separator}{prefix:?}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_in_the_scope_by_the_beginning_of_its_name() {
        let scope = QueueScope::new("role read-write", ["orders.".to_owned(), "mail".to_owned()]);
        for queue in ["orders.", "orders.paid", "mail", "mailing"] {
            assert_eq!(scope.check(queue), Ok(()), "{queue}");
        }
        for queue in ["", "orders", "Orders.paid", " mail", "x.orders.paid"] {
            assert!(!scope.contains(queue), "{queue}");
        }
        let error = scope.check("other").unwrap_err();
        assert_eq!(error.code, ErrorCode::Unauthorized);
        let expected = "role read-write may not use queue \"other\", only queues that begin with \"orders.\" or \"mail\"";
        assert_eq!(error.text, expected);
        assert!(!QueueScope::new("nobody", Vec::new()).contains(""));
    }
}
