//! HTTP/1.1 to an engine, a connection for each request, and server-sent events (HTML standard, 9.2).

use std::{net::IpAddr, path::PathBuf, time::Duration};

use anyhow::{Context as _, ensure};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    Method, Request, Response,
    body::{Bytes, Incoming},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    time::timeout,
};

/// Longest time to open a connection.
const CONNECTING: Duration = Duration::from_secs(5);
/// Longest time for a short answer.
const ANSWERING: Duration = Duration::from_secs(10);
/// Largest body read as a whole: `/metrics` of an engine with many ranks.
const MAX_BODY_BYTES: usize = 16 << 20;
/// Longest line of a stream.
const MAX_LINE_BYTES: usize = 256 << 10;

/// Where an engine listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl Address {
    /// `http://HOST:PORT` or `unix:/path`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if let Some(path) = text.strip_prefix("unix:") {
            return Some(Self::Unix(path.into()));
        }
        let (host, port) = text.strip_prefix("http://")?.trim_end_matches('/').rsplit_once(':')?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Some(Self::Tcp { host, port: port.parse().ok()? })
    }

    /// Whether it is on this machine for sure.
    pub(super) fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp { host, .. } => {
                host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
            }
        }
    }

    /// Sends a request; its answer's body is still to be read.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, String)],
        body: String,
    ) -> anyhow::Result<Response<Incoming>> {
        let mut request = Request::builder().method(method).uri(path).header("host", "localhost");
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let request = request.body(Full::new(Bytes::from(body)))?;
        match self {
            Self::Tcp { host, port } => {
                let stream = timeout(CONNECTING, TcpStream::connect((host.as_str(), *port))).await;
                let stream = stream.context("no connection in time")??;
                stream.set_nodelay(true)?;
                exchange(stream, request).await
            }
            Self::Unix(path) => {
                let stream = timeout(CONNECTING, UnixStream::connect(path)).await;
                exchange(stream.context("no connection in time")??, request).await
            }
        }
    }

    /// A whole body, of an answer with status 200.
    pub(super) async fn get(&self, path: &str, headers: &[(&str, String)]) -> anyhow::Result<String> {
        let whole = async {
            let response = self.send(Method::GET, path, headers, String::new()).await?;
            ensure!(response.status().is_success(), "{path}: {}", response.status());
            let body = Limited::new(response.into_body(), MAX_BODY_BYTES).collect().await;
            Ok(body.map_err(|error| anyhow::anyhow!("{path}: {error}"))?.to_bytes())
        };
        let body = timeout(ANSWERING, whole).await.context("no answer in time")??;
        Ok(String::from_utf8_lossy(&body).into_owned())
    }
}

async fn exchange<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    request: Request<Full<Bytes>>,
) -> anyhow::Result<Response<Incoming>> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // It ends when the answer was read or dropped.
    tokio::spawn(connection);
    Ok(sender.send_request(request).await?)
}

/// The data of server-sent events.
pub(super) struct Events {
    body: Incoming,
    lines: Lines,
}

/// Bytes to lines.
#[derive(Default)]
struct Lines {
    pending: Vec<u8>,
}

impl Events {
    pub(super) fn new(body: Incoming) -> Self {
        Self { body, lines: Lines::default() }
    }

    /// The next one; `None` at the end of the stream.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        loop {
            while let Some(line) = self.lines.next() {
                match line.strip_prefix(b"data:").map(<[u8]>::trim_ascii) {
                    Some(b"[DONE]") => return Ok(None),
                    Some(data) => return Ok(Some(data.to_vec())),
                    None => {}
                }
            }
            let Some(frame) = self.body.frame().await else { anyhow::bail!("the stream broke off") };
            if let Some(data) = frame?.data_ref() {
                self.lines.add(data)?;
            }
        }
    }
}

impl Lines {
    fn add(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        ensure!(self.pending.len() < MAX_LINE_BYTES, "a line of over {MAX_LINE_BYTES} bytes");
        self.pending.extend_from_slice(bytes);
        Ok(())
    }

    fn next(&mut self) -> Option<Vec<u8>> {
        let end = self.pending.iter().position(|byte| *byte == b'\n')?;
        let mut line: Vec<u8> = self.pending.drain(..=end).collect();
        line.truncate(line.trim_ascii_end().len());
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_the_daemon_writes_them() {
        let tcp = |host: &str, port| Some(Address::Tcp { host: host.into(), port });
        assert_eq!(Address::parse("http://127.0.0.1:8000"), tcp("127.0.0.1", 8000));
        assert_eq!(Address::parse("http://[::1]:80/"), tcp("::1", 80));
        assert_eq!(Address::parse("unix:/run/v"), Some(Address::Unix("/run/v".into())));
        for text in ["", "127.0.0.1:8000", "https://a:1", "http://a", "http://a:b"] {
            assert_eq!(Address::parse(text), None, "{text}");
        }
    }

    #[test]
    fn lines_are_whole_however_they_come() {
        let mut lines = Lines::default();
        lines.add(b"data: a\r\n\nda").unwrap();
        assert_eq!(lines.next().as_deref(), Some(&b"data: a"[..]));
        assert_eq!(lines.next().as_deref(), Some(&b""[..]));
        assert_eq!(lines.next(), None);
        lines.add(b"ta: b\n").unwrap();
        assert_eq!(lines.next().as_deref(), Some(&b"data: b"[..]));
        lines.add(&vec![b'x'; MAX_LINE_BYTES]).unwrap();
        assert!(lines.add(b"x").is_err());
    }
}
