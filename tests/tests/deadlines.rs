//! Calls whose callers have stopped waiting make no reservation, whatever kept the daemon from answering in time.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers included")]

use std::{
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use gpuadmit_client::{Connection, connect};
use gpuadmit_proto::v1::{
    AdmitRequest, AdmitResponse, CompleteRequest, EngineState, ReservationRef, SessionRequest, StatusRequest,
    StatusResponse, admit_request::Prompt, reservation_ref::Ref, session_request::Call,
};
use gpuadmit_tests::{
    binary::binary,
    running::{Running, configure, within},
    talk::admitted,
};
use nix::sys::signal::Signal;
use tempfile::TempDir;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status};

/// Longest wait for what happens at once on an idle machine.
const SOON: Duration = Duration::from_secs(30);
/// Deadline of a call to a daemon that is stopped.
const DEADLINE: Duration = Duration::from_millis(50);
/// Status shows the last snapshot, which is younger.
const SNAPSHOT: Duration = Duration::from_millis(300);
/// Calls at once.
const CALLS: u64 = 5;
/// One engine with room for 1,008 tokens, and no traffic.
const ONE_SMALL_ENGINE: &str = "[[engine]]\nname = \"e\"\ngpus = [0]\nmodel = \"m\"\nblocks = 64\nmax_model_len = 1008\n[traffic]\nrequests_per_second = 0.0\n";

/// The daemon as a process of its own, with a simulated engine.
struct Node {
    daemon: Running,
    socket: PathBuf,
    connection: Connection,
    _folder: TempDir,
}

impl Node {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let scenario = configure(folder.path(), ONE_SMALL_ENGINE);
        let socket = folder.path().join("s");
        let mut command = Command::new(binary("gpuadmitd"));
        command.arg(format!("--simulate={}", scenario.display())).arg("--socket").arg(&socket);
        let daemon = Running(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        let connection = connect(&socket).unwrap();
        let node = Self { daemon, socket, connection, _folder: folder };
        let ready = async {
            while !node.status().await.is_ok_and(|status| is_ready(&status)) {
                sleep(Duration::from_millis(20)).await;
            }
        };
        timeout(SOON, ready).await.unwrap();
        node
    }

    async fn status(&self) -> Result<StatusResponse, Status> {
        Ok(self.connection.node().status(StatusRequest::default()).await?.into_inner())
    }

    /// Reservations made since it started.
    async fn made(&self) -> u64 {
        sleep(SNAPSHOT).await;
        self.status().await.unwrap().decisions.unwrap().admitted
    }

    async fn admit(&self, request: AdmitRequest) -> AdmitResponse {
        let mut admission = self.connection.admission();
        timeout(SOON, admission.admit(request)).await.unwrap().unwrap().into_inner()
    }

    fn stop(&self) {
        self.daemon.signal(Signal::SIGSTOP);
        // The signal comes before its effect. The state stands behind the program's name (proc(5)).
        let stat = format!("/proc/{}/stat", self.daemon.0.id());
        within(SOON, || fs::read_to_string(&stat).unwrap().contains(") T "));
    }

    fn go_on(&self) {
        self.daemon.signal(Signal::SIGCONT);
    }
}

fn is_ready(status: &StatusResponse) -> bool {
    status.engines.iter().any(|engine| engine.state() == EngineState::Ready && engine.headroom.is_some())
}

fn request(prompt_tokens: u64) -> AdmitRequest {
    AdmitRequest {
        model: "m".into(),
        prompt: Some(Prompt::PromptTokens(prompt_tokens)),
        max_tokens: Some(10),
        ..AdmitRequest::default()
    }
}

/// Asks `CALLS` times at once with a deadline.
fn ask_all(connection: &Connection, request: &AdmitRequest, deadline: Duration) -> JoinSet<Code> {
    let mut calls = JoinSet::new();
    for _ in 0..CALLS {
        let mut admission = connection.admission();
        let mut request = Request::new(request.clone());
        request.set_timeout(deadline);
        calls.spawn(async move {
            admission.admit(request).await.map_or_else(|status| status.code(), |_| Code::Ok)
        });
    }
    calls
}

#[tokio::test]
async fn calls_that_timed_out_while_the_daemon_was_stopped_are_not_admitted() {
    let node = Node::start().await;
    for _ in 0..5 {
        let before = node.made().await;
        node.stop();
        let ends = ask_all(&node.connection, &request(50), DEADLINE).join_all().await;
        assert!(!ends.contains(&Code::Ok), "{ends:?}");
        // The client's connection sends the cancellations on its own.
        sleep(DEADLINE).await;
        node.go_on();
        let _ = admitted(node.admit(request(50)).await);
        assert_eq!(node.made().await, before + 1);
    }
}

#[tokio::test]
async fn calls_of_a_caller_that_is_gone_when_the_daemon_goes_on_are_not_admitted() {
    let node = Node::start().await;
    let other = connect(&node.socket).unwrap();
    // So that the connection is there before the daemon is stopped.
    other.node().status(StatusRequest::default()).await.unwrap();
    node.stop();
    let mut calls = ask_all(&other, &request(50), SOON);
    sleep(DEADLINE).await;
    calls.shutdown().await;
    drop(other);
    node.go_on();
    assert_eq!(node.made().await, 0);
}

#[tokio::test]
async fn calls_of_a_session_that_was_cancelled_meanwhile_are_not_admitted() {
    let node = Node::start().await;
    for _ in 0..5 {
        let (calls, sent) = mpsc::channel(8);
        let answers = node.connection.admission().session(ReceiverStream::new(sent)).await.unwrap();
        node.stop();
        for correlation_id in 0..CALLS {
            let call = Some(Call::Admit(request(50)));
            calls.send(SessionRequest { correlation_id, call }).await.unwrap();
        }
        // They are on their way when the session is cancelled.
        sleep(DEADLINE).await;
        drop((answers, calls));
        sleep(DEADLINE).await;
        node.go_on();
        assert_eq!(node.made().await, 0);
    }
}

#[tokio::test]
async fn calls_that_waited_for_room_until_they_were_cancelled_or_timed_out_are_not_admitted() {
    let node = Node::start().await;
    for deadline in [SOON, Duration::from_secs(1), SOON, Duration::from_secs(1)] {
        let holder = admitted(node.admit(request(900)).await);
        let waiting = AdmitRequest { wait_ms: 60_000, ..request(900) };
        let mut calls = ask_all(&node.connection, &waiting, deadline);
        let other = connect(&node.socket).unwrap();
        other.node().status(StatusRequest::default()).await.unwrap();
        while node.status().await.unwrap().engines[0].queued < CALLS {
            sleep(Duration::from_millis(10)).await;
        }
        node.stop();
        // The room that they wait for is given back while the daemon is stopped, and read when it goes on.
        let reservation = Some(ReservationRef { r#ref: Some(Ref::ReservationId(holder.reservation_id)) });
        let mut admission = other.admission();
        let complete = tokio::spawn(async move {
            admission.complete(CompleteRequest { reservation, ..CompleteRequest::default() }).await
        });
        if deadline == SOON {
            sleep(DEADLINE).await;
            calls.shutdown().await;
        }
        while let Some(end) = calls.join_next().await {
            assert_ne!(end.unwrap(), Code::Ok);
        }
        // The client's connection sends the cancellations on its own.
        sleep(DEADLINE).await;
        node.go_on();
        complete.await.unwrap().unwrap();
        sleep(SNAPSHOT).await;
        assert_eq!(node.status().await.unwrap().reservations, 0);
    }
}
