//! A small HTTP/1.1 server: one bounded request per connection, answered within a bounded time.

use std::{
    convert::Infallible,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
    sync::{Mutex, Semaphore},
    time::{sleep, timeout},
};

use super::{Format, Metrics};

/// From a connection's first byte to the last of its answer; then it is closed.
const REQUEST_TIME: Duration = Duration::from_secs(10);
/// Most bytes of a request's head; hyper takes no less. A body is not read.
const MAX_REQUEST_BYTES: usize = 8192;
/// Most headers of a request.
const MAX_HEADERS: usize = 64;
/// A page is given out again for so long, so that many scrapers cost no more than one.
const PAGE_TIME: Duration = Duration::from_millis(250);
/// Pause after a failed accept, for what is missing then (file descriptors) comes back with time.
const ACCEPT_REST: Duration = Duration::from_millis(100);

type Page = Response<Full<Bytes>>;

/// What all connections share.
#[derive(Clone, Debug)]
pub(super) struct Server(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    metrics: Metrics,
    room: Arc<Semaphore>,
    /// The last page in each format.
    pages: [Mutex<Option<(Instant, Bytes)>>; Format::ALL.len()],
}

/// Where connections come from.
#[derive(Debug)]
pub(super) enum Door {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Server {
    /// Serves at most `connections` at once; one more is closed at once.
    pub(super) fn new(metrics: Metrics, connections: usize) -> Self {
        let (room, pages) = (Arc::new(Semaphore::new(connections)), Format::ALL.map(|_| Mutex::default()));
        Self(Arc::new(Shared { metrics, room, pages }))
    }

    /// Serves those who come through `door`, for ever.
    pub(super) async fn serve(self, door: Door) {
        loop {
            let accepted = match &door {
                Door::Tcp(listener) => listener.accept().await.map(|(stream, _)| self.take(stream)),
                Door::Unix(listener) => listener.accept().await.map(|(stream, _)| self.take(stream)),
            };
            if let Err(error) = accepted {
                tracing::warn!(%error, "cannot accept a scraper");
                sleep(ACCEPT_REST).await;
            }
        }
    }

    fn take(&self, stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) {
        let Ok(place) = Arc::clone(&self.0.room).try_acquire_owned() else { return };
        let server = self.clone();
        tokio::spawn(async move {
            let service = service_fn(async |request| Ok::<_, Infallible>(server.answer(&request).await));
            let connection = http1::Builder::new()
                .keep_alive(false)
                .max_buf_size(MAX_REQUEST_BYTES)
                .max_headers(MAX_HEADERS)
                .timer(TokioTimer::new())
                .header_read_timeout(REQUEST_TIME)
                .serve_connection(TokioIo::new(stream), service);
            // However it ended, the peer is the one who noticed.
            let _ = timeout(REQUEST_TIME, connection).await;
            drop(place);
        });
    }

    async fn answer(&self, request: &Request<Incoming>) -> Page {
        match (request.method(), request.uri().path()) {
            (&Method::GET | &Method::HEAD, "/metrics") => {
                let accept = request.headers().get(header::ACCEPT);
                let accept = accept.and_then(|accept| accept.to_str().ok()).unwrap_or_default();
                let format = Format::wanted(accept);
                match self.page(format).await {
                    Ok(page) => plain(StatusCode::OK, format.content_type(), page),
                    Err(error) => {
                        tracing::error!(%error, "cannot write the metrics page");
                        text(StatusCode::INTERNAL_SERVER_ERROR, "the page cannot be written\n")
                    }
                }
            }
            (&Method::GET | &Method::HEAD, "/") => text(StatusCode::OK, "gpuadmitd: see /metrics\n"),
            (&Method::GET | &Method::HEAD, _) => text(StatusCode::NOT_FOUND, "see /metrics\n"),
            _ => text(StatusCode::METHOD_NOT_ALLOWED, "GET or HEAD\n"),
        }
    }

    async fn page(&self, format: Format) -> io::Result<Bytes> {
        let [classic, open, protobuf] = &self.0.pages;
        let slot = match format {
            Format::Classic => classic,
            Format::OpenMetrics => open,
            Format::Protobuf => protobuf,
        };
        let mut slot = slot.lock().await;
        if let Some((made, page)) = slot.as_ref().filter(|(made, _)| made.elapsed() < PAGE_TIME) {
            tracing::trace!(age = ?made.elapsed(), "a page is given out again");
            return Ok(page.clone());
        }
        let page = Bytes::from(self.0.metrics.page(format).map_err(io::Error::other)?);
        *slot = Some((Instant::now(), page.clone()));
        Ok(page)
    }
}

fn text(status: StatusCode, words: &'static str) -> Page {
    plain(status, "text/plain; charset=utf-8", Bytes::from_static(words.as_bytes()))
}

fn plain(status: StatusCode, content_type: &'static str, body: Bytes) -> Page {
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
