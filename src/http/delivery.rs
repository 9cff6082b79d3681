//! Handing claimed messages to a client, or back to the group if the client is gone.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};

use crate::engine::Engine;
use crate::model::Now;

use super::answers::PIECE;

/// A lease on its way to a client. Dropped before it was delivered, it gives its messages back, uncharged.
pub(super) struct Delivery {
    engine: Engine,
    lease_id: String,
}

impl Delivery {
    /// Guards a lease; an empty id guards nothing.
    pub(super) fn new(engine: &Engine, lease_id: &str) -> Self {
        Self { engine: engine.clone(), lease_id: lease_id.to_owned() }
    }

    /// A body that counts as delivered when its last piece went to the connection.
    pub(super) fn into_body(self, bytes: Vec<u8>) -> Body {
        Body::new(DeliveryBody { rest: bytes.into(), delivery: Some(self) })
    }

    /// The lease now belongs to the client.
    fn delivered(mut self) {
        self.lease_id.clear();
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if self.lease_id.is_empty() {
            return;
        }
        match self.engine.release(&self.lease_id, Now::read()) {
            Ok(partitions) => tracing::debug!(lease = self.lease_id, partitions, "a client is gone; its messages are given back"),
            Err(error) => tracing::debug!(lease = self.lease_id, "messages of a client that is gone are not given back: {error}"),
        }
    }
}

struct DeliveryBody {
    rest: Bytes,
    delivery: Option<Delivery>,
}

impl http_body::Body for DeliveryBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let length = self.rest.len().min(PIECE);
        let piece = self.rest.split_to(length);
        if self.rest.is_empty()
            && let Some(delivery) = self.delivery.take()
        {
            delivery.delivered();
        }
        Poll::Ready((!piece.is_empty()).then(|| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}
