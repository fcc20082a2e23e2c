//! The bounds of the server: what is over them is refused, and what is under them goes on.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers included")]

use std::{collections::BTreeSet, time::Duration};

use gpuadmit_proto::v1::{AdmitRequest, StatusRequest, admit_request::Prompt};
use gpuadmit_tests::{
    served::{Served, admit, quiet, ready_engine},
    talk::{Talk, admitted, admitted_one},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    time::{sleep, timeout},
};
use tonic::Code;

/// Longest wait for what happens at once on an idle machine.
const SOON: Duration = Duration::from_secs(10);

fn served() -> Served {
    let served = Served::start(quiet());
    ready_engine(&served.handle);
    served
}

#[tokio::test]
async fn a_message_that_is_too_large_is_refused_and_the_next_is_served() {
    let mut config = quiet();
    config.limits.message_bytes = 2048;
    let served = Served::start(config);
    ready_engine(&served.handle);
    let prompt = Prompt::Text("x".repeat(4096));
    let request = AdmitRequest { prompt: Some(prompt), ..admit(1, 1) };
    let error = served.connection.admission().admit(request).await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert!(error.message().contains("at most 2048 (limits.message_bytes)"), "{error}");
    admitted_one(&served).await;
}

#[tokio::test]
async fn a_body_with_pictures_is_read_as_installed() {
    let served = served();
    let picture = "A".repeat(20 << 20);
    let body = format!(
        r#"{{"model":"m","max_tokens":5,"messages":[{{"role":"user","content":[{{"type":"text","text":"What is this?"}},
        {{"type":"image_url","image_url":{{"url":"data:image/png;base64,{picture}"}}}}]}}]}}"#
    );
    let request = AdmitRequest { prompt: Some(Prompt::OpenaiBody(body.into())), ..AdmitRequest::default() };
    let _ = admitted(served.connection.admission().admit(request).await.unwrap().into_inner());
}

#[tokio::test]
async fn requests_that_take_too_much_memory_together_are_refused_until_others_have_ended() {
    let mut config = quiet();
    (config.limits.message_bytes, config.limits.buffered_bytes) = (65_536, 65_536);
    let served = Served::start(config);
    ready_engine(&served.handle);
    // 50,000 bytes of a message of 60,000: they are held until the call ends.
    let mut half = Half::open(&served, 50_000).await;
    let prompt = Prompt::Text("x".repeat(20_000));
    let request = AdmitRequest { prompt: Some(prompt), ..admit(1, 1) };
    let mut admission = served.connection.admission();
    let refused = async {
        loop {
            match admission.admit(request.clone()).await {
                Err(status) => return status,
                // Where this one came first, the half was refused, or will have been taken in by the next time.
                Ok(_) => half = Half::open(&served, 50_000).await,
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    assert_eq!(timeout(SOON, refused).await.unwrap().code(), Code::ResourceExhausted);
    // A small one is answered: what was admitted meanwhile may leave no room for it.
    served.connection.admission().admit(admit(1, 1)).await.unwrap();
    half.end().await;
    let taken = async {
        while admission.admit(request.clone()).await.is_err() {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(SOON, taken).await.unwrap();
}

#[tokio::test]
async fn lengths_that_are_only_declared_hold_up_nobody_else() {
    let mut config = quiet();
    (config.limits.message_bytes, config.limits.buffered_bytes) = (65_536, 65_536);
    let served = Served::start(config);
    ready_engine(&served.handle);
    let mut liars = Vec::new();
    for _ in 0..4 {
        liars.push(Half::open(&served, 0).await);
    }
    // Their headers are read before the call is: each connection is served in its turn.
    sleep(Duration::from_millis(100)).await;
    let request = AdmitRequest { prompt: Some(Prompt::Text("x".repeat(60_000))), ..admit(1, 1) };
    served.connection.admission().admit(request).await.unwrap();
}

/// What begins a connection of HTTP/2 (RFC 9113): the preface, and SETTINGS.
fn preface() -> Vec<u8> {
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &frame(4, 0, 0, &[])].concat()
}

/// A string of HPACK (RFC 7541), without Huffman coding.
fn string(text: &[u8]) -> Vec<u8> {
    [&hpack_length(text.len()), text].concat()
}

/// The fields of a call: :method POST and :scheme http by index, an encoded `authority`, the rest without indexing.
fn call(path: &str, authority: &[u8]) -> Vec<u8> {
    let mut fields = [&[0x83, 0x86], authority].concat();
    for (name, value) in [(":path", path), ("content-type", "application/grpc"), ("te", "trailers")] {
        fields.extend([vec![0], string(name.as_bytes()), string(value.as_bytes())].concat());
    }
    fields
}

/// A call whose message never comes in full.
struct Half(UnixStream);

impl Half {
    /// Sends HEADERS of a call, and DATA with the first `sent` bytes of a message of 60,000.
    async fn open(served: &Served, sent: usize) -> Self {
        let mut half = Self::call(served, &[]).await;
        let message = [[0, 0, 0, 0xea, 0x60].as_slice(), &vec![b'x'; sent]].concat();
        // The largest frame that may be sent.
        for data in message.chunks(16_384) {
            half.0.write_all(&frame(0, 0, 1, data)).await.unwrap();
        }
        half
    }

    /// Sends preface, SETTINGS, and HEADERS of a call of Admit with `more` headers.
    async fn call(served: &Served, more: &[(&str, &str)]) -> Self {
        let mut stream = UnixStream::connect(served.socket()).await.unwrap();
        let authority = [vec![1], string(b"localhost")].concat();
        let mut fields = call("/gpuadmit.v1.Admission/Admit", &authority);
        for (name, value) in more {
            fields.extend([vec![0], string(name.as_bytes()), string(value.as_bytes())].concat());
        }
        let bytes = [preface(), frame(1, 4, 1, &fields)].concat();
        stream.write_all(&bytes).await.unwrap();
        Self(stream)
    }

    /// The payload of the first HEADERS frame that comes back.
    async fn answer(&mut self) -> Vec<u8> {
        loop {
            let mut head = [0; 9];
            self.0.read_exact(&mut head).await.unwrap();
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; usize::try_from(length).unwrap()];
            self.0.read_exact(&mut payload).await.unwrap();
            if head[3] == 1 {
                return payload;
            }
        }
    }

    async fn end(&mut self) {
        self.0.shutdown().await.unwrap();
    }
}

/// A length with a prefix of seven bits (RFC 7541, 5.1), no Huffman coding.
fn hpack_length(length: usize) -> Vec<u8> {
    let Some(mut rest) = length.checked_sub(127) else { return vec![u8::try_from(length).unwrap()] };
    let mut bytes = vec![127];
    while rest >= 128 {
        bytes.push(u8::try_from(rest % 128).unwrap() | 128);
        rest /= 128;
    }
    bytes.push(u8::try_from(rest).unwrap());
    bytes
}

/// An HTTP/2 frame: length, kind, flags, stream, payload.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut bytes = length[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

#[tokio::test]
async fn a_header_that_is_too_large_is_refused_and_the_next_call_is_served() {
    let mut config = quiet();
    config.limits.header_bytes = 1024;
    let served = Served::start(config);
    ready_engine(&served.handle);
    let mut request = tonic::Request::new(admit(1, 1));
    request.metadata_mut().insert("x-long", "y".repeat(300).parse().unwrap());
    served.connection.admission().admit(request).await.unwrap();
    // By hand: a client that heeds the server's settings would not send it.
    let mut call = Half::call(&served, &[("x-long", &"y".repeat(2048))]).await;
    let answer = timeout(SOON, call.answer()).await.unwrap();
    // :status (index 8 of the static table) with a value of three bytes, "431" in Huffman coding: 011010 011001 00001.
    assert_eq!(answer.get(..5), Some(&[0x48, 0x83, 0x69, 0x90, 0xff][..]), "{answer:02x?}");
    admitted_one(&served).await;
}

/// Whether the other end closes `stream` soon. The server's own first frames are read away.
async fn is_closed(stream: &mut UnixStream) -> bool {
    let mut buffer = [0; 256];
    let ends = async { while stream.read(&mut buffer).await.is_ok_and(|bytes| bytes > 0) {} };
    timeout(Duration::from_secs(2), ends).await.is_ok()
}

#[tokio::test]
async fn a_connection_over_the_limit_is_closed_and_a_free_place_is_given() {
    let mut config = quiet();
    config.limits.connections = 2;
    let served = Served::start(config);
    let mut kept = UnixStream::connect(served.socket()).await.unwrap();
    let freed = UnixStream::connect(served.socket()).await.unwrap();
    let mut over = UnixStream::connect(served.socket()).await.unwrap();
    assert!(is_closed(&mut over).await);
    assert!(!is_closed(&mut kept).await);
    drop(freed);
    let served_again = async {
        while served.connection.node().status(StatusRequest::default()).await.is_err() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(SOON, served_again).await.unwrap();
}

#[tokio::test]
async fn an_idle_connection_is_closed_but_not_one_with_an_open_call() {
    let mut config = quiet();
    config.limits.idle_ms = 200;
    let served = Served::start(config);
    ready_engine(&served.handle);
    let mut talk = Talk::open(&served).await;
    let mut idle = UnixStream::connect(served.socket()).await.unwrap();
    assert!(is_closed(&mut idle).await);
    sleep(Duration::from_millis(500)).await;
    talk.admit(1, admit(1, 1)).await;
}

#[tokio::test]
async fn bytes_that_are_no_http2_end_the_connection_and_nothing_else() {
    let served = served();
    let mut stream = UnixStream::connect(served.socket()).await.unwrap();
    stream.write_all(&[0xff; 4096]).await.unwrap();
    assert!(is_closed(&mut stream).await);
    admitted_one(&served).await;
}

#[tokio::test]
async fn streams_over_the_limit_wait_for_a_place() {
    let mut config = quiet();
    config.limits.streams_per_connection = 1;
    let served = Served::start(config);
    let talk = Talk::open(&served).await;
    let mut node = served.connection.node();
    let second = node.status(StatusRequest::default());
    tokio::pin!(second);
    assert!(timeout(Duration::from_millis(200), &mut second).await.is_err());
    drop(talk);
    timeout(SOON, second).await.unwrap().unwrap();
}

/// The streams that were answered, of 1 and 3, before one was reset.
async fn answered(stream: &mut UnixStream) -> BTreeSet<u32> {
    let mut answered = BTreeSet::new();
    while answered.len() < 2 {
        let mut header = [0; 9];
        stream.read_exact(&mut header).await.unwrap();
        let [a, b, c, kind, _, id @ ..] = header;
        let length = usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap();
        stream.read_exact(&mut vec![0; length]).await.unwrap();
        match kind {
            1 => answered.insert(u32::from_be_bytes(id)),
            3 => break,
            _ => continue,
        };
    }
    answered
}

#[tokio::test]
async fn any_authority_is_accepted_however_it_is_encoded_and_in_whatever_pieces_it_comes() {
    let served = served();
    let values =
        ["localhost", "run%2Fgpuadmit%2Fgpuadmit.sock", "/run/gpuadmit/gpuadmit.sock", "a b", "[:", "é"];
    let named = |value: &[u8]| [vec![0x40], string(b":authority"), string(value)].concat();
    let indexed = |value: &[u8]| [vec![0x41], string(value)].concat();
    let mut fields: Vec<_> =
        values.iter().flat_map(|value| [named(value.as_bytes()), indexed(value.as_bytes())]).collect();
    // "/a/b" in the Huffman code: 011000 00011 011000 100011, filled up with ones.
    fields.push([0x41, 0x83, 0x60, 0x6c, 0x47].to_vec());
    for authority in fields {
        let first = frame(1, 5, 1, &call("/nobody/Ask", &authority));
        // The same again, by its place among the fields sent before.
        let second = frame(1, 5, 3, &call("/nobody/Ask", &[0xbe]));
        let bytes = [preface(), first, second].concat();
        for piece in [1, bytes.len()] {
            let mut stream = UnixStream::connect(served.socket()).await.unwrap();
            for bytes in bytes.chunks(piece) {
                stream.write_all(bytes).await.unwrap();
                tokio::task::yield_now().await;
            }
            let answered = timeout(SOON, answered(&mut stream)).await.unwrap();
            assert_eq!(answered, [1, 3].into(), "{authority:x?} in pieces of {piece}");
        }
    }
}
