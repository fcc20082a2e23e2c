//! What discovery and the kernel see of a vLLM: an API server with a port and metrics, and its EngineCore.
//!
//! Called by the name `vllm`, as `vllm serve MODEL --port PORT`. `/tell/WORD` has its EngineCore do something: `pid` tells
//! its process id, `eat` takes memory in several threads until there is none, `exit` ends it with code 3.

use std::{
    env,
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    os::unix::process::CommandExt as _,
    process::{ChildStdin, Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result};

/// Of an idle vLLM 0.32.
const METRICS: &str = include_str!("../../data/vllm-metrics/0.32.0/idle.prom");
/// The name that a vLLM's EngineCore gives itself.
const CORE: &str = "VLLM::EngineCore";

fn main() -> Result<()> {
    let arguments: Vec<String> = env::args().collect();
    if arguments.first().is_some_and(|name| name == CORE) {
        return core();
    }
    let port =
        arguments.iter().skip_while(|word| *word != "--port").nth(1).context("--port PORT is missing")?;
    let listener = TcpListener::bind(("127.0.0.1", port.parse()?))?;
    let mut core = Command::new(env::current_exe()?).arg0(CORE).stdin(Stdio::piped()).spawn()?;
    let tell = core.stdin.take().context("it is piped")?;
    let server = Arc::new(Server { core: core.id(), tell: Mutex::new(tell) });
    for connection in listener.incoming() {
        let (server, connection) = (Arc::clone(&server), connection?);
        // Who goes away early has his reasons.
        thread::spawn(move || drop(server.answer(&connection)));
    }
    Ok(())
}

struct Server {
    core: u32,
    tell: Mutex<ChildStdin>,
}

impl Server {
    /// Answers what is asked over one connection.
    fn answer(&self, connection: &TcpStream) -> Result<()> {
        let mut reader = BufReader::new(connection);
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
            while !line.trim().is_empty() {
                line.clear();
                reader.read_line(&mut line)?;
            }
            let body = self.body(path.split('?').next().unwrap_or_default())?;
            let status = if body.is_some() { "200 OK" } else { "404 Not Found" };
            let body = body.unwrap_or_default();
            let mut stream = connection;
            write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}", body.len())?;
        }
    }

    fn body(&self, path: &str) -> Result<Option<String>> {
        Ok(Some(match path {
            "/health" => String::new(),
            "/version" => r#"{"version":"0.32.0"}"#.into(),
            "/v1/models" => r#"{"data":[{"id":"tiny","max_model_len":2048}]}"#.into(),
            "/metrics" => METRICS.into(),
            "/tell/pid" => self.core.to_string(),
            other => {
                let Some(word) = other.strip_prefix("/tell/") else { return Ok(None) };
                writeln!(self.tell.lock().unwrap_or_else(PoisonError::into_inner), "{word}")?;
                String::new()
            }
        }))
    }
}

/// What the EngineCore does: what it is told.
fn core() -> Result<()> {
    let mut word = String::new();
    BufReader::new(std::io::stdin()).read_line(&mut word)?;
    match word.trim() {
        "exit" => std::process::exit(3),
        "eat" => (0..4).map(|_| thread::spawn(eat)).for_each(drop),
        _ => return Ok(()),
    }
    thread::sleep(Duration::from_secs(600));
    Ok(())
}

fn eat() {
    let mut eaten = vec![];
    loop {
        eaten.push(vec![1_u8; 1 << 20]);
        thread::sleep(Duration::from_millis(1));
    }
}
