//! A small HTTP/1.1 client: GET over TCP or a Unix socket, one kept connection, a bounded body and a deadline. No TLS.

use std::{io::ErrorKind, time::Duration};

use gpuadmit_core::{observation::ScrapeFailure, units::Span};
use http::{HeaderValue, Request, header};
use http_body_util::{BodyExt, Empty};
use hyper::{
    body::{Bytes, Incoming},
    client::conn::http1::{self, SendRequest},
};
use hyper_util::rt::TokioIo;
use tokio::{
    net::{TcpStream, UnixStream},
    task::JoinHandle,
    time::timeout,
};

use super::address::Address;
use crate::clock;

/// Most bytes of response headers.
const MAX_HEADER_BYTES: usize = 64 * 1024;
/// Most response headers.
const MAX_HEADERS: usize = 128;

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: u16,
    /// From sending the request to having the whole body.
    pub span: Span,
}

/// Client of one server.
pub struct Client {
    address: Address,
    authorization: Option<HeaderValue>,
    connection: Option<Connection>,
}

/// A connection and the task that drives it.
struct Connection {
    sender: SendRequest<Empty<Bytes>>,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Client {
    /// A client that has not connected yet. `api_key` goes into a Bearer header; one that no header can hold is left
    /// out.
    #[must_use]
    pub fn new(address: Address, api_key: Option<&str>) -> Self {
        let authorization = api_key.and_then(|key| {
            let mut value = HeaderValue::from_str(&format!("Bearer {key}")).ok()?;
            value.set_sensitive(true);
            Some(value)
        });
        Self { address, authorization, connection: None }
    }

    /// Gets `path`, reading at most `most` bytes into `body`, within `deadline`.
    ///
    /// # Errors
    /// The connection's failure, [`ScrapeFailure::TimedOut`], or [`ScrapeFailure::Malformed`] for a body above the
    /// bound. Any status is an answer.
    pub async fn get(
        &mut self,
        path: &str,
        body: &mut Vec<u8>,
        most: usize,
        deadline: Duration,
    ) -> Result<Answer, ScrapeFailure> {
        // A request that was given up leaves its connection in the middle of an answer.
        let kept = self.connection.take();
        let (answer, connection) = timeout(deadline, self.exchange(kept, path, body, most))
            .await
            .unwrap_or(Err(ScrapeFailure::TimedOut))?;
        self.connection = Some(connection);
        Ok(answer)
    }

    async fn exchange(
        &self,
        kept: Option<Connection>,
        path: &str,
        body: &mut Vec<u8>,
        most: usize,
    ) -> Result<(Answer, Connection), ScrapeFailure> {
        if let Some(mut connection) = kept
            && connection.sender.ready().await.is_ok()
        {
            // The server may close a kept connection at any time; that is no failure of the server.
            match self.send(&mut connection, path, body, most).await {
                Err(ScrapeFailure::Connection(_)) => {}
                done => return Ok((done?, connection)),
            }
        }
        let mut connection = self.connect().await?;
        let answer = self.send(&mut connection, path, body, most).await?;
        Ok((answer, connection))
    }

    async fn send(
        &self,
        connection: &mut Connection,
        path: &str,
        body: &mut Vec<u8>,
        most: usize,
    ) -> Result<Answer, ScrapeFailure> {
        let request = self.request(path)?;
        let sent = clock::now();
        let response = connection.sender.send_request(request).await.map_err(failure)?;
        let status = response.status().as_u16();
        collect(response.into_body(), body, most).await?;
        Ok(Answer { status, span: Span { not_before: sent, not_after: clock::now() } })
    }

    fn request(&self, path: &str) -> Result<Request<Empty<Bytes>>, ScrapeFailure> {
        let host = match &self.address {
            Address::Tcp { host, port } if host.contains(':') => format!("[{host}]:{port}"),
            Address::Tcp { host, port } => format!("{host}:{port}"),
            Address::Unix(_) | Address::Headless { .. } => "localhost".into(),
        };
        let mut request = Request::get(path).header(header::HOST, host);
        if let Some(authorization) = &self.authorization {
            request = request.header(header::AUTHORIZATION, authorization);
        }
        request.body(Empty::new()).map_err(|error| ScrapeFailure::Connection(error.to_string()))
    }

    async fn connect(&self) -> Result<Connection, ScrapeFailure> {
        let mut builder = http1::Builder::new();
        builder.max_buf_size(MAX_HEADER_BYTES).max_headers(MAX_HEADERS);
        match &self.address {
            Address::Tcp { host, port } => {
                let stream =
                    TcpStream::connect((host.as_str(), *port)).await.map_err(|error| refusal(&error))?;
                stream.set_nodelay(true).map_err(|error| refusal(&error))?;
                handshake(&builder, stream).await
            }
            // Never relative to the daemon's own folder.
            Address::Unix(path) if path.is_relative() => Err(ScrapeFailure::Refused),
            Address::Unix(path) => {
                let stream = UnixStream::connect(path).await.map_err(|error| refusal(&error))?;
                handshake(&builder, stream).await
            }
            Address::Headless { .. } => Err(ScrapeFailure::Refused),
        }
    }
}

/// Whether nothing listens at `address`; false when that cannot be told within `deadline`.
pub async fn refuses(address: &Address, deadline: Duration) -> bool {
    let client = Client::new(address.clone(), None);
    matches!(timeout(deadline, client.connect()).await, Ok(Err(ScrapeFailure::Refused)))
}

async fn handshake<S>(builder: &http1::Builder, stream: S) -> Result<Connection, ScrapeFailure>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(failure)?;
    // Its errors reach the sender as well.
    let driver = tokio::spawn(async { drop(connection.await) });
    Ok(Connection { sender, driver })
}

async fn collect(mut incoming: Incoming, body: &mut Vec<u8>, most: usize) -> Result<(), ScrapeFailure> {
    body.clear();
    while let Some(frame) = incoming.frame().await {
        let frame = frame.map_err(failure)?;
        let Some(data) = frame.data_ref() else { continue };
        if body.len().saturating_add(data.len()) > most {
            return Err(ScrapeFailure::Malformed(format!("the body has more than {most} bytes")));
        }
        body.extend_from_slice(data);
    }
    Ok(())
}

/// Nothing listens, or another error in connecting.
fn refusal(error: &std::io::Error) -> ScrapeFailure {
    match error.kind() {
        ErrorKind::ConnectionRefused | ErrorKind::NotFound => ScrapeFailure::Refused,
        _ => ScrapeFailure::Connection(error.to_string()),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the shape map_err asks for")]
fn failure(error: hyper::Error) -> ScrapeFailure {
    if error.is_parse() {
        return ScrapeFailure::Malformed(format!("not HTTP: {error}"));
    }
    ScrapeFailure::Connection(error.to_string())
}
