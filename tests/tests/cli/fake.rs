//! A daemon with canned answers, which remembers what it was asked.

use std::{
    path::Path,
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use gpuadmit_proto::v1::{
    AdmitRequest, AdmitResponse, Admitted, ClearGuardsRequest, ClearGuardsResponse, CompleteRequest,
    CompleteResponse, DecisionRecord, Denied, Device, DeviceHeadroom, Engine, EngineHeadroom, EngineReport,
    EngineState, Event, ExplainRequest, ExplainResponse, Fared, Guard, Headroom, ListGuardsRequest,
    ListGuardsResponse, Mode, ProgressRequest, ProgressResponse, ReasonCount, ReleaseGpuRequest,
    ReleaseGpuResponse, ReportHour, ReportRequest, ReportResponse, SessionRequest, SessionResponse,
    StatusRequest, StatusResponse, Terms, WatchEventsRequest, WatchEventsResponse, WatchHeadroomRequest,
    WatchHeadroomResponse,
    admission_server::{Admission, AdmissionServer},
    admit_response::Result as Answer,
    denied::Reason,
    node_server::{Node, NodeServer},
};
use tokio::net::UnixListener;
use tokio_stream::{Stream, StreamExt as _, wrappers::UnixListenerStream};
use tonic::{Request, Response, Status, Streaming, body::Body, codegen::http, transport::Server};
use tower::{Service as _, service_fn};

/// Reservation that the fake gives out.
pub(crate) const RESERVATION: u64 = 0xff_ffff_0000_0001;
/// A model that it always denies.
pub(crate) const FULL: &str = "full";
/// A model that it calls an error.
pub(crate) const WRONG: &str = "wrong";

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;
type Outcome<T> = Result<Response<T>, Status>;

/// What the fake was last asked, by kind of call.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    pub(crate) admit: Option<AdmitRequest>,
    pub(crate) progress: Option<ProgressRequest>,
    pub(crate) complete: Option<CompleteRequest>,
    pub(crate) explain: Option<ExplainRequest>,
    pub(crate) events: Option<WatchEventsRequest>,
    pub(crate) headroom: Option<WatchHeadroomRequest>,
    pub(crate) release: Option<ReleaseGpuRequest>,
}

/// The daemon.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fake(Arc<Mutex<Asked>>);

impl Fake {
    /// Serves at `socket` until the runtime ends.
    pub(crate) fn serve(socket: &Path) -> Self {
        let fake = Self::default();
        let connections = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
        let served = fake.clone();
        let services = service_fn(move |request: http::Request<Body>| {
            let fake = served.clone();
            async move {
                if request.uri().path().starts_with("/gpuadmit.v1.Node/") {
                    NodeServer::new(fake).call(request).await
                } else {
                    AdmissionServer::new(fake).call(request).await
                }
            }
        });
        tokio::spawn(Server::builder().serve_with_incoming(services, connections));
        fake
    }

    /// What it was asked.
    pub(crate) fn asked(&self) -> std::sync::MutexGuard<'_, Asked> {
        self.0.lock().unwrap()
    }
}

#[tonic::async_trait]
impl Admission for Fake {
    type SessionStream = Answers<SessionResponse>;

    async fn admit(&self, request: Request<AdmitRequest>) -> Outcome<AdmitResponse> {
        let request = request.into_inner();
        let result = match request.model.as_str() {
            WRONG => return Err(Status::invalid_argument("n: 0 is not allowed; 1 to 128")),
            FULL => Answer::Denied(Denied {
                reason: Reason::KvFull.into(),
                message: "1,300 of 1,200 blocks would be in use".into(),
                http_status: 429,
                retry_after_ms: Some(2_400),
                engine: Some("vllm-8000".into()),
            }),
            _ => Answer::Admitted(Admitted {
                reservation_id: RESERVATION,
                lease_ms: 60_000,
                engine: "vllm-8000".into(),
                address: "http://127.0.0.1:8000".into(),
                max_tokens: Some(128),
                blocks_reserved: 70,
                ..Admitted::default()
            }),
        };
        self.asked().admit = Some(request);
        Ok(Response::new(AdmitResponse { result: Some(result), ..AdmitResponse::default() }))
    }

    async fn progress(&self, request: Request<ProgressRequest>) -> Outcome<ProgressResponse> {
        self.asked().progress = Some(request.into_inner());
        Ok(Response::new(ProgressResponse { lease_ms: 60_000 }))
    }

    async fn complete(&self, request: Request<CompleteRequest>) -> Outcome<CompleteResponse> {
        self.asked().complete = Some(request.into_inner());
        Ok(Response::new(CompleteResponse { was_held: true }))
    }

    async fn session(&self, _: Request<Streaming<SessionRequest>>) -> Outcome<Self::SessionStream> {
        Err(Status::unimplemented("the command has no use for sessions"))
    }
}

#[tonic::async_trait]
impl Node for Fake {
    type WatchHeadroomStream = Answers<WatchHeadroomResponse>;
    type WatchEventsStream = Answers<WatchEventsResponse>;

    async fn status(&self, _: Request<StatusRequest>) -> Outcome<StatusResponse> {
        let engine = Engine { id: "vllm-8000".into(), headroom: Some(room()), ..Engine::default() };
        let headroom = Some(DeviceHeadroom { bytes: 1 << 30, age_ms: 100 });
        let device = Device { uuid: "GPU-1".into(), headroom, ..Device::default() };
        let status = StatusResponse {
            version: "0.1.0".into(),
            engines: vec![engine],
            devices: vec![device],
            ..StatusResponse::default()
        };
        Ok(Response::new(status))
    }

    async fn watch_headroom(
        &self,
        request: Request<WatchHeadroomRequest>,
    ) -> Outcome<Self::WatchHeadroomStream> {
        self.asked().headroom = Some(request.into_inner());
        let engine = EngineHeadroom {
            engine: "vllm-8000".into(),
            state: EngineState::Ready.into(),
            headroom: Some(room()),
        };
        let changes = std::iter::repeat(Ok(WatchHeadroomResponse { engines: vec![engine] }));
        Ok(Response::new(Box::pin(slowly(changes))))
    }

    async fn watch_events(&self, request: Request<WatchEventsRequest>) -> Outcome<Self::WatchEventsStream> {
        let request = request.into_inner();
        let (first, follow) = (request.after.unwrap_or(0) + 1, request.follow);
        self.asked().events = Some(request);
        let events = (first..).map(|cursor| {
            Ok(WatchEventsResponse { event: Some(event(cursor)), ..WatchEventsResponse::default() })
        });
        let stream: Answers<_> =
            if follow { Box::pin(slowly(events)) } else { Box::pin(tokio_stream::iter(events.take(2))) };
        Ok(Response::new(stream))
    }

    async fn explain(&self, request: Request<ExplainRequest>) -> Outcome<ExplainResponse> {
        self.asked().explain = Some(request.into_inner());
        let terms =
            Terms { reported: Some(1_000), growth: 100, need: 70, limit: Some(1_200), ..Terms::default() };
        let record = DecisionRecord {
            reservation_id: Some(RESERVATION),
            model: "m".into(),
            terms: Some(terms),
            message: "admitted".into(),
            ..DecisionRecord::default()
        };
        Ok(Response::new(ExplainResponse { decisions: vec![record] }))
    }

    async fn report(&self, _: Request<ReportRequest>) -> Outcome<ReportResponse> {
        let fared = |time_ms, queued_ms, preemptions| Some(Fared { time_ms, queued_ms, preemptions });
        let hour = |start_unix_ms, by_reason: Vec<ReasonCount>| ReportHour {
            start_unix_ms,
            admitted: 900,
            would_have_denied: by_reason.iter().map(|one| one.count).sum(),
            denied: 0,
            by_reason,
            pressed: fared(600_000, 240_000, 20),
            calm: fared(3_000_000, 0, 1),
        };
        let count = |reason: Reason, count| ReasonCount { reason: reason.into(), count };
        let hours = vec![
            hour(1_700_000_000_000, vec![count(Reason::KvFull, 30)]),
            hour(1_700_003_600_000, vec![count(Reason::KvFull, 10), count(Reason::Ttft, 5)]),
        ];
        let engine = EngineReport { engine: "vllm-8000".into(), mode: Mode::Observe.into(), hours };
        Ok(Response::new(ReportResponse { engines: vec![engine], uptime_ms: 90_000_000 }))
    }

    async fn release_gpu(&self, request: Request<ReleaseGpuRequest>) -> Outcome<ReleaseGpuResponse> {
        self.asked().release = Some(request.into_inner());
        Ok(Response::new(ReleaseGpuResponse { released: true }))
    }

    async fn list_guards(&self, _request: Request<ListGuardsRequest>) -> Outcome<ListGuardsResponse> {
        Ok(Response::new(ListGuardsResponse { guards: vec![guard()] }))
    }

    async fn clear_guards(&self, request: Request<ClearGuardsRequest>) -> Outcome<ClearGuardsResponse> {
        let engine = request.into_inner().engine;
        Ok(Response::new(ClearGuardsResponse { cleared: if engine.as_deref() == Some("a") { 1 } else { 2 } }))
    }
}

fn guard() -> Guard {
    Guard {
        engine: "a".into(),
        prompt_tokens_min: 5_793,
        prompt_tokens_max: 8_191,
        deaths: 2,
        ..Guard::default()
    }
}

fn room() -> Headroom {
    Headroom { blocks: 100, blocks_lower: 90, tokens: 1_600, tokens_lower: 1_440, age_ms: 200 }
}

fn event(cursor: u64) -> Event {
    Event { cursor, kind: "ENGINE_READY".into(), message: "answers".into(), ..Event::default() }
}

/// One after the other, some dozens a second.
fn slowly<T: Send + 'static>(
    items: impl Iterator<Item = T> + Send + 'static,
) -> impl Stream<Item = T> + Send {
    tokio_stream::iter(items).throttle(Duration::from_millis(20))
}
