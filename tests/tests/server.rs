//! The server end to end: a daemon in this process, asked over its real socket.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking, its helpers included")]

use std::time::Duration;

use gpuadmit_proto::v1::{
    AdmitRequest, AdoptRequest, ClearGuardsRequest, CompleteRequest, EngineState, ExplainRequest,
    ListGuardsRequest, ProgressRequest, ReservationRef, StatusRequest, StatusResponse, WatchEventsRequest,
    WatchHeadroomRequest, admit_response, denied, explain_request::What, reservation_ref,
    session_request::Call, session_response::Answer,
};
use gpuadmit_tests::{
    served::{Served, admit, quiet, ready_engine},
    talk::{Talk, admitted, admitted_one},
};
use tokio::time::{sleep, timeout};
use tokio_stream::StreamExt as _;
use tonic::Code;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

/// Longest wait for what happens at once on an idle machine.
const SOON: Duration = Duration::from_secs(10);

fn served() -> Served {
    let served = Served::start(quiet());
    ready_engine(&served.handle);
    served
}

fn by_id(id: u64) -> Option<ReservationRef> {
    Some(ReservationRef { r#ref: Some(reservation_ref::Ref::ReservationId(id)) })
}

fn complete(id: u64) -> CompleteRequest {
    CompleteRequest { reservation: by_id(id), ..CompleteRequest::default() }
}

async fn status(served: &Served) -> StatusResponse {
    served.connection.node().status(StatusRequest::default()).await.unwrap().into_inner()
}

/// Waits until `wanted` is true of the status.
async fn until(served: &Served, wanted: impl Fn(&StatusResponse) -> bool) -> StatusResponse {
    let seen = async {
        loop {
            let status = status(served).await;
            if wanted(&status) {
                return status;
            }
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(SOON, seen).await.unwrap()
}

#[tokio::test]
async fn a_request_is_admitted_progresses_and_completes() {
    let served = served();
    let granted = admitted_one(&served).await;
    assert_eq!((granted.engine.as_str(), granted.address.as_str()), ("e", "http://127.0.0.1:8000"));
    // 150 tokens in blocks of 16.
    assert_eq!((granted.max_tokens, granted.blocks_reserved), (Some(50), 10));
    until(&served, |status| status.reservations == 1).await;

    let mut admission = served.connection.admission();
    let progress = ProgressRequest { reservation: by_id(granted.reservation_id), generated_tokens: 20 };
    assert_eq!(admission.progress(progress).await.unwrap().into_inner().lease_ms, 60_000);
    assert!(admission.complete(complete(granted.reservation_id)).await.unwrap().into_inner().was_held);
    until(&served, |status| status.reservations == 0).await;
}

#[tokio::test]
async fn completing_again_succeeds_and_what_was_never_given_is_not_found() {
    let served = served();
    let id = admitted_one(&served).await.reservation_id;
    let mut admission = served.connection.admission();
    assert!(admission.complete(complete(id)).await.unwrap().into_inner().was_held);
    assert!(!admission.complete(complete(id)).await.unwrap().into_inner().was_held);
    assert_eq!(admission.complete(complete(id + 1000)).await.unwrap_err().code(), Code::NotFound);
    let progress = ProgressRequest { reservation: by_id(id), generated_tokens: 1 };
    let error = admission.progress(progress).await.unwrap_err();
    let message = format!("reservation: {id} is not held; it ended, or its engine did");
    assert_eq!((error.code(), error.message()), (Code::NotFound, &*message));
}

/// A gateway that was cut off while it told the end tells it again, perhaps to the next daemon.
#[tokio::test]
async fn completing_again_succeeds_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = quiet();
    config.state.enabled = true;
    config.state.path = folder.path().to_owned();
    let first = Served::start(config.clone());
    ready_engine(&first.handle);
    let id = admitted_one(&first).await.reservation_id;
    assert!(first.connection.admission().complete(complete(id)).await.unwrap().into_inner().was_held);
    let second = Served::start_in(config, first.stop().await);
    let mut admission = second.connection.admission();
    assert!(!admission.complete(complete(id)).await.unwrap().into_inner().was_held);
    for never in [0xabc, id + (1 << 40), id + (2 << 40)] {
        let error = admission.complete(complete(never)).await.unwrap_err();
        let message = "was never given out; use an id that Admit returned";
        assert!(error.code() == Code::NotFound && error.message().contains(message), "{error}");
    }
}

#[tokio::test]
async fn a_denial_is_an_answer_with_an_http_status() {
    let served = served();
    let request = AdmitRequest { model: "other".into(), ..admit(1, 1) };
    let response = served.connection.admission().admit(request).await.unwrap().into_inner();
    let Some(admit_response::Result::Denied(denied)) = response.result else { panic!("admitted") };
    assert_eq!((denied.reason(), denied.http_status), (denied::Reason::UnknownModel, 404));
    assert!(!denied.message.is_empty());
}

/// By these, OpenAI's clients and LiteLLM know a context window that was exceeded (vLLM 0.32 answers with both).
#[tokio::test]
async fn what_exceeds_the_window_is_a_400_that_names_it_and_what_exceeds_the_pool_a_413() {
    let served = served();
    let mut admission = served.connection.admission();
    for (prompt, max_tokens, status, says) in [
        (5_000, 50, 400, "This model's maximum context length is 4096 tokens; the prompt has 5000 tokens"),
        (
            4_096,
            1,
            400,
            "This model's maximum context length is 4096 tokens; the prompt has 4096 tokens, which leaves",
        ),
        (3_000, 50, 413, "needs 191 blocks"),
    ] {
        let response = admission.admit(admit(prompt, max_tokens)).await.unwrap().into_inner();
        let Some(admit_response::Result::Denied(denied)) = response.result else {
            panic!("admitted {prompt}")
        };
        assert_eq!(denied.http_status, status, "{denied:?}");
        assert!(denied.message.starts_with(says), "{denied:?}");
        assert_eq!(denied.retry_after_ms, None, "waiting does not help");
    }
}

#[tokio::test]
async fn one_request_id_is_one_reservation() {
    let served = served();
    let request = AdmitRequest { request_id: Some("r".into()), ..admit(100, 50) };
    let mut admission = served.connection.admission();
    let first = admitted(admission.admit(request.clone()).await.unwrap().into_inner());
    let again = admitted(admission.admit(request.clone()).await.unwrap().into_inner());
    assert_eq!(first.reservation_id, again.reservation_id);
    let other = AdmitRequest { max_tokens: Some(51), ..request };
    assert_eq!(admission.admit(other).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn status_tells_what_is_known_and_leaves_out_what_is_not() {
    let served = served();
    let status = until(&served, |status| !status.engines.is_empty()).await;
    assert_eq!(status.version, env!("CARGO_PKG_VERSION"));
    assert!(!status.simulated && status.devices.is_empty());
    let engine = &status.engines[0];
    assert_eq!((engine.id.as_str(), engine.state()), ("e", EngineState::Ready));
    assert_eq!(engine.headroom.unwrap().blocks, 100);
    assert_eq!(engine.pools[0].blocks_total, Some(100));
    assert_eq!(engine.tokens_per_second_per_request, None);
    assert_eq!(status.reservations_limit, 4096);
}

#[tokio::test]
async fn explain_shows_the_sum_of_a_decision() {
    let served = served();
    let id = admitted_one(&served).await.reservation_id;
    let mut node = served.connection.node();
    let last = ExplainRequest { what: Some(What::Last(10)) };
    let records = node.explain(last).await.unwrap().into_inner().decisions;
    assert_eq!((records.len(), records[0].reservation_id), (1, Some(id)));
    let of = ExplainRequest { what: Some(What::Reservation(by_id(id).unwrap())) };
    let record = node.explain(of).await.unwrap().into_inner().decisions.remove(0);
    let terms = record.terms.unwrap();
    assert_eq!((terms.need, terms.limit, terms.prompt_tokens), (10, Some(100), 100));
    assert_eq!(record.reservation_state.as_deref(), Some("live"));
    let unknown = ExplainRequest { what: Some(What::Reservation(by_id(id + 1).unwrap())) };
    assert_eq!(node.explain(unknown).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn a_session_answers_calls_and_outlives_a_wrong_one() {
    let served = served();
    let mut talk = Talk::open(&served).await;
    let granted = talk.admit(7, admit(100, 50)).await;
    let wrong = AdmitRequest { n: Some(0), ..admit(1, 1) };
    let Answer::Error(error) = talk.ask(8, Call::Admit(wrong)).await else { panic!("no error") };
    assert_eq!((error.code, error.message.as_str()), (3, "n: 0 is not allowed; 1 to 128"));
    let Answer::Complete(done) = talk.ask(9, Call::Complete(complete(granted.reservation_id))).await else {
        panic!("not completed")
    };
    assert!(done.was_held);
}

#[tokio::test]
async fn a_broken_session_leaves_orphans_that_another_may_adopt() {
    let served = served();
    let mut first = Talk::open(&served).await;
    let id = first.admit(1, admit(100, 50)).await.reservation_id;
    drop(first);
    let status = until(&served, |status| status.engines[0].orphans == 1).await;
    assert_eq!(status.reservations, 1, "what may still be held is not given away");

    let mut second = Talk::open(&served).await;
    let adopt = AdoptRequest { reservation_ids: vec![id + 1, id] };
    let Answer::Adopt(adopted) = second.ask(1, Call::Adopt(adopt)).await else { panic!("not adopted") };
    assert_eq!(adopted.adopted, [id]);
    until(&served, |status| status.engines[0].orphans == 0 && status.reservations == 1).await;
}

#[tokio::test]
async fn a_reservation_whose_lease_has_run_out_becomes_an_orphan_by_itself() {
    let mut config = quiet();
    config.admission.lease_ms = 50;
    let served = Served::start(config);
    ready_engine(&served.handle);
    admitted_one(&served).await;
    until(&served, |status| status.engines.iter().any(|engine| engine.orphans == 1)).await;
}

#[tokio::test]
async fn a_session_that_its_client_closes_leaves_orphans_too() {
    let served = served();
    let mut talk = Talk::open(&served).await;
    talk.admit(1, admit(100, 50)).await;
    let Talk { calls, mut answers } = talk;
    drop(calls);
    assert!(answers.next().await.is_none(), "the stream ends without an error");
    until(&served, |status| status.engines[0].orphans == 1).await;
}

#[tokio::test]
async fn headroom_is_told_at_once_and_then_when_it_changes() {
    let served = served();
    until(&served, |status| !status.engines.is_empty()).await;
    let request = WatchHeadroomRequest { min_interval_ms: Some(10), engine: Some("e".into()) };
    let mut watch = served.connection.node().watch_headroom(request).await.unwrap().into_inner();
    let first = timeout(SOON, watch.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(first.engines[0].headroom.unwrap().blocks, 100);
    admitted_one(&served).await;
    let second = timeout(SOON, watch.next()).await.unwrap().unwrap().unwrap();
    assert_eq!(second.engines[0].headroom.unwrap().blocks, 90);
}

#[tokio::test]
async fn events_come_from_the_history_and_then_live() {
    let served = Served::start(quiet());
    let request = WatchEventsRequest { follow: true, ..WatchEventsRequest::default() };
    let mut live = served.connection.node().watch_events(request).await.unwrap().into_inner();
    ready_engine(&served.handle);
    let event = timeout(SOON, live.next()).await.unwrap().unwrap().unwrap();
    let found = event.event.unwrap();
    assert_eq!((event.missed, found.cursor, found.kind.as_str()), (0, 1, "ENGINE_FOUND"));

    let past = WatchEventsRequest { after: Some(1), ..WatchEventsRequest::default() };
    let past = served.connection.node().watch_events(past).await.unwrap().into_inner();
    let kinds: Vec<_> = past.map(|event| event.unwrap().event.unwrap().kind).collect().await;
    assert_eq!(kinds, ["ENGINE_READY"]);
}

#[tokio::test]
async fn a_number_that_no_event_has_is_not_found_and_the_newest_one_is_named() {
    let served = served();
    let request = WatchEventsRequest { after: Some(5000), ..WatchEventsRequest::default() };
    let error = served.connection.node().watch_events(request).await.unwrap_err();
    let message = "after: no event has the number 5000; use 0 to 2, the newest";
    assert_eq!((error.code(), error.message()), (Code::NotFound, message));
    let request = WatchEventsRequest { after: Some(2), ..WatchEventsRequest::default() };
    let mut events = served.connection.node().watch_events(request).await.unwrap().into_inner();
    assert!(events.next().await.is_none());
}

#[tokio::test]
async fn an_engine_that_is_not_there_is_not_found_and_those_there_are_are_named() {
    let served = served();
    let engine = || Some("nope".to_owned());
    let mut node = served.connection.node();
    let watch = WatchHeadroomRequest { engine: engine(), ..WatchHeadroomRequest::default() };
    let errors = [
        node.watch_headroom(watch).await.unwrap_err(),
        node.list_guards(ListGuardsRequest { engine: engine() }).await.unwrap_err(),
        node.clear_guards(ClearGuardsRequest { engine: engine() }).await.unwrap_err(),
    ];
    for error in errors {
        let message = "engine: there is no \"nope\"; one of \"e\"";
        assert_eq!((error.code(), error.message()), (Code::NotFound, message));
    }
}

#[tokio::test]
async fn nothing_holds_the_driver_when_nvml_is_off() {
    let served = served();
    let request = gpuadmit_proto::v1::ReleaseGpuRequest { duration_ms: 1000 };
    let error = served.connection.node().release_gpu(request).await.unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
}

fn channel(served: &Served) -> tonic::transport::Channel {
    let uri = format!("unix://{}", served.socket().display());
    tonic::transport::Endpoint::try_from(uri).unwrap().connect_lazy()
}

#[tokio::test]
async fn health_tells_of_the_server_and_of_each_service() {
    let served = served();
    let mut health = HealthClient::new(channel(&served));
    for service in ["", "gpuadmit.v1.Admission", "gpuadmit.v1.Node"] {
        let request = HealthCheckRequest { service: service.into() };
        assert_eq!(health.check(request).await.unwrap().into_inner().status, 1, "{service:?} serves");
    }
    let request = HealthCheckRequest { service: "gpuadmit.v1.Other".into() };
    assert_eq!(health.check(request).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn reflection_lists_the_services_and_describes_them() {
    use tonic_reflection::pb::v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let served = served();
    let mut client = ServerReflectionClient::new(channel(&served));
    let ask = |message| ServerReflectionRequest { host: String::new(), message_request: Some(message) };
    let requests = [
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol("gpuadmit.v1.AdmitRequest".into())),
    ];
    let answers = client.server_reflection_info(tokio_stream::iter(requests)).await.unwrap().into_inner();
    let answers: Vec<_> = answers.map(|answer| answer.unwrap().message_response.unwrap()).collect().await;
    let [MessageResponse::ListServicesResponse(list), MessageResponse::FileDescriptorResponse(file)] =
        &answers[..]
    else {
        panic!("{answers:?}")
    };
    let mut names: Vec<_> = list.service.iter().map(|service| service.name.as_str()).collect();
    names.sort_unstable();
    let reflection = "grpc.reflection.v1.ServerReflection";
    assert_eq!(names, ["gpuadmit.v1.Admission", "gpuadmit.v1.Node", "grpc.health.v1.Health", reflection]);
    assert_eq!(file.file_descriptor_proto.len(), 1);
}

#[tokio::test]
async fn reflection_v1alpha_lists_the_services_for_older_tools() {
    use tonic_reflection::pb::v1alpha::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    };
    let served = served();
    let mut client = ServerReflectionClient::new(channel(&served));
    let message_request = Some(MessageRequest::ListServices(String::new()));
    let request = ServerReflectionRequest { host: String::new(), message_request };
    let answers = client.server_reflection_info(tokio_stream::iter([request])).await.unwrap();
    let answer = answers.into_inner().next().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else { panic!() };
    assert!(list.service.iter().any(|service| service.name == "gpuadmit.v1.Admission"));
}

#[tokio::test]
async fn a_stopping_daemon_ends_sessions_and_removes_its_socket() {
    let served = served();
    let mut talk = Talk::open(&served).await;
    talk.admit(1, admit(1, 1)).await;
    let socket = served.socket();
    let folder = timeout(SOON, served.stop()).await.unwrap();
    let end = timeout(SOON, talk.answers.next()).await.unwrap().unwrap().unwrap_err();
    assert_eq!(end.code(), Code::Unavailable);
    assert!(!socket.exists());
    drop(folder);
}
