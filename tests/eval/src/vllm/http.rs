//! As much HTTP as a loopback test needs: one request per connection.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

const CONNECT: Duration = Duration::from_secs(5);
/// A completion may wait long in a full engine.
const ANSWER: Duration = Duration::from_mins(5);
/// Largest answer read, bytes.
const MOST: u64 = 4 << 20;

pub(super) fn get(address: SocketAddr, path: &str) -> Result<String> {
    exchange(address, &format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n"))
        .with_context(|| format!("GET http://{address}{path}"))
}

pub(super) fn post(address: SocketAddr, path: &str, body: &str) -> Result<String> {
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    );
    exchange(address, &(head + body)).with_context(|| format!("POST http://{address}{path}"))
}

/// Sends a request and reads the body of its answer, to the end of the connection.
fn exchange(address: SocketAddr, request: &str) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, CONNECT)?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.take(MOST).read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").context("the answer has no head")?;
    let status = head.lines().next().unwrap_or_default();
    if status.split(' ').nth(1) != Some("200") {
        bail!("{status}: {body}");
    }
    Ok(body.to_owned())
}
