//! A lease that its holder has perhaps not heard of.

use crate::engine::Engine;
use crate::model::{Now, PopReply};

/// Gives the lease back, uncharged, when dropped: the reply that names it never reached the client. [`keep`](Self::keep) says
/// that it did.
pub(super) struct UnheardLease {
    engine: Engine,
    /// Empty once it is the client's.
    id: String,
}

impl UnheardLease {
    /// The lease of a reply; `None` if it has none.
    pub(super) fn of(reply: &PopReply, engine: &Engine) -> Option<Self> {
        (!reply.lease_id.is_empty()).then(|| Self { engine: engine.clone(), id: reply.lease_id.clone() })
    }

    /// The client has it.
    pub(super) fn keep(mut self) {
        self.id.clear();
    }
}

impl Drop for UnheardLease {
    fn drop(&mut self) {
        if self.id.is_empty() {
            return;
        }
        if let Err(error) = self.engine.release(&self.id, Now::read()) {
            tracing::debug!(lease = %self.id, %error, "an unheard lease could not be given back");
        }
    }
}
