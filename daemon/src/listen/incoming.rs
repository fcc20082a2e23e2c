//! Accepted connections: at most so many, each of a known peer, closed when idle.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{UnixListener, UnixStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, Sleep, sleep},
};
use tokio_stream::Stream;
use tonic::transport::server::Connected;

use super::{Bound, OwnFile, authority::Authorities};
use crate::{
    config::Limits,
    rpc::{Allowed, Peer},
};

/// Rest after an `accept` that failed, as for want of file descriptors.
const ACCEPT_REST: Duration = Duration::from_millis(20);

/// The stream of accepted connections.
pub struct Incoming {
    listener: UnixListener,
    allowed: Allowed,
    room: Arc<Semaphore>,
    idle: Duration,
    rest: Option<Pin<Box<Sleep>>>,
    /// The last connection was closed because there was no room.
    full: bool,
    _own: Option<OwnFile>,
}

impl Incoming {
    /// Accepts on `bound` from `allowed` peers within `limits`.
    ///
    /// # Errors
    /// The listener cannot be watched.
    pub fn new(bound: Bound, allowed: Allowed, limits: &Limits) -> io::Result<Self> {
        Ok(Self {
            listener: UnixListener::from_std(bound.listener)?,
            allowed,
            room: Arc::new(Semaphore::new(usize::try_from(limits.connections).unwrap_or(usize::MAX >> 3))),
            idle: Duration::from_millis(limits.idle_ms),
            rest: None,
            full: false,
            _own: bound.own,
        })
    }

    /// Takes in a connection, or closes it when there are as many as may be.
    fn admit(&mut self, stream: UnixStream) -> Option<Connection> {
        let room = Arc::clone(&self.room).try_acquire_owned().ok();
        if room.is_none() && !self.full {
            tracing::warn!("connections are closed at once: there are as many as limits.connections");
        }
        self.full = room.is_none();
        let peer = self.allowed.identify(&stream);
        let timer = Box::pin(sleep(self.idle));
        let authorities = Authorities::default();
        Some(Connection { stream, authorities, peer, idle: self.idle, timer, _room: room? })
    }
}

impl Stream for Incoming {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(rest) = &mut self.rest {
                std::task::ready!(rest.as_mut().poll(cx));
                self.rest = None;
            }
            match std::task::ready!(self.listener.poll_accept(cx)) {
                Ok((stream, _)) => {
                    if let Some(connection) = self.admit(stream) {
                        return Poll::Ready(Some(Ok(connection)));
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept");
                    self.rest = Some(Box::pin(sleep(ACCEPT_REST)));
                }
            }
        }
    }
}

/// A connection. It reads as ended when no call has been open on it for the idle time.
pub struct Connection {
    stream: UnixStream,
    authorities: Authorities,
    peer: Peer,
    idle: Duration,
    timer: Pin<Box<Sleep>>,
    _room: OwnedSemaphorePermit,
}

impl Connection {
    fn poll_idle(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.timer.as_mut().poll(cx).is_ready() {
            let idle_at = self.peer.idle_at(self.idle);
            if idle_at <= Instant::now() {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(idle_at);
        }
        Poll::Pending
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if read.is_pending() {
            return self.poll_idle(cx).map(Ok);
        }
        self.authorities.replace(buffer.filled_mut().get_mut(before..).unwrap_or_default());
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
