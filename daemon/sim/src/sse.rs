//! An answer that is sent piece by piece (server-sent events).

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use hyper::body::{Body, Bytes, Frame};
use tokio::sync::mpsc;

/// Pieces that may wait for a slow client; its request generates on meanwhile, and pieces grow instead.
pub(crate) const MAX_PIECES: usize = 16;

/// A body whose pieces come from a task; the task learns that the client is gone when its sender is closed.
#[derive(Debug)]
pub(crate) struct Sse(pub(crate) mpsc::Receiver<Bytes>);

impl Body for Sse {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}
