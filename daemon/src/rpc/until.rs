//! Streams of answers end when the daemon stops: with UNAVAILABLE, so that callers come again.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use tokio::sync::watch;
use tokio_stream::Stream;
use tonic::Status;

/// `inner` until the daemon stops.
pub(super) struct Until<S> {
    inner: S,
    stopped: Pin<Box<dyn Future<Output = ()> + Send>>,
    over: bool,
}

impl<S> Until<S> {
    pub(super) fn new(mut stopping: watch::Receiver<bool>, inner: S) -> Self {
        let stopped = Box::pin(async move {
            // An error: the one who would tell is gone, which means the same.
            let _ = stopping.wait_for(|stopping| *stopping).await;
        });
        Self { inner, stopped, over: false }
    }
}

impl<T, S: Stream<Item = Result<T, Status>> + Unpin> Stream for Until<S> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.over {
            return Poll::Ready(None);
        }
        let next = Pin::new(&mut self.inner).poll_next(cx);
        if next.is_ready() {
            self.over = !matches!(next, Poll::Ready(Some(Ok(_))));
            return next;
        }
        self.stopped.as_mut().poll(cx).map(|()| {
            self.over = true;
            Some(Err(Status::unavailable("the daemon stops; ask again, the next one answers")))
        })
    }
}
