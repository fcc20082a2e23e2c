//! Malformed requests and configurations, each with the error that its sender gets. None ends the daemon.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers included")]

use gpuadmit_client::Connection;
use gpuadmit_proto::v1::{
    AdmitRequest, AdoptRequest, CompleteRequest, ExplainRequest, ProgressRequest, ReleaseGpuRequest,
    RequestKey, ReservationRef, SessionRequest, StatusRequest, WatchHeadroomRequest, admit_request::Prompt,
    explain_request::What, reservation_ref::Ref, session_request::Call, session_response::Answer,
};
use gpuadmit_tests::served::{Served, admit, quiet, ready_engine};
use gpuadmitd::config::Config;
use tokio_stream::StreamExt as _;
use tonic::{Code, Status};

fn long(bytes: usize) -> Option<String> {
    Some("x".repeat(bytes))
}

fn bad_admits() -> Vec<(AdmitRequest, &'static str)> {
    let good = || admit(1, 1);
    let with = |prompt| AdmitRequest { prompt: Some(prompt), ..good() };
    vec![
        (
            AdmitRequest { model: String::new(), ..good() },
            "model: missing; 1 to 256 bytes without control characters",
        ),
        (
            AdmitRequest { model: "x".repeat(257), ..good() },
            "model: 257 bytes are too many; 1 to 256 bytes without control characters",
        ),
        (
            AdmitRequest { engine: long(129), ..good() },
            "engine: 129 bytes are too many; at most 128 bytes without control characters",
        ),
        (
            AdmitRequest { prompt: None, ..good() },
            "prompt: missing; one of prompt_tokens, openai_body, text, prompt_bytes",
        ),
        (with(Prompt::PromptTokens(1 << 32)), "prompt_tokens: 4294967296 is not allowed; 0 to 4294967295"),
        (
            with(Prompt::PromptBytes(u64::MAX)),
            "prompt_bytes: 18446744073709551615 is not allowed; 0 to 4294967295",
        ),
        (AdmitRequest { max_tokens: Some(0), ..good() }, "max_tokens: 0 is not allowed; 1 to 4294967295"),
        (
            AdmitRequest { max_tokens: Some(u64::MAX), ..good() },
            "max_tokens: 18446744073709551615 is not allowed; 1 to 4294967295",
        ),
        (AdmitRequest { n: Some(0), ..good() }, "n: 0 is not allowed; 1 to 128"),
        (AdmitRequest { n: Some(u32::MAX), ..good() }, "n: 4294967295 is not allowed; 1 to 128"),
        (AdmitRequest { priority_class: 4, ..good() }, "priority_class: 4 is not allowed; 0 to 3"),
        (AdmitRequest { priority_class: -1, ..good() }, "priority_class: -1 is not allowed; 0 to 3"),
        (
            AdmitRequest { tenant: long(129), ..good() },
            "tenant: 129 bytes are too many; at most 128 bytes without control characters",
        ),
        (
            AdmitRequest { tenant: Some("a\u{1b}[2J".into()), ..good() },
            "tenant: contains '\\u{1b}'; at most 128 bytes without control characters",
        ),
        (
            AdmitRequest { model: "m\n".into(), ..good() },
            "model: contains '\\n'; 1 to 256 bytes without control characters",
        ),
        (
            AdmitRequest { session_key: long(1000), ..good() },
            "session_key: 1000 bytes are too many; at most 128 bytes without control characters",
        ),
        (
            AdmitRequest { ttft_objective_ms: Some(0), ..good() },
            "ttft_objective_ms: 0 is not allowed; 1 to 3600000",
        ),
        (
            AdmitRequest { pace_objective_ms: Some(60_001), ..good() },
            "pace_objective_ms: 60001 is not allowed; 1 to 60000",
        ),
        (AdmitRequest { wait_ms: 600_001, ..good() }, "wait_ms: 600001 is not allowed; 0 to 600000"),
        (
            AdmitRequest { request_id: long(129), ..good() },
            "request_id: 129 bytes are too many; at most 128 bytes without control characters",
        ),
    ]
}

fn is_invalid(error: &Status, message: &str) {
    assert_eq!((error.code(), error.message()), (Code::InvalidArgument, message));
}

async fn still_admits(connection: &Connection) {
    let response = connection.admission().admit(admit(1, 1)).await.unwrap().into_inner();
    assert!(response.result.is_some());
}

#[tokio::test]
async fn admits_out_of_range_name_the_field_the_value_and_what_is_allowed() {
    let served = Served::start(quiet());
    ready_engine(&served.handle);
    for (request, message) in bad_admits() {
        is_invalid(&served.connection.admission().admit(request).await.unwrap_err(), message);
    }
    still_admits(&served.connection).await;
}

#[tokio::test]
async fn the_largest_values_that_are_allowed_are_taken() {
    let served = Served::start(quiet());
    ready_engine(&served.handle);
    let request = AdmitRequest {
        engine: long(128),
        tenant: long(128),
        session_key: long(128),
        request_id: long(128),
        n: Some(128),
        wait_ms: 600_000,
        ttft_objective_ms: Some(3_600_000),
        pace_objective_ms: Some(60_000),
        model: "x".repeat(256),
        ..admit(u32::MAX.into(), u32::MAX.into())
    };
    served.connection.admission().admit(request).await.unwrap();
    let text = "\u{10FFFF}\0".repeat(1000);
    let request = AdmitRequest { prompt: Some(Prompt::Text(text)), ..admit(1, 1) };
    served.connection.admission().admit(request).await.unwrap();
}

#[tokio::test]
async fn a_prompt_is_never_in_an_error() {
    let served = Served::start(quiet());
    for prompt in [Prompt::Text("tell nobody".into()), Prompt::OpenaiBody(b"{\"tell nobody\"".to_vec())] {
        let request = AdmitRequest { prompt: Some(prompt), n: Some(0), ..admit(1, 1) };
        let error = served.connection.admission().admit(request).await.unwrap_err();
        assert!(!error.to_string().contains("nobody"), "{error}");
    }
}

fn by_request(tenant: Option<String>, request_id: String) -> Option<ReservationRef> {
    Some(ReservationRef { r#ref: Some(Ref::Request(RequestKey { tenant, request_id })) })
}

fn bad_references() -> [(Option<ReservationRef>, &'static str); 4] {
    let absent = "reservation: missing; one of reservation_id, request";
    [
        (None, absent),
        (Some(ReservationRef { r#ref: None }), absent),
        (by_request(None, String::new()), "reservation.request.request_id: missing; 1 to 128 bytes"),
        (
            by_request(long(129), "r".into()),
            "reservation.request.tenant: 129 bytes are too many; at most 128 bytes",
        ),
    ]
}

#[tokio::test]
async fn progress_complete_and_explain_need_a_reference() {
    let served = Served::start(quiet());
    let mut admission = served.connection.admission();
    for (reservation, message) in bad_references() {
        let progress = ProgressRequest { reservation: reservation.clone(), generated_tokens: 1 };
        is_invalid(&admission.progress(progress).await.unwrap_err(), message);
        let complete = CompleteRequest { reservation: reservation.clone(), ..CompleteRequest::default() };
        is_invalid(&admission.complete(complete).await.unwrap_err(), message);
        if let Some(reservation) = reservation {
            let explain = ExplainRequest { what: Some(What::Reservation(reservation)) };
            is_invalid(&served.connection.node().explain(explain).await.unwrap_err(), message);
        }
    }
}

#[tokio::test]
async fn an_unknown_outcome_is_refused() {
    let served = Served::start(quiet());
    let complete =
        CompleteRequest { reservation: by_request(None, "r".into()), outcome: 9, ..Default::default() };
    let error = served.connection.admission().complete(complete).await.unwrap_err();
    is_invalid(&error, "outcome: 9 is not allowed; 0 to 4");
}

#[tokio::test]
async fn calls_to_the_node_out_of_range_are_refused() {
    let served = Served::start(quiet());
    let mut node = served.connection.node();
    let error = node.status(StatusRequest { events: Some(257) }).await.unwrap_err();
    is_invalid(&error, "events: 257 is not allowed; 0 to 256");
    let error = node.explain(ExplainRequest { what: None }).await.unwrap_err();
    is_invalid(&error, "what: missing; one of reservation, last");
    for last in [0, 257] {
        let error = node.explain(ExplainRequest { what: Some(What::Last(last)) }).await.unwrap_err();
        is_invalid(&error, &format!("last: {last} is not allowed; 1 to 256"));
    }
    for min_interval_ms in [0, 9, 60_001] {
        let request = WatchHeadroomRequest { min_interval_ms: Some(min_interval_ms), engine: None };
        let error = node.watch_headroom(request).await.unwrap_err();
        is_invalid(&error, &format!("min_interval_ms: {min_interval_ms} is not allowed; 10 to 60000"));
    }
    let request = WatchHeadroomRequest { min_interval_ms: None, engine: long(129) };
    let error = node.watch_headroom(request).await.unwrap_err();
    is_invalid(&error, "engine: 129 bytes are too many; at most 128 bytes");
    for duration_ms in [1, 999, 86_400_001] {
        let error = node.release_gpu(ReleaseGpuRequest { duration_ms }).await.unwrap_err();
        is_invalid(&error, &format!("duration_ms: {duration_ms} is not allowed; 0, or 1000 to 86400000"));
    }
}

#[tokio::test]
async fn a_session_tells_what_is_wrong_with_a_call_and_goes_on() {
    let served = Served::start(quiet());
    let ids = AdoptRequest { reservation_ids: vec![1; 1025] };
    let calls = [
        (None, "call: missing; one of admit, progress, complete, adopt"),
        (Some(Call::Adopt(ids)), "reservation_ids: 1025 ids are too many; at most 1024"),
        (Some(Call::Admit(AdmitRequest::default())), ""),
        (
            Some(Call::Complete(CompleteRequest::default())),
            "reservation: missing; one of reservation_id, request",
        ),
    ];
    let requests: Vec<_> = (0..)
        .zip(calls.clone())
        .map(|(correlation_id, (call, _))| SessionRequest { correlation_id, call })
        .collect();
    let answers = served.connection.admission().session(tokio_stream::iter(requests)).await.unwrap();
    let answers: Vec<_> = answers.into_inner().map(|answer| answer.unwrap().answer.unwrap()).collect().await;
    assert_eq!(answers.len(), calls.len());
    for (answer, (_, message)) in answers.iter().zip(&calls) {
        let Answer::Error(error) = answer else { panic!("{answer:?} is no error") };
        assert_eq!(error.code, 3);
        assert!(error.message.contains(message), "{} is not {message}", error.message);
    }
}

/// Configurations and their whole error.
const OUT_OF_RANGE: &[(&str, &str)] = &[
    (
        "socket.path = 'relative'",
        "socket.path: \"relative\" is not allowed; an absolute path of at most 107 bytes",
    ),
    (
        "socket.mode = '0999'",
        "socket.mode: \"0999\" is not allowed; octal permission bits, \"0600\" to \"0777\"",
    ),
    (
        "socket.mode = '0000'",
        "socket.mode: \"0000\" is not allowed; octal permission bits, \"0600\" to \"0777\"",
    ),
    ("socket.group = ''", "socket.group: \"\" is not allowed; 1 to 32 bytes"),
    ("limits.connections = 0", "limits.connections: 0 is not allowed; 1 to 4096"),
    ("limits.streams_per_connection = 5000", "limits.streams_per_connection: 5000 is not allowed; 1 to 4096"),
    ("limits.message_bytes = 1", "limits.message_bytes: 1 is not allowed; 1024 to 67108864"),
    (
        "limits.buffered_bytes = 1",
        "limits.buffered_bytes: 1 is not allowed; limits.message_bytes to 17179869184",
    ),
    ("limits.header_bytes = 0", "limits.header_bytes: 0 is not allowed; 1024 to 1048576"),
    ("limits.idle_ms = 0", "limits.idle_ms: 0 is not allowed; 100 to 86400000"),
    ("limits.keepalive_ms = 1", "limits.keepalive_ms: 1 is not allowed; 1000 to 86400000"),
    ("limits.reservations = 0", "limits.reservations: 0 is not allowed; 1 to 1000000"),
    ("limits.snapshot_interval_ms = 1", "limits.snapshot_interval_ms: 1 is not allowed; 10 to 10000"),
    ("limits.workers = 0", "limits.workers: 0 is not allowed; 1 to 64"),
    ("admission.ceiling = 0.0", "admission.ceiling: 0.0 is not allowed; more than 0, at most 1"),
    ("admission.ceiling = nan", "admission.ceiling: NaN is not allowed; more than 0, at most 1"),
    ("admission.ceiling = inf", "admission.ceiling: inf is not allowed; more than 0, at most 1"),
    ("admission.default_max_tokens = 0", "admission.default_max_tokens: 0 is not allowed; 1 to 4294967295"),
    ("admission.max_tokens_limit = 0", "admission.max_tokens_limit: 0 is not allowed; 1 to 4294967295"),
    ("admission.lease_ms = 0", "admission.lease_ms: 0 is not allowed; 1000 to 86400000"),
    ("admission.orphan_cap_ms = 1", "admission.orphan_cap_ms: 1 is not allowed; 1000 to 86400000"),
    (
        "admission.co_tenant_growth_bytes = 1",
        "admission.co_tenant_growth_bytes: 1 is not allowed; 1048576 to 1099511627776",
    ),
    (
        "nvml.library = './libnvidia-ml.so'",
        "nvml.library: \"./libnvidia-ml.so\" is not allowed; a library name, or an absolute path",
    ),
    ("nvml.memory_interval_ms = 0", "nvml.memory_interval_ms: 0 is not allowed; 10 to 10000"),
    ("vllm.scrape_cpu_share = 2", "vllm.scrape_cpu_share: 2.0 is not allowed; more than 0, at most 1"),
    (
        "vllm.scrape_interval_max_ms = 10",
        "vllm.scrape_interval_max_ms: 10 is not allowed; vllm.scrape_interval_min_ms to 60000",
    ),
    (
        "log.level = 'a=b=c'",
        "log.level: \"a=b=c\" is not allowed; error, warn, info, debug, trace, or directives like \
         \"info,gpuadmitd::source=debug\"",
    ),
    (
        "[[engine]]\nid = ''\naddress = 'http://h:1'",
        "engine[0].id: \"\" is not allowed; 1 to 128 bytes without control characters",
    ),
    (
        "[[engine]]\nid = 'a'\naddress = 'http://h:1'\n[[engine]]\nid = 'a'\naddress = 'http://h:2'",
        "engine[1].id: \"a\" is not allowed; each id once",
    ),
    (
        "[[engine]]\nid = 'a'\naddress = 'localhost:8000'",
        "engine[0].address: \"localhost:8000\" is not allowed; http://HOST:PORT or unix:/PATH",
    ),
    (
        "[[engine]]\nid = 'a'\naddress = 'https://h:1'",
        "engine[0].address: \"https://h:1\" is not allowed; http://HOST:PORT or unix:/PATH",
    ),
    (
        "[[engine]]\nid = 'a'\naddress = 'http://h:1'\nmodels = ['']",
        "engine[0].models: \"\" is not allowed; 1 to 256 bytes without control characters",
    ),
    (
        "[[engine]]\nid = 'a'\naddress = 'http://h:1'\napi_key_file = 'key'",
        "engine[0].api_key_file: \"key\" is not allowed; an absolute path",
    ),
];

fn load(content: &[u8]) -> Result<Config, String> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("c.toml");
    std::fs::write(&file, content).unwrap();
    Config::load(&file).map_err(|error| error.to_string())
}

#[test]
fn configurations_out_of_range_name_the_key_the_value_and_what_is_allowed() {
    for (content, message) in OUT_OF_RANGE {
        assert_eq!(load(content.as_bytes()).unwrap_err(), *message);
    }
}

#[test]
fn configurations_of_another_form_name_the_place() {
    let wrong: &[(&[u8], &[&str])] = &[
        (b"colour = 1", &["unknown field `colour`", "line 1"]),
        (b"[limits]\nconections = 1", &["unknown field `conections`", "line 2"]),
        (b"mode = 'strict'", &["unknown variant `strict`", "`enforce`", "`observe`"]),
        (b"[limits]\nidle_ms = -1", &["idle_ms = -1", "expected u64"]),
        (b"[limits]\nidle_ms = '1 s'", &["idle_ms = '1 s'", "expected u64"]),
        (b"[limits]\nconnections = 99999999999", &["99999999999", "expected u32"]),
        (b"[[engine]]\nid = 'a'", &["missing field `address`"]),
        (b"engine = 1", &["engine = 1", "expected a sequence"]),
        (b"[limits]\n[limits]", &["line 2", "duplicate key"]),
        (b"mode = ", &["line 1"]),
        (b"\xff\xfe", &["not UTF-8"]),
    ];
    for (content, parts) in wrong {
        let error = load(content).unwrap_err();
        for part in *parts {
            assert!(error.contains(part), "{part:?} is not in: {error}");
        }
    }
}

#[test]
fn a_configuration_that_is_too_large_or_absent_or_a_folder_is_refused() {
    let too_large = load(&vec![b'#'; (1 << 20) + 1]).unwrap_err();
    assert!(too_large.ends_with("it is too large; at most 1048576 bytes"), "{too_large}");
    let absent = Config::load("/nonexistent/gpuadmit.toml".as_ref()).unwrap_err().to_string();
    assert!(absent.starts_with("cannot read /nonexistent/gpuadmit.toml:"), "{absent}");
    let folder = tempfile::tempdir().unwrap();
    let folder = Config::load(folder.path()).unwrap_err().to_string();
    assert!(folder.contains("Is a directory"), "{folder}");
}
