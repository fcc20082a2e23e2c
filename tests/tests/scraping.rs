//! Engines that are made up of an HTTP server which answers what it is told: how they are asked, and how each way of
//! not answering is told.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers included")]

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};

use gpuadmit_core::observation::{EngineFacts, EngineReading, Observation, ScrapeFailure, SourceHealth};
use gpuadmitd::source::vllm::{
    self, ConfiguredEngine, Options, Vllm, address::Address, cost::Pace, http::Client, reading::Body,
    scrape::Scraper,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpListener, UnixListener},
    sync::mpsc,
    time::timeout,
};

/// Longest wait for what must come.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long an engine may take to answer here.
const DEADLINE: Duration = Duration::from_secs(5);
const PACE: Pace =
    Pace { cpu_share: 0.01, min_interval: Duration::from_millis(50), max_interval: Duration::from_secs(1) };

/// From a request's head to the bytes of the whole answer.
type Answers = Arc<dyn Fn(&str) -> Vec<u8> + Send + Sync>;

fn answer(status: u16, body: &[u8]) -> Vec<u8> {
    let mut answer = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n", body.len()).into_bytes();
    answer.extend_from_slice(body);
    answer
}

async fn converse(mut stream: impl AsyncRead + AsyncWrite + Unpin, answers: Answers) {
    let mut head = vec![];
    while let Ok(byte) = stream.read_u8().await {
        head.push(byte);
        if head.ends_with(b"\r\n\r\n") {
            let answer = answers(&String::from_utf8_lossy(&head));
            if stream.write_all(&answer).await.is_err() {
                return;
            }
            head.clear();
        }
    }
}

async fn serve(answers: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answers: Answers = Arc::new(answers);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(converse(stream, answers.clone()));
        }
    });
    address
}

fn capture(name: &str) -> Vec<u8> {
    fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("data/vllm-metrics/{name}.prom"))).unwrap()
}

fn client(address: SocketAddr) -> Client {
    Client::new(Address::parse(&format!("http://{address}")).unwrap(), Some("the-key"))
}

async fn scrape(answers: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Result<Body, ScrapeFailure> {
    let mut client = client(serve(answers).await);
    Scraper::new(PACE, DEADLINE).scrape(&mut client).await.map_err(|failed| failed.failure)
}

#[tokio::test]
async fn a_reading_has_the_span_and_the_cost_of_its_scrape() {
    let mut client = client(serve(|_| answer(200, &capture("0.32.0/load"))).await);
    let mut scraper = Scraper::new(PACE, DEADLINE);
    let first = scraper.scrape(&mut client).await.unwrap().reading;
    assert_eq!(first.ranks.len(), 1);
    assert!(first.span.not_before.0 > 0 && first.span.not_before < first.span.not_after);
    // The first asks for histograms (2 ms of CPU at 1 % of a core), the next does not (1.2 ms) and carries them over.
    assert_eq!(first.interval, Duration::from_millis(200));
    let second = scraper.scrape(&mut client).await.unwrap().reading;
    assert_eq!((second.cpu_cost, second.interval), (Duration::from_micros(1200), Duration::from_millis(120)));
    assert!(second.span.not_before >= first.span.not_after);
    assert_eq!(EngineReading { span: first.span, ..second }.ranks, first.ranks);
}

#[tokio::test]
async fn where_the_filtered_form_does_not_work_the_full_one_serves() {
    for refusal in [answer(200, b""), answer(404, b"not found"), answer(200, b"<html></html>\n")] {
        let asked = Arc::new(Mutex::new(vec![]));
        let log = asked.clone();
        let address = serve(move |head| {
            let filtered = head.starts_with("GET /metrics/?name[]=");
            log.lock().unwrap().push(filtered);
            if filtered { refusal.clone() } else { answer(200, &capture("0.32.0-data-parallel-2/load")) }
        });
        let mut client = client(address.await);
        let mut scraper = Scraper::new(PACE, DEADLINE);
        for _ in 0..3 {
            let reading = scraper.scrape(&mut client).await.unwrap().reading;
            assert_eq!(reading.ranks.len(), 2);
            // 64,232 bytes: 6 ms × 64,232 / 51,200 at 1 % of a core.
            assert_eq!(reading.interval.as_millis(), 752);
        }
        assert_eq!(
            *asked.lock().unwrap(),
            [true, false, false, false],
            "the filtered form is not tried each time"
        );
    }
}

#[tokio::test]
async fn every_way_of_not_answering_is_told() {
    let head = b"HTTP/1.1 200 x\r\ncontent-length: 1000\r\n\r\nvllm:num_requests_running 1\n".to_vec();
    let endless = format!("HTTP/1.1 200 x\r\ncontent-length: {}\r\n\r\n", 1u64 << 40).into_bytes();
    let mut endless_answer = endless.clone();
    endless_answer.resize(endless.len() + (9 << 20), b'\n');
    assert_eq!(scrape(|_| answer(401, b"")).await, Err(ScrapeFailure::Status(401)));
    assert_eq!(scrape(|_| answer(503, b"")).await, Err(ScrapeFailure::Status(503)));
    assert_eq!(scrape(|_| answer(200, b"python_info 1\n")).await, Err(ScrapeFailure::NoSeries));
    let malformed =
        |scraped: Result<Body, ScrapeFailure>| matches!(scraped, Err(ScrapeFailure::Malformed(_)));
    assert!(malformed(scrape(|_| answer(200, b"<html>\n")).await));
    assert!(malformed(scrape(|_| b"SSH-2.0-OpenSSH_9\r\n\r\n".to_vec()).await));
    assert!(malformed(scrape(move |_| endless_answer.clone()).await));
    let mut client = client(serve(move |_| head.clone()).await);
    let failed = Scraper::new(PACE, Duration::from_millis(300)).scrape(&mut client).await.unwrap_err();
    assert_eq!(failed.failure, ScrapeFailure::TimedOut, "a body that does not come is a slow one");
    assert!(failed.span.not_before < failed.span.not_after);
}

#[tokio::test]
async fn nothing_that_listens_is_refused_and_a_cut_body_is_no_reading() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let failed = Scraper::new(PACE, DEADLINE).scrape(&mut client(address)).await.unwrap_err();
    assert_eq!(failed.failure, ScrapeFailure::Refused);

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let _ = stream
                .write_all(b"HTTP/1.1 200 x\r\ncontent-length: 99\r\n\r\nvllm:num_requests_running 1\n")
                .await;
        }
    });
    let failed = Scraper::new(PACE, DEADLINE).scrape(&mut client(address)).await.unwrap_err();
    assert!(matches!(failed.failure, ScrapeFailure::Connection(_)), "{failed:?}");
}

#[tokio::test]
async fn a_kept_connection_that_the_server_closed_is_no_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        // One answer per connection, though it said nothing of closing.
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request).await;
            let _ = stream.write_all(&answer(200, b"vllm:num_requests_running 1\n")).await;
        }
    });
    let (mut client, mut scraper) = (client(address), Scraper::new(PACE, DEADLINE));
    for _ in 0..5 {
        assert!(scraper.scrape(&mut client).await.is_ok());
    }
}

#[tokio::test]
async fn a_unix_socket_is_scraped_and_the_key_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("engine.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let answers: Answers = Arc::new(|head| match head.contains("authorization: Bearer the-key\r\n") {
        true => answer(200, b"vllm:num_requests_running 1\n"),
        false => answer(401, b""),
    });
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(converse(stream, answers.clone()));
        }
    });
    let address = || Address::parse(&format!("unix:{}", path.display())).unwrap();
    let mut scraper = Scraper::new(PACE, DEADLINE);
    assert!(scraper.scrape(&mut Client::new(address(), Some("the-key"))).await.is_ok());
    let refused = scraper.scrape(&mut Client::new(address(), None)).await.unwrap_err();
    assert_eq!(refused.failure, ScrapeFailure::Status(401));
}

/// A source with one configured engine, and what it observes.
fn source(address: SocketAddr) -> (Vllm, mpsc::UnboundedReceiver<Observation>) {
    let (sender, observed) = mpsc::unbounded_channel();
    let engine = ConfiguredEngine {
        id: "mine".into(),
        address: Address::parse(&format!("http://{address}")).unwrap(),
        models: vec![],
        api_key: None,
    };
    let options = Options { discover: false, engines: vec![engine], ..Options::default() };
    (vllm::spawn(options, Arc::new(move |observation| drop(sender.send(observation)))), observed)
}

async fn first<T>(
    observed: &mut mpsc::UnboundedReceiver<Observation>,
    wanted: impl Fn(Observation) -> Option<T>,
) -> T {
    let search = async {
        while let Some(observation) = observed.recv().await {
            if let Some(found) = wanted(observation) {
                return found;
            }
        }
        panic!("the source ended");
    };
    timeout(PATIENCE, search).await.unwrap()
}

fn identified(observation: Observation) -> Option<EngineFacts> {
    match observation {
        Observation::Engine(facts) if !facts.models.is_empty() => Some(*facts),
        _ => None,
    }
}

#[tokio::test]
async fn a_configured_engine_is_asked_who_it_is() {
    let models = br#"{"data":[{"id":"tiny","max_model_len":2048,"parent":null}]}"#;
    let address = serve(|head| match head.split(' ').nth(1) {
        Some("/version") => answer(200, br#"{"version":"0.32.0"}"#),
        Some("/v1/models") => answer(200, models),
        _ => answer(200, &capture("0.32.0-data-parallel-2/load")),
    });
    let (source, mut observed) = source(address.await);
    let facts = first(&mut observed, identified).await;
    assert_eq!(
        (&*facts.engine, facts.version.as_deref(), facts.version_known),
        ("mine", Some("vllm 0.32.0"), true)
    );
    assert_eq!(facts.models.iter().map(|model| &*model.name).collect::<Vec<_>>(), ["tiny"]);
    assert_eq!((facts.data_parallel_size, facts.adapters_at_runtime), (2, false));
    let report = first(&mut observed, |observation| match observation {
        Observation::Source(report) => Some(report),
        _ => None,
    });
    let report = report.await;
    assert_eq!((&*report.source, report.health), ("metrics/mine", SourceHealth::Ok));
    timeout(PATIENCE, source.stop()).await.unwrap();
    while let Ok(Some(_)) = timeout(PATIENCE, observed.recv()).await {}
    assert!(observed.is_closed(), "its tasks have ended");
}

#[tokio::test]
async fn an_engine_that_wants_a_key_is_alive_and_known_by_its_labels() {
    let address = serve(|head| match head.split(' ').nth(1) {
        Some("/version") => answer(200, br#"{"version":"0.99.0"}"#),
        Some("/v1/models") => answer(401, b"{}"),
        _ => answer(200, &capture("0.32.0/load")),
    });
    let (_source, mut observed) = source(address.await);
    let facts = first(&mut observed, identified).await;
    assert_eq!(facts.models.iter().map(|model| &*model.name).collect::<Vec<_>>(), ["tiny"]);
    assert!(!facts.version_known, "a version that nobody has compared");
    let reading = first(&mut observed, |observation| match observation {
        Observation::Reading { reading, .. } => Some(reading),
        _ => None,
    });
    assert_eq!(reading.await.ranks.len(), 1);
}
