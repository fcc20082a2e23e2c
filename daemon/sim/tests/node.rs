//! The simulated node from outside: over its ports, as a daemon and a gateway meet it.

#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may fail by panicking")]

use std::{net::SocketAddr, sync::Arc, time::Duration};

use gpuadmit_sim::{
    Scenario, SimNode,
    traffic::{Ended, Gate, Gated, SimRequest},
};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::Mutex,
    time::{sleep, timeout},
};

/// Far longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// One engine of 1 ms steps, no traffic.
const QUIET: &str = "
    [[engine]]
    name = 'a'
    gpus = [0]
    max_model_len = 512
    step_base_us = 1000
    step_per_sequence_us = 0
    step_per_prefill_token_us = 0
    [traffic]
    requests_per_second = 0.0
";

fn start(text: &str) -> (SimNode, SocketAddr) {
    let node = SimNode::start(Scenario::parse(text).unwrap()).unwrap();
    let address = node.engines()[0].address;
    (node, address)
}

/// Sends a request and reads to the end. Returns status and what came behind the head.
async fn http(address: SocketAddr, method: &str, path: &str, body: &str) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address).await?;
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await??;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::UnexpectedEof)?;
    Ok((head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned()))
}

async fn get(address: SocketAddr, path: &str) -> (u16, String) {
    http(address, "GET", path, "").await.unwrap()
}

async fn post(address: SocketAddr, path: &str, body: &str) -> (u16, Value) {
    let (status, body) = http(address, "POST", path, body).await.unwrap();
    (status, serde_json::from_str(&body).unwrap())
}

/// A series' value, by its name with the labels of the engine.
async fn series(address: SocketAddr, name: &str) -> f64 {
    let (_, page) = get(address, "/metrics").await;
    let start = format!("{name}{{engine=\"0\",model_name=\"sim-8b\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&start)).unwrap().parse().unwrap()
}

async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let wait = async {
        while !holds().await {
            sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(timeout(PATIENCE, wait).await.is_ok(), "{what} did not come about");
}

#[tokio::test]
async fn an_engine_answers_as_vllm_does() {
    let (_node, address) = start(QUIET);
    until("listening", || async { TcpStream::connect(address).await.is_ok() }).await;
    assert_eq!(get(address, "/health").await, (200, String::new()));
    assert_eq!(get(address, "/version").await, (200, r#"{"version":"0.32.0"}"#.into()));
    assert_eq!(get(address, "/server_info").await.0, 404);
    assert_eq!(get(address, "/v1/completions").await.0, 405);
    let models: Value = serde_json::from_str(&get(address, "/v1/models").await.1).unwrap();
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][0]["max_model_len"]),
        (&"sim-8b".into(), &512.into())
    );
}

#[tokio::test]
async fn the_filtered_scrape_gives_the_series_asked_for_and_no_other() {
    let (_node, address) = start(QUIET);
    until("listening", || async { TcpStream::connect(address).await.is_ok() }).await;
    let path = "/metrics/?name[]=vllm:kv_cache_usage_perc&name[]=vllm:request_success_total";
    let (_, page) = get(address, path).await;
    let series: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
    assert_eq!(series.len(), 6, "{page}");
    assert_eq!(series[0], "vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"sim-8b\"} 0.0");
    assert_eq!(
        series[1],
        "vllm:request_success_total{engine=\"0\",finished_reason=\"stop\",model_name=\"sim-8b\"} 0.0"
    );
    let (_, whole) = get(address, &path.replacen("/?", "?", 1)).await;
    assert!(whole.contains("vllm:generation_tokens_total"), "without the slash the filter is not heeded");
}

#[tokio::test]
async fn each_series_of_the_simulated_engine_is_one_of_the_real_one() {
    let real = include_str!("vllm-0.32.0-load.prom");
    let (_node, address) = start(QUIET);
    until("listening", || async { TcpStream::connect(address).await.is_ok() }).await;
    let (_, page) = get(address, "/metrics").await;
    // Of a series, name and label names.
    let shape = |line: &str| {
        let (name, labels) = line.split_once('{').unwrap_or((line.split(' ').next().unwrap(), ""));
        let keys: Vec<_> = labels
            .split(',')
            .filter_map(|label| label.split_once('='))
            .map(|(key, _)| key.to_owned())
            .collect();
        (name.to_owned(), keys)
    };
    let known: Vec<_> = real.lines().filter(|line| !line.starts_with('#')).map(shape).collect();
    let mut seen = 0;
    for line in page.lines().filter(|line| !line.starts_with('#') && !line.contains("cache_config_info")) {
        assert!(known.contains(&shape(line)), "{line}");
        seen += 1;
    }
    assert!(seen > 200, "only {seen} series");
    for line in page.lines().filter(|line| line.starts_with('#')) {
        assert!(real.lines().any(|real| real == line), "{line}");
    }
}

#[tokio::test]
async fn a_completion_is_answered_counted_and_gone() {
    let (_node, address) = start(QUIET);
    until("listening", || async { TcpStream::connect(address).await.is_ok() }).await;
    // 40 bytes of text are 10 tokens.
    let body = r#"{"model":"sim-8b","prompt":"0123456789012345678901234567890123456789","max_tokens":5,"n":2,"ignore_eos":true}"#;
    let (status, answer) = post(address, "/v1/completions", body).await;
    assert_eq!(status, 200, "{answer}");
    assert_eq!(answer["choices"][1]["text"], " the quick brown fox jumps");
    assert_eq!(answer["choices"][1]["finish_reason"], "length");
    let usage = &answer["usage"];
    assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&10.into(), &10.into()));
    assert_eq!(series(address, "vllm:generation_tokens_total").await, 10.0);
    assert_eq!(series(address, "vllm:prompt_tokens_total").await, 20.0);
    assert_eq!(series(address, "vllm:kv_cache_usage_perc").await, 0.0);
}

#[tokio::test]
async fn a_chat_is_streamed_with_its_usage_at_the_end() {
    let (_node, address) = start(QUIET);
    until("listening", || async { TcpStream::connect(address).await.is_ok() }).await;
    let body = r#"{"model":"sim-8b","messages":[{"role":"user","content":"01234567"}],"max_tokens":20,"ignore_eos":true,
                   "stream":true,"stream_options":{"include_usage":true}}"#;
    let (status, stream) = http(address, "POST", "/v1/chat/completions", body).await.unwrap();
    assert_eq!(status, 200);
    let pieces: Vec<&str> = stream.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(*pieces.last().unwrap(), "[DONE]");
    let pieces: Vec<Value> =
        pieces[..pieces.len() - 1].iter().map(|piece| serde_json::from_str(piece).unwrap()).collect();
    let said: String =
        pieces.iter().filter_map(|piece| piece["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(said.split_whitespace().count(), 20);
    // 2 tokens of text and 4 of the template.
    assert_eq!(pieces.last().unwrap()["usage"]["total_tokens"], 26);
}

#[tokio::test]
async fn bad_requests_get_the_status_of_vllm_and_a_message() {
    let (_node, address) = start(QUIET);
    until("listening", || async { TcpStream::connect(address).await.is_ok() }).await;
    let cases = [
        (r#"{"model":"sim-8b","prompt":"x","max_tokens":512}"#, 400, "maximum context length is 512 tokens"),
        (r#"{"model":"sim-8b","prompt":"x","max_tokens":0}"#, 400, "max_tokens must be at least 1"),
        (r#"{"model":"sim-8b","prompt":"x","max_tokens":-1}"#, 400, "not a valid request"),
        (r#"{"model":"sim-8b","prompt":"x","n":0}"#, 400, "n: 0 is not allowed"),
        (r#"{"model":"sim-8b","prompt":"x","n":99}"#, 400, "n: 99 is not allowed"),
        (r#"{"model":"sim-8b"}"#, 400, "prompt"),
        (r#"{"model":"other","prompt":"x"}"#, 404, "does not exist"),
        (r#"{"model":"sim-8b","prompt":{"secret":1}}"#, 400, "not a valid request"),
        ("", 400, "not a valid request"),
    ];
    for (body, expected, words) in cases {
        let (status, answer) = post(address, "/v1/completions", body).await;
        let message = answer["error"]["message"].as_str().unwrap();
        assert_eq!(status, expected, "{body}: {answer}");
        assert!(message.contains(words), "{body}: {answer}");
        assert!(!message.contains("secret"), "an error quotes no prompt");
    }
}

#[tokio::test]
async fn a_client_that_goes_away_takes_its_request_along() {
    let (_node, address) = start(QUIET);
    until("listening", || async { TcpStream::connect(address).await.is_ok() }).await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    let body = r#"{"prompt":"x","max_tokens":511,"ignore_eos":true,"stream":true}"#;
    let head = format!("POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all((head + body).as_bytes()).await.unwrap();
    stream.read_u8().await.unwrap();
    drop(stream);
    until("the abort", || async {
        series(address, "vllm:num_requests_running").await == 0.0
            && series(address, "vllm:kv_cache_usage_perc").await == 0.0
    })
    .await;
    assert!(series(address, "vllm:generation_tokens_total").await < 511.0);
}

#[tokio::test]
async fn a_killed_engine_refuses_frees_its_memory_and_comes_back_on_its_port_with_other_processes() {
    let kill = format!("{QUIET}\n[[incident]]\nkind='kill'\nat_s=0.3\nengine='a'\nrestart_after_s=0.5");
    let (node, address) = start(&kill);
    until("listening", || async { TcpStream::connect(address).await.is_ok() }).await;
    let before = node.engines()[0].processes.clone();
    assert_eq!(node.devices()[0].processes[0].used_bytes, 73_403 << 20);
    assert!(before.iter().all(|process| process.pid > 1 << 22), "no real process has such a pid");
    let body = r#"{"prompt":"x","max_tokens":511,"ignore_eos":true}"#;
    assert!(http(address, "POST", "/v1/completions", body).await.is_err(), "it dies with the engine");
    until("death", || async { TcpStream::connect(address).await.is_err() }).await;
    assert!(node.engines()[0].processes.is_empty());
    assert_eq!(node.devices()[0].used_bytes, 0);
    until("a new life", || async { TcpStream::connect(address).await.is_ok() }).await;
    let after = node.engines()[0].processes.clone();
    assert_ne!(before[0].pid, after[0].pid);
    assert_eq!(series(address, "vllm:generation_tokens_total").await, 0.0);
}

#[tokio::test]
async fn a_stalled_engine_answers_with_frozen_figures_and_goes_on_afterwards() {
    let stall = format!("{QUIET}\n[[incident]]\nkind='stall'\nat_s=0.0\nengine='a'\nfor_s=1.5");
    let (_node, address) = start(&stall);
    until("listening", || async { TcpStream::connect(address).await.is_ok() }).await;
    sleep(Duration::from_millis(50)).await;
    let body = r#"{"prompt":"x","max_tokens":3,"ignore_eos":true}"#;
    let answer = tokio::spawn(async move { post(address, "/v1/completions", body).await });
    sleep(Duration::from_millis(300)).await;
    assert_eq!(get(address, "/health").await.0, 200);
    assert_eq!(series(address, "vllm:num_requests_running").await, 0.0, "arrivals do not show");
    assert!(!answer.is_finished());
    assert_eq!(answer.await.unwrap().0, 200);
    assert_eq!(series(address, "vllm:generation_tokens_total").await, 3.0);
}

#[tokio::test]
async fn a_sleeping_engine_says_so_and_gives_its_memory_back() {
    let asleep = format!("{QUIET}\n[[incident]]\nkind='sleep'\nat_s=0.0\nengine='a'\nfor_s=600");
    let (node, address) = start(&asleep);
    until("listening", || async { TcpStream::connect(address).await.is_ok() }).await;
    until("sleep", || async { node.devices()[0].used_bytes == 1500 << 20 }).await;
    let (_, page) = get(address, "/metrics").await;
    assert!(page.contains("model_name=\"sim-8b\",sleep_state=\"awake\"} 0.0"), "{page}");
}

#[tokio::test]
async fn a_loading_engine_refuses_and_fills_its_memory() {
    let (node, address) = start(&QUIET.replace("gpus = [0]", "gpus = [0]\nload_ms = 600000"));
    sleep(Duration::from_millis(50)).await;
    assert!(TcpStream::connect(address).await.is_err());
    let device = &node.devices()[0];
    assert!(device.used_bytes < 1 << 30, "{device:?}");
}

#[tokio::test]
async fn devices_hang_and_report_xids_when_the_scenario_says() {
    let text = format!(
        "{QUIET}\n[[incident]]\nkind='nvml_hang'\nat_s=0\ngpu=1\nfor_s=600
         [[incident]]\nkind='xid'\nat_s=0\ngpu=1\ncode=79\n[[incident]]\nkind='xid'\nat_s=500\ngpu=1\ncode=13"
    );
    let (mut node, _) = start(&text);
    let hung: Vec<bool> = node.devices().iter().map(|device| device.hung).collect();
    assert_eq!(hung, [false, true]);
    let events = node.take_device_events();
    assert_eq!(events.len(), 1);
    assert_eq!((events[0].code, &events[0].uuid), (79, &node.devices()[1].uuid));
    assert!(node.take_device_events().is_empty());
}

/// Admits every second request, to the engine `a`, with a limit of 8, and writes down what it is told.
#[derive(Default)]
struct EverySecond {
    asked: Mutex<Vec<SimRequest>>,
    completed: Mutex<Vec<(u64, Ended)>>,
}

impl Gate for EverySecond {
    async fn admit(&self, request: &SimRequest) -> Gated {
        let mut asked = self.asked.lock().await;
        asked.push(request.clone());
        let ticket = u64::try_from(asked.len()).unwrap();
        if ticket.is_multiple_of(2) {
            return Gated::Denied;
        }
        Gated::Admitted { ticket, engine: "a".into(), max_tokens: Some(8) }
    }

    async fn progress(&self, _ticket: u64, _generated: u64) {}

    async fn complete(&self, ticket: u64, ended: Ended) {
        self.completed.lock().await.push((ticket, ended));
    }
}

#[tokio::test]
async fn traffic_asks_the_gate_and_heeds_its_answer() {
    let busy = QUIET.replace(
        "requests_per_second = 0.0",
        "requests_per_second = 500.0\nbypass = 0.25\nlost_completions = 0.0\nprompt_tokens = { median = 50, p95 = 100, max = 400 }",
    );
    let (mut node, address) = start(&busy);
    until("listening", || async { TcpStream::connect(address).await.is_ok() }).await;
    let gate = Arc::new(EverySecond::default());
    node.drive(Arc::clone(&gate));
    until("two hundred requests", || async { node.traffic().finished >= 200 }).await;
    let counts = node.traffic();
    assert!(counts.bypassed > 0 && counts.denied > 0, "{counts:?}");
    assert!(counts.admitted.abs_diff(counts.denied) <= 1, "{counts:?}");
    let completed = gate.completed.lock().await;
    let within = |ended: &Ended| matches!(ended, Ended::Finished { output_tokens: 1..=8 });
    assert!(completed.iter().all(|(ticket, ended)| ticket % 2 == 1 && within(ended)), "{completed:?}");
    let asked = gate.asked.lock().await;
    assert!(asked.iter().all(|request| request.prompt_tokens + request.max_tokens.unwrap_or(1) <= 512));
    assert!(asked.iter().any(|request| request.max_tokens.is_none()));
}
