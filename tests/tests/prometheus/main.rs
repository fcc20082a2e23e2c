//! The Prometheus endpoint over real sockets: what it tells, and what bad clients cannot do to it.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::string_slice,
    reason = "a test fails by panicking, its helpers included"
)]

mod page;
mod shipped;

use std::{net::SocketAddr, path::Path, time::Duration};

use gpuadmit_client::{Connection, v1};
use gpuadmit_sim::Scenario;
use gpuadmit_tests::served::{Served, admit, quiet, ready_engine};
use gpuadmitd::{config::Config, daemon::Daemon};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UnixStream},
    time::{Instant, sleep, timeout},
};

use self::page::{Page, converse, get, scrape};

/// Longest wait for what must come.
const PATIENCE: Duration = Duration::from_secs(30);

/// A configuration without sources whose metrics are at a free port.
fn exported() -> Config {
    let mut config = quiet();
    (config.prometheus.enabled, config.prometheus.address) = (true, "127.0.0.1:0".into());
    config
}

async fn status(connection: &Connection) -> v1::StatusResponse {
    connection.node().status(v1::StatusRequest::default()).await.unwrap().into_inner()
}

/// What `status` says of the endpoint, once `fine` holds of it.
async fn fares(connection: &Connection, fine: impl Fn(&v1::Source) -> bool) -> v1::Source {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let sources = status(connection).await.sources;
        if let Some(source) = sources.into_iter().find(|source| source.name == "prometheus") {
            if fine(&source) {
                return source;
            }
            assert!(Instant::now() < deadline, "{source:?}");
        }
        assert!(Instant::now() < deadline, "status says nothing of prometheus");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Where the endpoint is.
async fn address(connection: &Connection) -> SocketAddr {
    let source = fares(connection, |source| source.health() == v1::SourceHealth::Ok).await;
    let url = source.detail.split("http://").nth(1).unwrap();
    url.split('/').next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrape_tells_what_status_tells() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = exported();
    config.socket.path = folder.path().join("s");
    let connection = gpuadmit_client::connect(&config.socket.path).unwrap();
    let daemon = Daemon::start(config, Some(Scenario::default())).unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(daemon.serve(async {
        let _ = stopped.await;
    }));
    let at = address(&connection).await;
    let deadline = Instant::now() + PATIENCE;
    while status(&connection).await.decisions.unwrap().admitted < 10 {
        assert!(Instant::now() < deadline, "the simulated traffic asks for nothing");
        sleep(Duration::from_millis(100)).await;
    }

    let before = status(&connection).await;
    // A page, once made, is given out again for a moment.
    sleep(Duration::from_millis(300)).await;
    let page = scrape(at).await;
    let after = status(&connection).await;

    assert_eq!(
        page.get("gpuadmit_build_info", &[("version", &before.version), ("simulated", "true")]),
        Some(1.0)
    );
    assert_eq!(page.get("gpuadmit_reservations_limit", &[]), Some(4096.0));
    let admitted: f64 = page.all("gpuadmit_decisions_total").map(|(_, count)| count).sum();
    let (least, most) = (decided(&before), decided(&after));
    assert!((least..=most).contains(&admitted), "{admitted} is not {least} to {most}");
    assert_eq!(page.all("gpuadmit_decision_duration_seconds_count").count(), 1);
    assert!(page.get("gpuadmit_decision_duration_seconds_count", &[]).unwrap() >= least);
    engines_agree(&page, &before);
    devices_agree(&page, &before);
    for source in &before.sources {
        assert_eq!(
            page.get("gpuadmit_source_health", &[("source", &source.name), ("health", "failed")]),
            Some(0.0)
        );
    }
    let found = page.get("gpuadmit_events_total", &[("kind", "ENGINE_FOUND"), ("severity", "info")]);
    assert_eq!(found, Some(2.0));
    assert!(page.get("process_resident_memory_bytes", &[]).unwrap() > 1e6);
    assert!(page.get("process_cpu_seconds_total", &[]).unwrap() > 0.0);

    stop.send(()).unwrap();
    serving.await.unwrap().unwrap();
    assert!(TcpStream::connect(at).await.is_err(), "it ends with the daemon");
}

fn decided(status: &v1::StatusResponse) -> f64 {
    let counts = status.decisions.as_ref().unwrap();
    small(counts.admitted + counts.denied)
}

fn small(count: u64) -> f64 {
    f64::from(u32::try_from(count).unwrap())
}

fn engines_agree(page: &Page, status: &v1::StatusResponse) {
    assert_eq!(status.engines.len(), 2);
    for engine in &status.engines {
        let labels = [("engine", engine.id.as_str()), ("rank", "0")];
        let pool = &engine.pools[0];
        let blocks = |name: &str| page.get(&format!("gpuadmit_kv_cache_{name}_blocks"), &labels).unwrap();
        assert_eq!(blocks("capacity"), small(pool.blocks_total.unwrap()));
        assert_eq!(page.get("gpuadmit_kv_cache_block_size_tokens", &labels), Some(16.0));
        assert!(blocks("corrected_low") <= blocks("corrected"));
        assert!(blocks("corrected") <= blocks("corrected_high"));
        assert!(blocks("corrected_high") <= blocks("capacity"));
        let state = |state| page.get("gpuadmit_engine_state", &[("engine", &engine.id), ("state", state)]);
        assert_eq!((state("ready"), state("down")), (Some(1.0), Some(0.0)));
        let of = |name: &str, class| page.get(name, &[("engine", &engine.id), ("class", class)]).unwrap();
        for class in ["interactive", "standard", "batch"] {
            let (blocks, tokens) =
                (of("gpuadmit_headroom_blocks", class), of("gpuadmit_headroom_tokens", class));
            assert_eq!(tokens, blocks * 16.0);
            assert!(of("gpuadmit_headroom_lower_blocks", class) <= blocks);
        }
    }
}

fn devices_agree(page: &Page, status: &v1::StatusResponse) {
    assert_eq!(status.devices.len(), 2);
    for device in &status.devices {
        let memory = device.memory.unwrap();
        let of = |name: &str| page.get(name, &[("device", &device.uuid)]);
        let part =
            |part| page.get("gpuadmit_device_memory_bytes", &[("device", &device.uuid), ("part", part)]);
        let bytes = |bytes: u64| f64::from(u32::try_from(bytes >> 20).unwrap()) * 1_048_576.0;
        assert_eq!(of("gpuadmit_device_memory_size_bytes"), Some(bytes(memory.total_bytes)));
        assert_eq!(part("reserved"), memory.reserved_bytes.map(bytes));
        let parts = ["free", "reserved", "engine", "co_tenant", "unattributed"];
        let sum: f64 = parts.into_iter().filter_map(part).sum();
        assert_eq!(sum, bytes(memory.total_bytes));
        assert!(of("gpuadmit_device_memory_age_seconds").unwrap() < 60.0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn decisions_are_counted_once_by_class_reason_and_tenant() {
    let served = Served::start(exported());
    ready_engine(&served.handle);
    let at = address(&served.connection).await;
    let mut admission = served.connection.admission();
    let odd = "a\"b\\c{d=é}";
    for (prompt, tenant, class) in [
        (16, "", v1::PriorityClass::Standard),
        (16, odd, v1::PriorityClass::Batch),
        (1_700, odd, v1::PriorityClass::Interactive),
        (9_000, "big", v1::PriorityClass::Standard),
    ] {
        let mut request = admit(prompt, 16);
        request.tenant = Some(tenant.into()).filter(|tenant: &String| !tenant.is_empty());
        request.set_priority_class(class);
        admission.admit(request).await.unwrap();
    }
    let page = settled(at, 4.0).await;
    let of = |labels: &[(&str, &str)]| page.get("gpuadmit_decisions_total", labels);
    assert_eq!(of(&[("class", "standard"), ("verdict", "admitted")]), Some(1.0));
    assert_eq!(of(&[("class", "batch"), ("verdict", "admitted")]), Some(1.0));
    let too_long = [("class", "standard"), ("verdict", "denied"), ("reason", "CONTEXT_TOO_LONG")];
    assert_eq!(of(&too_long), Some(1.0));
    let larger_than_the_pool = [("class", "interactive"), ("verdict", "denied"), ("reason", "NEVER_FITS")];
    assert_eq!(of(&larger_than_the_pool), Some(1.0));
    let tenant = |name: &str, verdict| {
        let labels = [("tenant", name), ("verdict", verdict)];
        page.get("gpuadmit_tenant_decisions_total", &labels[usize::from(name.is_empty())..])
    };
    assert_eq!((tenant("", "admitted"), tenant("", "denied")), (Some(1.0), Some(0.0)));
    assert_eq!(tenant("big", "denied"), Some(1.0));
    assert_eq!((tenant(odd, "admitted"), tenant(odd, "denied")), (Some(1.0), Some(1.0)));
    assert_eq!(page.get("gpuadmit_decision_duration_seconds_count", &[]), Some(4.0));
    assert_eq!(page.get("gpuadmit_queue_wait_seconds_count", &[]), Some(0.0));
    served.stop().await;
}

/// The page once it shows `decisions` decisions.
async fn settled(at: SocketAddr, decisions: f64) -> Page {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let page = scrape(at).await;
        let shown: f64 = page.all("gpuadmit_decisions_total").map(|(_, count)| count).sum();
        if shown >= decisions {
            return page;
        }
        assert!(Instant::now() < deadline, "{shown} decisions");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tenants_without_end_have_series_with_an_end() {
    let served = Served::start(exported());
    ready_engine(&served.handle);
    let at = address(&served.connection).await;
    let mut admission = served.connection.admission();
    for number in 0..200 {
        let mut request = admit(9_000, 1);
        request.tenant = Some(format!("made-up-{number}"));
        admission.admit(request).await.unwrap();
    }
    let page = settled(at, 200.0).await;
    let name = "gpuadmit_tenant_decisions_total";
    assert_eq!(page.all(name).count(), 2 * 64 + 2);
    assert_eq!(page.get(name, &[("others", "true"), ("verdict", "denied")]), Some(200.0 - 64.0));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_unknown_has_no_sample() {
    let served = Served::start(exported());
    let at = address(&served.connection).await;
    let page = scrape(at).await;
    let named = ["gpuadmit_headroom_blocks", "gpuadmit_device_memory_bytes", "gpuadmit_warning_active"];
    for name in named {
        assert_eq!(page.types.get(name).map(String::as_str), Some("gauge"));
        assert_eq!(page.all(name).count(), 0, "{name}");
    }
    assert_eq!(page.get("gpuadmit_reservations", &[]), Some(0.0), "this one is known");
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_scraper_gets_its_format_and_only_metrics() {
    let served = Served::start(exported());
    let at = address(&served.connection).await;
    let classic = get(at, "/metrics", "text/plain").await.unwrap();
    assert!(classic.head.contains("content-type: text/plain; version=0.0.4"), "{}", classic.head);
    assert!(classic.body.contains("# TYPE gpuadmit_events_total counter\n"));
    let open = get(at, "/metrics", "application/openmetrics-text; version=1.0.0").await.unwrap();
    assert!(open.head.contains("content-type: application/openmetrics-text"), "{}", open.head);
    assert!(open.body.contains("# TYPE gpuadmit_events counter\n"));
    assert!(open.body.ends_with("# EOF\n"));
    let protobuf =
        "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
    let native = get(at, "/metrics", protobuf).await.unwrap();
    assert!(native.head.contains("content-type: application/vnd.google.protobuf"), "{}", native.head);
    assert!(native.body.contains("gpuadmit_decision_duration_seconds"));
    assert_eq!(get(at, "/", "*/*").await.unwrap().status, 200);
    assert_eq!(get(at, "/etc/passwd", "*/*").await.unwrap().status, 404);
    let post = "POST /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\nabc";
    let answer = converse(TcpStream::connect(at).await.unwrap(), post).await.unwrap();
    assert_eq!(answer.status, 405);
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unix_socket_serves_the_same_to_its_group_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("metrics.sock");
    let mut config = exported();
    (config.prometheus.address, config.prometheus.socket) = (String::new(), Some(path.clone()));
    let served = Served::start(config);
    let source = fares(&served.connection, |source| source.health() == v1::SourceHealth::Ok).await;
    assert_eq!(source.detail, format!("metrics at unix:{}", path.display()));
    assert_eq!(mode(&path), 0o660);
    let stream = UnixStream::connect(&path).await.unwrap();
    let answer = converse(stream, "GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert_eq!(Page::parse(&answer.body).get("gpuadmit_reservations", &[]), Some(0.0));
    served.stop().await;
    assert!(!path.exists(), "it leaves nothing behind");
}

fn mode(path: &Path) -> u32 {
    use std::os::unix::fs::PermissionsExt as _;
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[tokio::test(flavor = "multi_thread")]
async fn switched_off_there_is_no_endpoint() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let mut config = exported();
    (config.prometheus.enabled, config.prometheus.address) = (false, free.to_string());
    let served = Served::start(config);
    let source = fares(&served.connection, |_| true).await;
    assert_eq!(source.health(), v1::SourceHealth::Absent);
    assert_eq!(source.detail, "switched off (prometheus.enabled)");
    assert!(TcpStream::connect(free).await.is_err());
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_port_is_told_and_tried_again() {
    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = other.local_addr().unwrap();
    let mut config = exported();
    config.prometheus.address = at.to_string();
    let served = Served::start(config);
    let told = fares(&served.connection, |source| source.health() == v1::SourceHealth::Failed).await;
    assert!(told.detail.starts_with(&format!("cannot listen on {at}: ")), "{}", told.detail);
    drop(other);
    assert_eq!(address(&served.connection).await, at);
    assert_eq!(scrape(at).await.get("gpuadmit_reservations", &[]), Some(0.0));
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_says_nothing_is_sent_away() {
    let served = Served::start(exported());
    let at = address(&served.connection).await;
    let mut silent = TcpStream::connect(at).await.unwrap();
    let mut slow = TcpStream::connect(at).await.unwrap();
    let dripping = tokio::spawn(async move {
        for byte in b"GET /metrics HTTP/1.1\r\nx: ".iter().chain(std::iter::repeat(&b'a')) {
            if slow.write_all(&[*byte]).await.is_err() {
                return;
            }
            sleep(Duration::from_millis(200)).await;
        }
    });
    let mut rest = Vec::new();
    let _ = timeout(PATIENCE, silent.read_to_end(&mut rest)).await.expect("it is closed");
    timeout(PATIENCE, dripping).await.expect("it is closed").unwrap();
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_without_end_is_refused() {
    let served = Served::start(exported());
    let at = address(&served.connection).await;
    let many = (0..1000).fold(String::new(), |all, number| format!("{all}x-{number}: 1\r\n"));
    for headers in [format!("x: {}\r\n", "a".repeat(1 << 20)), many] {
        let request = format!("GET /metrics HTTP/1.1\r\nhost: x\r\n{headers}\r\n");
        let answer = converse(TcpStream::connect(at).await.unwrap(), &request).await;
        // Closed while we still send, the answer may be lost.
        assert!(answer.is_none_or(|answer| answer.status == 431), "a head of {} bytes", request.len());
    }
    assert!(scrape(at).await.get("gpuadmit_reservations", &[]).is_some());
    served.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_bounded_and_come_free_again() {
    let mut config = exported();
    config.prometheus.connections = 2;
    let served = Served::start(config);
    let at = address(&served.connection).await;
    let held = [TcpStream::connect(at).await.unwrap(), TcpStream::connect(at).await.unwrap()];
    let mut third = TcpStream::connect(at).await.unwrap();
    let mut rest = Vec::new();
    let _ = timeout(Duration::from_secs(5), third.read_to_end(&mut rest)).await.expect("closed at once");
    assert!(rest.is_empty());
    drop(held);
    let deadline = Instant::now() + PATIENCE;
    while get(at, "/metrics", "*/*").await.is_none() {
        assert!(Instant::now() < deadline, "no place comes free");
        sleep(Duration::from_millis(20)).await;
    }
    served.stop().await;
}
