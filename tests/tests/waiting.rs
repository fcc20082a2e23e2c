//! Waiting for room over the real socket: who parks, who is woken, and who hangs up.
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking, its helpers included")]

use std::time::Duration;

use gpuadmit_proto::v1::{
    AdmitRequest, AdmitResponse, CompleteRequest, Denied, PriorityClass, ReportRequest, ReservationRef,
    SessionRequest, StatusRequest, admit_response, denied::Reason, reservation_ref, session_request::Call,
    session_response::Answer,
};
use gpuadmit_tests::{
    served::{Served, admit, quiet, ready_engine},
    talk::{Talk, admitted},
};
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt as _;
use tonic::Code;

const SOON: Duration = Duration::from_secs(10);

fn served() -> Served {
    let served = Served::start(quiet());
    ready_engine(&served.handle);
    served
}

/// Has all of the engine's 100 blocks promised.
async fn fill(served: &Served) -> u64 {
    admitted(ask(served, admit(1500, 100)).await.unwrap()).reservation_id
}

async fn ask(served: &Served, request: AdmitRequest) -> Result<AdmitResponse, tonic::Status> {
    Ok(served.connection.admission().admit(request).await?.into_inner())
}

fn patient(wait_ms: u32) -> AdmitRequest {
    AdmitRequest { wait_ms, ..admit(100, 50) }
}

fn end(id: u64) -> CompleteRequest {
    let reservation = Some(ReservationRef { r#ref: Some(reservation_ref::Ref::ReservationId(id)) });
    CompleteRequest { reservation, ..CompleteRequest::default() }
}

async fn complete(served: &Served, id: u64) {
    assert!(served.connection.admission().complete(end(id)).await.unwrap().into_inner().was_held);
}

fn denied(response: AdmitResponse) -> Denied {
    match response.result {
        Some(admit_response::Result::Denied(denied)) => denied,
        other => panic!("not denied: {other:?}"),
    }
}

/// Waits until so many requests wait in the daemon, and so many reservations are held.
async fn until(served: &Served, queued: u64, reservations: u64) {
    let seen = async {
        loop {
            let status =
                served.connection.node().status(StatusRequest::default()).await.unwrap().into_inner();
            if (status.engines[0].queued, status.reservations) == (queued, reservations) {
                return;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, seen).await.unwrap();
}

#[tokio::test]
async fn a_unary_call_parks_until_there_is_room() {
    let served = served();
    let all = fill(&served).await;
    let connection = served.connection.clone();
    let parked = tokio::spawn(async move { connection.admission().admit(patient(60_000)).await });
    until(&served, 1, 1).await;
    complete(&served, all).await;
    let answer = timeout(SOON, parked).await.unwrap().unwrap().unwrap().into_inner();
    assert_eq!(admitted(answer).max_tokens, Some(50));
    until(&served, 0, 1).await;
}

#[tokio::test]
async fn a_call_that_waits_in_vain_is_denied() {
    let served = served();
    fill(&served).await;
    let denial = denied(timeout(SOON, ask(&served, patient(50))).await.unwrap().unwrap());
    assert_eq!((denial.reason(), denial.http_status), (Reason::WaitExpired, 429));
}

#[tokio::test]
async fn a_caller_that_hangs_up_gives_up_its_place() {
    let served = served();
    let all = fill(&served).await;
    let connection = served.connection.clone();
    let parked = tokio::spawn(async move { connection.admission().admit(patient(60_000)).await });
    until(&served, 1, 1).await;
    parked.abort();
    until(&served, 0, 1).await;
    complete(&served, all).await;
    until(&served, 0, 0).await;
}

#[tokio::test]
async fn waiting_calls_of_a_session_do_not_hold_up_others() {
    let served = served();
    let mut talk = Talk::open(&served).await;
    let all = talk.admit(1, admit(1500, 100)).await;
    let call = Some(Call::Admit(patient(60_000)));
    talk.calls.send(SessionRequest { correlation_id: 2, call }).await.unwrap();
    until(&served, 1, 1).await;
    let denial = talk.ask(3, Call::Admit(admit(100, 50))).await;
    let Answer::Admit(denial) = denial else { panic!("{denial:?}") };
    assert_eq!(denied(denial).reason(), Reason::KvFull);
    talk.calls
        .send(SessionRequest { correlation_id: 4, call: Some(Call::Complete(end(all.reservation_id))) })
        .await
        .unwrap();
    let mut ids = Vec::new();
    for _ in 0..2 {
        ids.push(timeout(SOON, talk.answers.next()).await.unwrap().unwrap().unwrap().correlation_id);
    }
    ids.sort_unstable();
    assert_eq!(ids, [2, 4]);
}

#[tokio::test]
async fn calls_of_a_session_beyond_its_bound_are_answered_at_once() {
    let mut config = quiet();
    config.queue.waits_per_session = 1;
    let served = Served::start(config);
    ready_engine(&served.handle);
    let mut talk = Talk::open(&served).await;
    let _all = talk.admit(1, admit(1500, 100)).await;
    let call = Some(Call::Admit(patient(60_000)));
    talk.calls.send(SessionRequest { correlation_id: 2, call }).await.unwrap();
    let answer = talk.ask(3, Call::Admit(patient(60_000))).await;
    let Answer::Admit(answer) = answer else { panic!("{answer:?}") };
    assert_eq!(denied(answer).reason(), Reason::KvFull);
}

#[tokio::test]
async fn a_session_that_breaks_waits_no_more() {
    let served = served();
    let all = fill(&served).await;
    let talk = Talk::open(&served).await;
    let call = Some(Call::Admit(patient(60_000)));
    talk.calls.send(SessionRequest { correlation_id: 1, call }).await.unwrap();
    until(&served, 1, 1).await;
    drop(talk);
    until(&served, 0, 1).await;
    complete(&served, all).await;
    until(&served, 0, 0).await;
}

#[tokio::test]
async fn a_session_whose_caller_asks_nothing_more_still_gets_its_answers() {
    let served = served();
    let all = fill(&served).await;
    let Talk { calls, mut answers } = Talk::open(&served).await;
    calls.send(SessionRequest { correlation_id: 1, call: Some(Call::Admit(patient(60_000))) }).await.unwrap();
    drop(calls);
    until(&served, 1, 1).await;
    complete(&served, all).await;
    let answer = timeout(SOON, answers.next()).await.unwrap().unwrap().unwrap();
    assert!(matches!(answer.answer, Some(Answer::Admit(_))));
    assert!(timeout(SOON, answers.next()).await.unwrap().is_none());
}

#[tokio::test]
async fn a_stopping_daemon_answers_those_who_wait() {
    let served = served();
    fill(&served).await;
    let connection = served.connection.clone();
    let parked = tokio::spawn(async move { connection.admission().admit(patient(60_000)).await });
    until(&served, 1, 1).await;
    let _folder = timeout(SOON, served.stop()).await.unwrap();
    let error = timeout(SOON, parked).await.unwrap().unwrap().unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
}

#[tokio::test]
async fn many_that_wait_are_all_answered_as_those_before_them_end() {
    let mut config = quiet();
    config.queue.depth = 64;
    let admission = &mut config.admission;
    (admission.risk_interactive, admission.risk_standard) = (0.0, 0.0);
    let served = Served::start(config);
    ready_engine(&served.handle);
    let all = fill(&served).await;
    let parked: Vec<_> = (0..50)
        .map(|number| {
            let connection = served.connection.clone();
            let class = if number % 2 == 0 { PriorityClass::Interactive } else { PriorityClass::Standard };
            let request = AdmitRequest { priority_class: class.into(), ..patient(60_000) };
            tokio::spawn(async move {
                let answer = connection.admission().admit(request).await.unwrap().into_inner();
                let id = admitted(answer).reservation_id;
                sleep(Duration::from_millis(5)).await;
                connection.admission().complete(end(id)).await.unwrap().into_inner().was_held
            })
        })
        .collect();
    until(&served, 50, 1).await;
    complete(&served, all).await;
    for one in parked {
        assert!(timeout(SOON, one).await.unwrap().unwrap());
    }
    until(&served, 0, 0).await;
}

#[tokio::test]
async fn the_report_tells_what_was_denied_by_reason() {
    let served = served();
    fill(&served).await;
    let _ = denied(ask(&served, admit(100, 50)).await.unwrap());
    let report = served.connection.node().report(ReportRequest::default()).await.unwrap().into_inner();
    let hour = &report.engines[0].hours[0];
    assert_eq!((hour.admitted, hour.denied, hour.would_have_denied), (1, 1, 0));
    assert_eq!((hour.by_reason[0].reason(), hour.by_reason[0].count), (Reason::KvFull, 1));
    let wrong = served.connection.node().report(ReportRequest { hours: Some(49) }).await.unwrap_err();
    assert_eq!(wrong.message(), "hours: 49 is not allowed; 1 to 48");
}
