//! `gpuadmit events` and `WatchEvents` across restarts of the daemon.
#![expect(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use std::{path::Path, process::Stdio, time::Duration};

use gpuadmit_proto::v1::{WatchEventsRequest, WatchEventsResponse};
use gpuadmit_tests::{
    binary::binary,
    served::{Served, quiet, ready_engine},
};
use serde_json::Value;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};
use tokio_stream::StreamExt as _;
use tonic::Code;

/// Longest wait for what happens soon.
const SOON: Duration = Duration::from_secs(30);

async fn behind(served: &Served, resume: &str) -> Vec<WatchEventsResponse> {
    let request = WatchEventsRequest { resume: Some(resume.into()), ..WatchEventsRequest::default() };
    let events = served.connection.node().watch_events(request).await.unwrap().into_inner();
    events.map(|event| event.unwrap()).collect().await
}

fn kinds(events: &[WatchEventsResponse]) -> Vec<&str> {
    events.iter().map(|event| event.event.as_ref().unwrap().kind.as_str()).collect()
}

#[tokio::test]
async fn an_event_is_resumed_behind_in_its_run_and_from_the_start_of_another() {
    let first = Served::start(quiet());
    ready_engine(&first.handle);
    let all = first.connection.node().watch_events(WatchEventsRequest::default()).await.unwrap().into_inner();
    let all: Vec<_> = all.map(|event| event.unwrap()).collect().await;
    assert_eq!(kinds(&all), ["ENGINE_FOUND", "ENGINE_READY"]);
    assert!(all.iter().all(|event| !event.restarted));
    let later = behind(&first, &all[0].resume).await;
    assert_eq!(kinds(&later), ["ENGINE_READY"]);
    assert!(!later[0].restarted);

    // Its cursor is not ahead of the next run's: the number alone would hide an event.
    let second = Served::start_in(quiet(), first.stop().await);
    ready_engine(&second.handle);
    let later = behind(&second, &all[0].resume).await;
    assert_eq!(kinds(&later), ["ENGINE_FOUND", "ENGINE_READY"]);
    assert_eq!(later.iter().map(|event| event.restarted).collect::<Vec<_>>(), [true, false]);
}

#[tokio::test]
async fn what_is_no_resume_is_refused() {
    let served = Served::start(quiet());
    for (after, resume) in
        [(None, "x"), (None, "1"), (Some(1), "41394.1"), (None, "00a1b2.1"), (None, "1.x\u{1b}[2J")]
    {
        let request = WatchEventsRequest { after, resume: Some(resume.into()), follow: false };
        let error = served.connection.node().watch_events(request).await.unwrap_err();
        assert_eq!(error.code(), Code::InvalidArgument, "{error}");
        assert!(error.message().starts_with("resume: ") && !error.message().contains('\u{1b}'), "{error}");
    }
}

fn command(socket: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(binary("gpuadmit"));
    command.arg("--socket").arg(socket).args(["events", "--json"]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

async fn lines(command: &mut Command) -> Vec<Value> {
    let output = timeout(SOON, command.output()).await.unwrap().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

struct Follower {
    _child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Follower {
    fn start(socket: &Path) -> Self {
        let mut child = command(socket, &["--follow"]).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { _child: child, lines }
    }

    async fn next(&mut self) -> (Value, Value) {
        let line = timeout(SOON, self.lines.next_line()).await.unwrap().unwrap().unwrap();
        let line: Value = serde_json::from_str(&line).unwrap();
        (line["event"]["kind"].clone(), line["restarted"].clone())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_follows_goes_on_when_the_daemon_is_back() {
    let _built = binary("gpuadmit");
    let first = Served::start(quiet());
    ready_engine(&first.handle);
    let mut follower = Follower::start(&first.socket());
    assert_eq!(follower.next().await, ("ENGINE_FOUND".into(), false.into()));
    assert_eq!(follower.next().await, ("ENGINE_READY".into(), false.into()));
    let second = Served::start_in(quiet(), first.stop().await);
    ready_engine(&second.handle);
    assert_eq!(follower.next().await, ("ENGINE_FOUND".into(), true.into()));
    assert_eq!(follower.next().await, ("ENGINE_READY".into(), false.into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_keeps_where_to_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cursor");
    let arguments = ["--cursor-file", file.to_str().unwrap()];
    // Built before the clock of the engine's readings runs.
    let _built = binary("gpuadmit");
    let first = Served::start(quiet());
    ready_engine(&first.handle);
    let shown = lines(&mut command(&first.socket(), &arguments)).await;
    assert_eq!(shown[0]["event"]["kind"], "ENGINE_FOUND");
    let last = shown.last().unwrap()["event"]["cursor"].as_u64().unwrap();
    // A slow machine may have more to tell meanwhile.
    let more = lines(&mut command(&first.socket(), &arguments)).await;
    assert!(more.iter().all(|line| line["event"]["cursor"].as_u64() > Some(last)), "shown twice: {more:?}");
    let second = Served::start_in(quiet(), first.stop().await);
    ready_engine(&second.handle);
    let again = lines(&mut command(&second.socket(), &arguments)).await;
    assert_eq!(again[0]["event"]["kind"], "ENGINE_FOUND");
    assert_eq!(again[0]["restarted"], true);
}

#[tokio::test]
async fn a_daemon_that_was_never_there_is_an_error_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let output =
        timeout(SOON, command(&folder.path().join("s"), &["--follow"]).output()).await.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}
