//! The `gpuadmit` command as its callers see it: exit codes, output, and what reaches the daemon.

mod fake;
mod live;
mod screen;
mod stress;

use std::{
    path::Path,
    process::{Output, Stdio},
    time::Duration,
};

use fake::{FULL, Fake, RESERVATION, WRONG};
use gpuadmit_proto::v1::{
    AdmitRequest, CompleteRequest, Outcome, PriorityClass, RequestKey, ReservationRef, admit_request::Prompt,
    explain_request::What, reservation_ref::Ref,
};
use gpuadmit_tests::binary::binary;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
    time::timeout,
};

/// No command takes nearly that long.
const DEADLINE: Duration = Duration::from_secs(30);

fn gpuadmit(socket: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary("gpuadmit"));
    command.arg("--socket").arg(socket).args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    command
}

struct Fixture {
    folder: TempDir,
    fake: Fake,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let fake = Fake::serve(&folder.path().join("s"));
        Self { folder, fake }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        gpuadmit(&self.folder.path().join("s"), arguments)
    }

    async fn run(&self, arguments: &[&str]) -> Output {
        finish(self.command(arguments)).await
    }

    async fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_slice(&self.run(arguments).await.stdout).unwrap()
    }
}

async fn finish(mut command: Command) -> Output {
    timeout(DEADLINE, command.output()).await.expect("the command ends").unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[track_caller]
fn assert_ended(output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "{}{}", text(&output.stdout), text(&output.stderr));
}

#[tokio::test]
async fn an_admitted_request_is_exit_code_0_and_every_flag_reaches_the_daemon() {
    let fixture = Fixture::new();
    let flags = "admit m --engine e --prompt-tokens 7 --max-tokens 9 -n 2 --has-stop --class batch --tenant t \
                 --session-key k --ttft-objective 800ms --pace-objective 50ms --wait 5s --request-id r \
                 --forwards-data-parallel-rank";
    let output = fixture.run(&flags.split_whitespace().collect::<Vec<_>>()).await;
    assert_ended(&output, 0);
    assert!(text(&output.stdout).starts_with("admitted to vllm-8000 at http://127.0.0.1:8000\n"));
    assert!(text(&output.stdout).contains("  reserved  72057589742960641, holds 70 blocks"));
    let expected = AdmitRequest {
        model: "m".into(),
        engine: Some("e".into()),
        prompt: Some(Prompt::PromptTokens(7)),
        max_tokens: Some(9),
        n: Some(2),
        has_stop: true,
        priority_class: PriorityClass::Batch.into(),
        tenant: Some("t".into()),
        session_key: Some("k".into()),
        ttft_objective_ms: Some(800),
        pace_objective_ms: Some(50),
        wait_ms: 5_000,
        request_id: Some("r".into()),
        forwards_data_parallel_rank: true,
    };
    assert_eq!(fixture.fake.asked().admit, Some(expected));
}

#[tokio::test]
async fn a_denied_request_is_exit_code_1_and_says_what_to_answer() {
    let fixture = Fixture::new();
    let output = fixture.run(&["admit", FULL, "--text", "hello"]).await;
    assert_ended(&output, 1);
    assert!(text(&output.stdout).starts_with("denied KV_FULL\n"), "{}", text(&output.stdout));
    assert!(text(&output.stdout).contains("HTTP 429, Retry-After: 3 (room in 2.4 s)"));
    let json = fixture.json(&["admit", FULL, "--prompt-bytes", "5", "--json"]).await;
    assert_eq!(json["denied"]["reason"], "KV_FULL");
    assert_eq!(json["denied"]["retry_after_ms"], 2_400);
}

#[tokio::test]
async fn a_request_body_is_read_from_a_file() {
    let fixture = Fixture::new();
    let path = fixture.folder.path().join("body");
    std::fs::write(&path, r#"{"prompt": "hello"}"#).unwrap();
    assert_ended(&fixture.run(&["admit", "--openai-body", path.to_str().unwrap()]).await, 0);
    let prompt = fixture.fake.asked().admit.take().unwrap().prompt;
    assert_eq!(prompt, Some(Prompt::OpenaiBody(br#"{"prompt": "hello"}"#.to_vec())));
    let output = fixture.run(&["admit", "m", "--openai-body", "/nowhere"]).await;
    assert_ended(&output, 2);
    assert!(text(&output.stderr).contains("/nowhere: No such file"), "{}", text(&output.stderr));
}

#[tokio::test]
async fn an_error_of_the_daemon_is_exit_code_2_and_one_line() {
    let output = Fixture::new().run(&["admit", WRONG, "--prompt-tokens", "1"]).await;
    assert_ended(&output, 2);
    assert_eq!(text(&output.stderr), "gpuadmit: the daemon refused: n: 0 is not allowed; 1 to 128\n");
    assert_eq!(text(&output.stdout), "");
}

#[tokio::test]
async fn without_a_daemon_every_command_is_exit_code_2_and_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nobody");
    for arguments in [
        &["status"][..],
        &["admit", "m", "--prompt-tokens", "1"],
        &["progress", "1", "--generated-tokens", "1"],
        &["complete", "1"],
        &["explain"],
        &["events", "--follow"],
        &["headroom", "--watch"],
        &["release-gpu", "--for", "1s"],
        &["report"],
        &["stress"],
    ] {
        let output = finish(gpuadmit(&socket, arguments)).await;
        assert_ended(&output, 2);
        let stderr = text(&output.stderr);
        let expected = format!("gpuadmit: cannot reach the daemon at {}: No such file", socket.display());
        assert!(stderr.starts_with(&expected) && stderr.lines().count() == 1, "{arguments:?}: {stderr}");
    }
}

#[tokio::test]
async fn wrong_usage_is_exit_code_2() {
    let fixture = Fixture::new();
    for arguments in [
        &["admit", "m"][..],
        &["admit", "m", "--text", "x", "--prompt-tokens", "1"],
        &["complete"],
        &["complete", "xyz"],
        &["explain", "--last", "257"],
        &["release-gpu", "--for", "10"],
        &["complete", "abc"],
        &["explain", "00ffffff00000001"],
        &["events", "--after", "abc"],
        &["events", "--after", "+1"],
        &["admit", "m", "--text", "x", "--wait", "11m"],
        &["admit", "m", "--text", "x", "--wait", "5"],
        &["release-gpu", "--for", "500ms"],
        &["status", "--watch=0s"],
        &["status", "--watch=5"],
        &["headroom", "--watch=1ms"],
        &["headroom", "--watch=100"],
        &["top", "--every", "1"],
        &["doctor", "--root", "/nowhere"],
        &["report", "--hours", "49"],
        &["stress", "--requests", "0"],
        &["stress", "--for", "2h"],
        // No terminal.
        &["top"],
        &["nonsense"],
    ] {
        assert_ended(&fixture.run(arguments).await, 2);
    }
}

#[tokio::test]
async fn every_time_takes_the_same_form() {
    let fixture = Fixture::new();
    let times = [
        &["status", "--watch=250ms"][..],
        &["headroom", "--watch=250ms"],
        &["headroom", "--watch"],
        &["status", "--watch"],
    ];
    for arguments in times {
        after_first_line(fixture.command(arguments), async |pid, mut stdout| {
            kill(Pid::from_raw(pid.cast_signed()), Signal::SIGINT).unwrap();
            let mut rest = Vec::new();
            tokio::io::AsyncReadExt::read_to_end(&mut stdout, &mut rest).await.unwrap();
        })
        .await;
    }
    let asked = fixture.fake.asked().headroom.take().unwrap();
    assert_eq!(asked.min_interval_ms, Some(100));
}

#[tokio::test]
async fn a_cause_is_said_once() {
    let folder = tempfile::tempdir().unwrap();
    let plan =
        finish(gpuadmit(&folder.path().join("s"), &["plan", "/nowhere", "--gpu-memory", "80GiB"])).await;
    assert_ended(&plan, 2);
    assert_eq!(text(&plan.stderr).matches("No such file").count(), 1, "{}", text(&plan.stderr));
}

/// Bash asks the daemon, by way of the command, for the engines that may be named.
#[tokio::test]
async fn bash_offers_the_engines_of_a_running_daemon() {
    let fixture = Fixture::new();
    let script = fixture.folder.path().join("completions");
    std::fs::write(&script, fixture.run(&["completions", "bash"]).await.stdout).unwrap();
    let offered = async |words: &str, socket: &str| {
        let ask = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
             _gpuadmit_all gpuadmit \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD-1]}}\"; \
             echo \"${{COMPREPLY[@]}}\"",
            script.display()
        );
        let mut command = Command::new("bash");
        let path = std::env::join_paths([
            binary("gpuadmit").parent().unwrap(),
            Path::new("/usr/bin"),
            Path::new("/bin"),
        ]);
        command.arg("-c").arg(ask).env("PATH", path.unwrap()).env("GPUADMIT_SOCKET", socket);
        text(&finish(command).await.stdout).trim().to_owned()
    };
    let socket = fixture.folder.path().join("s");
    let socket = socket.to_str().unwrap();
    assert_eq!(offered("gpuadmit headroom --engine ''", socket).await, "vllm-8000");
    assert_eq!(offered("gpuadmit headroom --engine vl", socket).await, "vllm-8000");
    assert_eq!(offered("gpuadmit headroom --engine x", socket).await, "");
    assert_eq!(
        offered(&format!("gpuadmit --socket {socket} guard list --engine ''"), "/nobody").await,
        "vllm-8000"
    );
    assert_eq!(offered("gpuadmit headroom --engine ''", "/nobody").await, "");
    assert!(offered("gpuadmit stress ''", socket).await.contains("vllm-8000"));
    assert!(offered("gpuadmit sta", socket).await.contains("status"));
}

#[tokio::test]
async fn status_json_has_engines_and_devices_with_headroom() {
    let status = Fixture::new().json(&["status", "--json"]).await;
    assert_eq!(status["engines"][0]["headroom"]["tokens"], 1_600);
    assert_eq!(status["devices"][0]["headroom"]["bytes"], 1 << 30);
    assert_eq!(status["sources"], serde_json::json!([]));
}

#[tokio::test]
async fn the_socket_may_come_from_the_environment() {
    let fixture = Fixture::new();
    let mut command = Command::new(binary("gpuadmit"));
    command.arg("status").env("GPUADMIT_SOCKET", fixture.folder.path().join("s"));
    let output = finish(command).await;
    assert_ended(&output, 0);
    assert!(!text(&output.stdout).contains('\x1b'), "no colour where nobody looks");
}

#[tokio::test]
async fn a_reservation_is_named_by_its_id_or_by_the_request() {
    let fixture = Fixture::new();
    for id in [RESERVATION.to_string(), format!("{RESERVATION:#x}")] {
        assert_ended(&fixture.run(&["progress", &id, "--generated-tokens", "40"]).await, 0);
        let progress = fixture.fake.asked().progress.take().unwrap();
        assert_eq!(progress.generated_tokens, 40);
        assert_eq!(progress.reservation.unwrap().r#ref, Some(Ref::ReservationId(RESERVATION)));
    }
    let flags =
        ["complete", "--request-id", "r", "--tenant", "t", "--outcome", "not-sent", "--output-tokens", "3"];
    let output = fixture.run(&flags).await;
    assert_ended(&output, 0);
    assert_eq!(text(&output.stdout), "released\n");
    let key = RequestKey { tenant: Some("t".into()), request_id: "r".into() };
    let expected = CompleteRequest {
        reservation: Some(ReservationRef { r#ref: Some(Ref::Request(key)) }),
        outcome: Outcome::NotSent.into(),
        output_tokens: Some(3),
        prompt_tokens: None,
    };
    assert_eq!(fixture.fake.asked().complete, Some(expected));
}

#[tokio::test]
async fn explain_shows_the_sum_of_one_or_of_the_last_decisions() {
    let fixture = Fixture::new();
    let output = fixture.run(&["explain", "0x00ffffff00000001"]).await;
    assert_ended(&output, 0);
    let sum = "1,000 used + 100 growth + 70 need = 1,170 ≤ 1,200 blocks";
    assert!(text(&output.stdout).contains(sum), "{}", text(&output.stdout));
    assert_ended(&fixture.run(&["explain", "--last", "5", "--json"]).await, 0);
    assert_eq!(fixture.fake.asked().explain.take().unwrap().what, Some(What::Last(5)));
}

#[tokio::test]
async fn events_are_lines_of_json_from_a_cursor_on() {
    let fixture = Fixture::new();
    let output = fixture.run(&["events", "--after", "41", "--json"]).await;
    assert_ended(&output, 0);
    let cursors: Vec<Value> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["event"]["cursor"].clone())
        .collect();
    assert_eq!(cursors, [42, 43]);
}

#[tokio::test]
async fn events_are_explained_to_who_asks() {
    let output = Fixture::new().run(&["events", "--explain"]).await;
    assert_ended(&output, 0);
    assert!(text(&output.stdout).contains("\n    What to do: "), "{}", text(&output.stdout));
}

#[tokio::test]
async fn headroom_without_watch_ends_after_one_answer() {
    let output = Fixture::new().run(&["headroom"]).await;
    assert_ended(&output, 0);
    assert_eq!(
        text(&output.stdout),
        "vllm-8000 ready, 100 blocks = 1,600 tokens, at least 90 = 1,440, 200 ms old\n"
    );
}

#[tokio::test]
async fn the_report_is_a_screen_or_json() {
    let fixture = Fixture::new();
    let output = fixture.run(&["report"]).await;
    assert_ended(&output, 0);
    assert!(text(&output.stdout).contains("for: KV_FULL 40, TTFT 5\n"), "{}", text(&output.stdout));
    let json: serde_json::Value =
        serde_json::from_slice(&fixture.run(&["report", "--json"]).await.stdout).unwrap();
    assert_eq!(json["engines"][0]["hours"][1]["by_reason"][1]["reason"], "TTFT");
}

#[tokio::test]
async fn the_driver_is_released_for_the_time_given() {
    let fixture = Fixture::new();
    assert_ended(&fixture.run(&["release-gpu", "--for", "10m"]).await, 0);
    assert_eq!(fixture.fake.asked().release.unwrap_or_default().duration_ms, 600_000);
}

#[tokio::test]
async fn guards_are_listed_and_lifted() {
    let fixture = Fixture::new();
    let listed = fixture.run(&["guard", "list"]).await;
    assert_ended(&listed, 0);
    assert!(String::from_utf8_lossy(&listed.stdout).contains("prompts of 5,793 to 8,191 tokens held back"));
    let lifted = fixture.run(&["guard", "clear", "--engine", "a"]).await;
    assert_eq!(String::from_utf8_lossy(&lifted.stdout), "1 guard lifted\n");
    let lifted = fixture.run(&["guard", "clear"]).await;
    assert_eq!(String::from_utf8_lossy(&lifted.stdout), "2 guards lifted\n");
}

/// Starts a command that goes on, waits for its first line, does `then`, and returns how it ended.
async fn after_first_line(
    mut command: Command,
    then: impl AsyncFnOnce(u32, BufReader<tokio::process::ChildStdout>),
) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    timeout(DEADLINE, stdout.read_line(&mut line)).await.expect("it shows something").unwrap();
    then(child.id().unwrap(), stdout).await;
    let output = timeout(DEADLINE, child.wait_with_output()).await.expect("it ends").unwrap();
    assert_ended(&output, 0);
    assert_eq!(text(&output.stderr), "");
}

#[tokio::test]
async fn what_watches_ends_cleanly_on_ctrl_c() {
    let fixture = Fixture::new();
    for arguments in [
        &["status", "--watch"][..],
        &["status", "--watch", "--json"],
        &["headroom", "--watch"],
        &["events", "-f"],
    ] {
        after_first_line(fixture.command(arguments), async |pid, mut stdout| {
            kill(Pid::from_raw(pid.cast_signed()), Signal::SIGINT).unwrap();
            let mut rest = Vec::new();
            tokio::io::AsyncReadExt::read_to_end(&mut stdout, &mut rest).await.unwrap();
        })
        .await;
    }
}

#[tokio::test]
async fn what_watches_ends_quietly_when_its_reader_goes() {
    let fixture = Fixture::new();
    for arguments in [&["headroom", "--watch", "--json"][..], &["events", "--follow"]] {
        after_first_line(fixture.command(arguments), async |_, stdout| drop(stdout)).await;
    }
}

#[tokio::test]
async fn completions_and_manual_pages_need_no_daemon() {
    let folder = tempfile::tempdir().unwrap();
    let nobody = folder.path().join("nobody");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = finish(gpuadmit(&nobody, &["completions", shell])).await;
        assert_ended(&output, 0);
        assert!(text(&output.stdout).contains("release-gpu"), "{shell}");
    }
    assert_ended(&finish(gpuadmit(&nobody, &["man", folder.path().to_str().unwrap()])).await, 0);
    assert!(folder.path().join("gpuadmit-status.1").exists());
}
