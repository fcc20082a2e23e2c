//! The client library's gate against daemons that answer, are slow, die, and come back.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers included")]

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use gpuadmit_client::{
    Guard,
    gate::{Gate, Options, WhenAbsent},
    v1::{AdmitRequest, Outcome, StatusRequest, StatusResponse, denied::Reason},
};
use gpuadmit_tests::served::{Served, admit, quiet, ready_engine};
use tempfile::TempDir;
use tokio::{
    net::{UnixListener, UnixStream},
    sync::watch,
    time::{sleep, timeout},
};

const SOON: Duration = Duration::from_secs(10);
/// Longer than any answer takes, for tests that are not about time.
const PATIENT: Duration = Duration::from_secs(5);
const DENY: WhenAbsent = WhenAbsent::Deny { retry_after: Duration::from_secs(3) };

fn served() -> Served {
    let served = Served::start(quiet());
    ready_engine(&served.handle);
    served
}

fn gate_at(socket: PathBuf, deadline: Duration) -> Gate {
    Gate::new(Options { socket, deadline, when_absent: DENY }).unwrap()
}

async fn status(served: &Served) -> StatusResponse {
    served.connection.node().status(StatusRequest::default()).await.unwrap().into_inner()
}

async fn until(served: &Served, wanted: impl Fn(&StatusResponse) -> bool) {
    let seen = async {
        while !wanted(&status(served).await) {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, seen).await.unwrap();
}

/// Asks until the daemon itself admits: it may be just coming back.
async fn by_daemon(gate: &Gate) -> Guard {
    let asked = async {
        loop {
            match gate.admit(admit(100, 50)).await {
                Ok(guard) if guard.admitted().is_some() => return guard,
                _ => sleep(Duration::from_millis(10)).await,
            }
        }
    };
    timeout(SOON, asked).await.unwrap()
}

#[tokio::test]
async fn a_guard_tells_how_its_request_ended_or_that_it_was_given_up() {
    let served = served();
    let gate = gate_at(served.socket(), PATIENT);
    let guard = gate.admit(admit(100, 50)).await.unwrap();
    assert_eq!((guard.address(), guard.max_tokens()), (Some("http://127.0.0.1:8000"), Some(50)));
    let other = gate.clone().admit(admit(100, 50)).await.unwrap();
    until(&served, |status| status.reservations == 2).await;
    guard.progress(10);
    guard.complete(Outcome::Ok, Some(20), Some(101));
    until(&served, |status| status.reservations == 1).await;
    drop(other);
    until(&served, |status| status.reservations == 0).await;
}

#[tokio::test]
async fn a_guard_that_outlives_its_gate_still_tells_its_end() {
    let served = served();
    let guard = gate_at(served.socket(), PATIENT).admit(admit(100, 50)).await.unwrap();
    until(&served, |status| status.reservations == 1).await;
    drop(guard);
    until(&served, |status| status.reservations == 0 && status.engines[0].orphans == 0).await;
}

#[tokio::test]
async fn denials_and_mistakes_are_the_daemons() {
    let served = served();
    let gate = gate_at(served.socket(), PATIENT);
    let _all = gate.admit(admit(1500, 100)).await.unwrap();
    let refusal = gate.admit(admit(100, 50)).await.unwrap_err();
    assert_eq!((refusal.reason, refusal.http_status), (Some(Reason::KvFull), 429));
    let refusal = gate.admit(AdmitRequest { n: Some(0), ..admit(1, 1) }).await.unwrap_err();
    assert_eq!((refusal.http_status, refusal.message.as_str()), (400, "n: 0 is not allowed; 1 to 128"));
}

#[tokio::test]
async fn a_request_may_wait_longer_than_the_deadline_where_it_says_so() {
    let served = served();
    let gate = gate_at(served.socket(), Duration::from_millis(500));
    let all = gate.admit(admit(1500, 100)).await.unwrap();
    let waiting = {
        let gate = gate.clone();
        tokio::spawn(async move { gate.admit(AdmitRequest { wait_ms: 60_000, ..admit(100, 50) }).await })
    };
    until(&served, |status| status.engines[0].queued == 1).await;
    sleep(Duration::from_millis(600)).await;
    drop(all);
    assert!(timeout(SOON, waiting).await.unwrap().unwrap().unwrap().admitted().is_some());
}

#[tokio::test]
async fn a_daemon_that_never_answers_costs_the_deadline_and_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("s");
    let _mute = UnixListener::bind(&socket).unwrap();
    let gate = gate_at(socket, Duration::from_millis(5));
    for _ in 0..20 {
        let start = Instant::now();
        assert_eq!(gate.admit(admit(1, 1)).await.unwrap_err().http_status, 503);
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    }
}

#[tokio::test]
async fn an_answer_that_comes_too_late_is_given_back() {
    let served = served();
    let line = Line::new(&served);
    line.state.send_replace(State::Held);
    let gate = gate_at(line.socket(), Duration::from_millis(50));
    assert_eq!(gate.admit(admit(100, 50)).await.unwrap_err().http_status, 503);
    let _other = gate.admit(admit(100, 50)).await.unwrap_err();
    line.state.send_replace(State::Through);
    // What is on its way arrives now; what was decided meanwhile is not held for ever.
    let guard = by_daemon(&gate).await;
    until(&served, |status| status.reservations == 1).await;
    drop(guard);
    until(&served, |status| status.reservations == 0).await;
}

#[tokio::test]
async fn who_stops_asking_holds_nothing() {
    let served = served();
    let gate = gate_at(served.socket(), PATIENT);
    for _ in 0..50 {
        let asked = gate.clone();
        let task = tokio::spawn(async move { drop(asked.admit(admit(16, 16)).await) });
        tokio::task::yield_now().await;
        task.abort();
    }
    until(&served, |status| status.reservations == 0).await;
    let _guard = gate.admit(admit(100, 50)).await.unwrap();
    until(&served, |status| status.reservations == 1).await;
}

#[tokio::test]
async fn a_broken_stream_is_opened_again_and_what_it_held_adopted() {
    let served = served();
    let line = Line::new(&served);
    let gate = gate_at(line.socket(), PATIENT);
    let guard = gate.admit(admit(100, 50)).await.unwrap();
    until(&served, |status| status.reservations == 1).await;
    line.state.send_replace(State::Cut);
    until(&served, |status| status.engines[0].orphans == 1).await;
    assert_eq!(gate.admit(admit(1, 1)).await.unwrap_err().http_status, 503);
    line.state.send_replace(State::Through);
    // Nobody has to ask for it.
    until(&served, |status| status.engines[0].orphans == 0 && status.reservations == 1).await;
    drop(guard);
    until(&served, |status| status.reservations == 0).await;
}

#[tokio::test]
async fn an_end_that_could_not_be_told_is_told_later() {
    let served = served();
    let line = Line::new(&served);
    let gate = gate_at(line.socket(), PATIENT);
    let guard = gate.admit(admit(100, 50)).await.unwrap();
    line.state.send_replace(State::Cut);
    until(&served, |status| status.engines[0].orphans == 1).await;
    drop(guard);
    line.state.send_replace(State::Through);
    until(&served, |status| status.reservations == 0).await;
}

#[tokio::test]
async fn a_daemon_that_goes_and_comes_again_is_found_again() {
    let served = served();
    let gate = gate_at(served.socket(), PATIENT);
    let old = gate.admit(admit(100, 50)).await.unwrap();
    let folder: TempDir = timeout(SOON, served.stop()).await.unwrap();
    let refusal = gate.admit(admit(100, 50)).await.unwrap_err();
    assert_eq!((refusal.http_status, refusal.retry_after), (503, Some(Duration::from_secs(3))));
    let served = Served::start_in(quiet(), folder);
    ready_engine(&served.handle);
    let guard = by_daemon(&gate).await;
    // The reservation of the earlier run means nothing to this one.
    drop(old);
    until(&served, |status| status.reservations == 1).await;
    drop(guard);
    until(&served, |status| status.reservations == 0).await;
}

#[tokio::test]
async fn many_ask_at_once_over_one_stream() {
    let served = served();
    let gate = gate_at(served.socket(), PATIENT);
    let tasks: Vec<_> = (0..200)
        .map(|_| {
            let gate = gate.clone();
            tokio::spawn(
                async move { gate.admit(AdmitRequest { wait_ms: 5_000, ..admit(16, 16) }).await.is_ok() },
            )
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += u32::from(timeout(SOON, task).await.unwrap().unwrap());
    }
    assert!(admitted > 0);
    until(&served, |status| status.reservations == 0).await;
}

/// What a [`Line`] does with its connections.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Through,
    /// Takes connections and carries nothing.
    Held,
    /// Breaks them, and takes none.
    Cut,
}

/// A socket that leads to a daemon's, and that can be held and cut.
struct Line {
    folder: TempDir,
    state: watch::Sender<State>,
}

impl Line {
    fn new(served: &Served) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("s")).unwrap();
        let state = watch::Sender::new(State::Through);
        tokio::spawn(carry_all(listener, served.socket(), state.subscribe()));
        Self { folder, state }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }
}

async fn carry_all(listener: UnixListener, to: PathBuf, state: watch::Receiver<State>) {
    let to = Arc::new(to);
    while let Ok((near, _)) = listener.accept().await {
        tokio::spawn(carry(near, Arc::clone(&to), state.clone()));
    }
}

async fn carry(mut near: UnixStream, to: Arc<PathBuf>, mut state: watch::Receiver<State>) {
    if *state.borrow() == State::Cut || state.wait_for(|state| *state != State::Held).await.is_err() {
        return;
    }
    let Ok(mut far) = UnixStream::connect(&*to).await else { return };
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
        _ = state.wait_for(|state| *state == State::Cut) => {}
    }
}
