//! The few HTTP calls that the tests make to vLLM.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Method, Request, Response, StatusCode, body::Bytes, body::Incoming};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::{net::TcpStream, time::timeout};

/// Longest wait for the head of an answer. A stopped engine answers nothing until it goes on.
const HEAD_TIMEOUT: Duration = Duration::from_mins(2);
/// Most of a body that is read at once.
const BODY_LIMIT: usize = 1 << 20;

/// Sends one request over a connection of its own; the body is still to be read.
pub(crate) async fn send(port: u16, method: Method, path: &str, body: String) -> Result<Response<Incoming>> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "127.0.0.1")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body)))?;
    timeout(HEAD_TIMEOUT, sender.send_request(request))
        .await
        .with_context(|| format!("{path}: no answer"))?
        .map_err(Into::into)
}

/// The body of a GET that must answer 200.
pub(crate) async fn get(port: u16, path: &str) -> Result<String> {
    let response = send(port, Method::GET, path, String::new()).await?;
    ensure!(response.status() == StatusCode::OK, "{path}: {}", response.status());
    whole(response, path).await
}

/// The JSON that answers a POST, which must succeed.
pub(crate) async fn post(port: u16, path: &str, body: &Value) -> Result<Value> {
    let response = send(port, Method::POST, path, body.to_string()).await?;
    let status = response.status();
    let answer = whole(response, path).await?;
    ensure!(status == StatusCode::OK, "{path}: {status}: {answer}");
    Ok(serde_json::from_str(&answer)?)
}

async fn whole(response: Response<Incoming>, path: &str) -> Result<String> {
    let body = Limited::new(response.into_body(), BODY_LIMIT).collect();
    let body = timeout(HEAD_TIMEOUT, body).await.with_context(|| format!("{path}: no whole body"))?;
    let body = body.map_err(|error| anyhow::anyhow!("{path}: {error}"))?.to_bytes();
    Ok(String::from_utf8(body.into())?)
}
