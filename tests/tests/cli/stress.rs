//! `gpuadmit stress` against the simulated engine's HTTP server.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use gpuadmit_tests::binary::binary;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    process::{Child, Command},
    time::sleep,
};

use crate::{DEADLINE, finish, gpuadmit, text};

/// One engine with room for 4,080 tokens, steps of 2 ms, and no traffic but ours.
const SCENARIO: &str = r#"
gpu = [{ name = "G", memory_mib = 81559, reserved_mib = 551 }]

[[engine]]
name = "sim-0"
model = "m"
gpus = [0]
blocks = 256
max_model_len = 2048
step_base_us = 2000
step_per_sequence_us = 10
step_per_prefill_token_us = 1

[traffic]
requests_per_second = 0.0
"#;

struct Node {
    folder: TempDir,
    _daemon: Child,
}

impl Node {
    /// Waits until its engine is ready.
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let scenario = folder.path().join("scenario.toml");
        std::fs::write(&scenario, SCENARIO).unwrap();
        let mut command = Command::new(binary("gpuadmitd"));
        command
            .arg(format!("--simulate={}", scenario.display()))
            .arg("--socket")
            .arg(folder.path().join("s"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let node = Self { folder, _daemon: command.spawn().unwrap() };
        node.until(|status| {
            status["engines"][0]["state"] == "ready" && !status["engines"][0]["headroom"].is_null()
        })
        .await;
        node
    }

    fn command(&self, arguments: &[&str]) -> Command {
        gpuadmit(&self.folder.path().join("s"), arguments)
    }

    /// Waits until its status is as `wanted`.
    async fn until(&self, wanted: impl Fn(&Value) -> bool) {
        let started = Instant::now();
        loop {
            let output = finish(self.command(&["status", "--json"])).await;
            let status = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
            if wanted(&status) {
                return;
            }
            assert!(started.elapsed() < DEADLINE, "{status:#}{}", text(&output.stderr));
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn reservations(&self, wanted: impl Fn(u64) -> bool) {
        self.until(|status| status["reservations"].as_u64().is_some_and(&wanted)).await;
    }
}

/// Of all parts of the load together.
fn sum(report: &Value, figure: &str) -> u64 {
    report["phases"].as_object().unwrap().values().map(|phase| phase[figure].as_u64().unwrap()).sum()
}

#[tokio::test]
async fn a_load_above_the_pool_is_denied_in_part_and_every_request_is_accounted_for() {
    let node = Node::start().await;
    let load = "stress --requests 40 --concurrency 20 --burst 30 --for 10m --ignore-eos --json";
    let output = finish(node.command(&load.split(' ').collect::<Vec<_>>())).await;
    assert_eq!(text(&output.stderr), "");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    // 1: the accepted risk of a preemption came true.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{report:#}");
    assert_eq!(sum(&report, "asked"), 40 + 1 + 30, "{report:#}");
    assert_eq!(sum(&report, "admitted") + sum(&report, "denied"), 40 + 1 + 30, "{report:#}");
    assert_eq!(sum(&report, "finished"), sum(&report, "admitted"), "{report:#}");
    assert_eq!((&report["failed"], &report["cancelled"]), (&0.into(), &0.into()), "{report:#}");
    assert!(report["denied_by_reason"]["KV_FULL"].as_u64().unwrap() > 0, "{report:#}");
    assert!(report["preempted"].is_u64() && report["pool_was_full"].is_boolean(), "{report:#}");
    assert!(report["phases"]["burst"]["ttft"]["p99_ms"].as_f64().unwrap() > 0.0, "{report:#}");
    node.reservations(|number| number == 0).await;
}

#[tokio::test]
async fn an_interrupt_gives_all_room_back() {
    let node = Node::start().await;
    let load = "stress --requests 100000 --concurrency 20 --for 1h --ignore-eos --json";
    let mut command = node.command(&load.split(' ').collect::<Vec<_>>());
    let stress = command.stdout(Stdio::piped()).spawn().unwrap();
    node.reservations(|number| number > 0).await;
    kill(Pid::from_raw(stress.id().unwrap().cast_signed()), Signal::SIGINT).unwrap();
    let output = tokio::time::timeout(DEADLINE, stress.wait_with_output()).await.unwrap().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["cancelled"].as_u64().unwrap() > 0, "{report:#}");
    assert!(report["phases"].get("burst").is_none(), "{report:#}");
    node.reservations(|number| number == 0).await;
}
