//! Answers on their way out: handed to the connection in pieces, and counted, so that clients that do not read cannot fill the
//! memory.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};

use super::Gateway;
use super::budget::Share;
use super::error::{ApiError, Result};

/// Bytes that are handed to the connection at a time: it takes the next piece only when it has sent most of the last.
pub(super) const PIECE: usize = 64 * 1024;

/// Smaller answers are not counted: the bound on connections bounds them.
const COUNTED_BYTES_MIN: usize = 16 * 1024;

/// Refuses to read more while unsent answers fill the memory meant for them; counts the answers of everything else.
pub(super) async fn hold(State(gateway): State<Arc<Gateway>>, request: Request, next: Next) -> Response {
    if request.method() == Method::GET
        && let Err(error) = check_room(&gateway)
    {
        // Clients look for messages in an error too.
        return error.with("messages", Vec::<serde_json::Value>::new()).into_response();
    }
    let response = next.run(request).await;
    let bytes = usize::try_from(response.body().size_hint().lower()).unwrap_or(usize::MAX);
    if bytes < COUNTED_BYTES_MIN {
        return response;
    }
    let mut share = gateway.answer_budget.share();
    // The answer is there already: who comes next is refused.
    share.grow(bytes);
    response.map(|body| Body::new(Answer { body, rest: Bytes::new(), _share: share }))
}

/// Fails while unsent answers fill the memory meant for them.
pub(super) fn check_room(gateway: &Gateway) -> Result<()> {
    if gateway.answer_budget.is_used_up() {
        let text = "too many bytes of answers wait for their clients; try again";
        return Err(ApiError::new(StatusCode::TOO_MANY_REQUESTS, "busy", text));
    }
    Ok(())
}

/// A body whose bytes count until it is sent or given up.
struct Answer {
    body: Body,
    /// What the body gave and the connection did not take yet.
    rest: Bytes,
    _share: Share,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<std::result::Result<Frame<Bytes>, Self::Error>>> {
        if self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                end => return Poll::Ready(end),
            }
        }
        let length = self.rest.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.rest.split_to(length)))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = self.body.size_hint();
        let rest = self.rest.len() as u64;
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint.set_lower(hint.lower().saturating_add(rest));
        hint
    }
}
