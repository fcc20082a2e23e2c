//! A scraper of the test's own: HTTP by hand, and the text format read as its specification says.

use std::{collections::BTreeMap, net::SocketAddr};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};

/// An answer: status, head, body.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

/// Sends `request` and reads until the server closes; `None`: it closed without an answer.
pub(crate) async fn converse(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    request: &str,
) -> Option<Answer> {
    // The server may close in the middle of what it will not read.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes).await;
    // Of messages that are no text the head alone is read.
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, head: head.to_lowercase(), body: body.to_owned() })
}

pub(crate) async fn get(at: SocketAddr, path: &str, accept: &str) -> Option<Answer> {
    let stream = TcpStream::connect(at).await.ok()?;
    converse(stream, &format!("GET {path} HTTP/1.1\r\nhost: x\r\naccept: {accept}\r\n\r\n")).await
}

pub(crate) async fn scrape(at: SocketAddr) -> Page {
    let answer = get(at, "/metrics", "*/*").await.expect("it answers");
    assert_eq!(answer.status, 200, "{}", answer.head);
    Page::parse(&answer.body)
}

/// Labels of a sample, without the empty ones, which mean the same as none.
pub(crate) type Labels = BTreeMap<String, String>;

/// A page in the text format 0.0.4.
#[derive(Debug, Default)]
pub(crate) struct Page {
    pub(crate) types: BTreeMap<String, String>,
    samples: BTreeMap<(String, Labels), f64>,
}

impl Page {
    pub(crate) fn parse(text: &str) -> Self {
        let mut page = Self::default();
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                assert!(page.types.insert(name.into(), kind.into()).is_none(), "{name} twice");
            } else if !line.starts_with('#') {
                let (key, value) = sample(line);
                assert!(page.samples.insert(key, value).is_none(), "twice: {line}");
            }
        }
        page
    }

    /// The sample with exactly these labels.
    pub(crate) fn get(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let labels = labels.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        self.samples.get(&(name.into(), labels)).copied()
    }

    /// All samples of a name.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a Labels, f64)> {
        self.samples
            .iter()
            .filter(move |((of, _), _)| of == name)
            .map(|((_, labels), value)| (labels, *value))
    }
}

fn sample(line: &str) -> ((String, Labels), f64) {
    let end = line.find(['{', ' ']).unwrap();
    let (name, mut rest) = line.split_at(end);
    let mut labels = Labels::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, value) = rest.trim_start_matches(',').split_once("=\"").unwrap();
            let (value, after) = quoted(value);
            if !value.is_empty() {
                labels.insert(label.into(), value);
            }
            rest = after;
        }
        rest = &rest[1..];
    }
    let value = rest.trim().parse().unwrap_or_else(|_| panic!("no value: {line}"));
    ((name.into(), labels), value)
}

/// Up to the closing quote, unescaped, and what follows it.
fn quoted(text: &str) -> (String, &str) {
    let (mut value, mut characters) = (String::new(), text.char_indices());
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, &text[at + 1..]),
            '\\' => match characters.next().unwrap().1 {
                'n' => value.push('\n'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    panic!("no closing quote: {text}");
}
