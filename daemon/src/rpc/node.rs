//! `gpuadmit.v1.Node`: what operators and monitors read, from snapshots and histories.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use gpuadmit_core::{explain::RECORDS, guard::Held, request::Reference, snapshot::Snapshot};
use gpuadmit_proto::v1::{
    ClearGuardsRequest, ClearGuardsResponse, EngineHeadroom, ExplainRequest, ExplainResponse,
    ListGuardsRequest, ListGuardsResponse, ReleaseGpuRequest, ReleaseGpuResponse, ReportRequest,
    ReportResponse, StatusRequest, StatusResponse, WatchEventsRequest, WatchEventsResponse,
    WatchHeadroomRequest, WatchHeadroomResponse, explain_request::What, node_server,
};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::{
    Parts, ReleaseGpu, admission, check,
    convert::{self, invalid, millis},
    events::Watch,
    peer::peer_of,
    report,
    status::{self, Clocks},
    until::Until,
};

const HOURS_DEFAULT: u32 = 24;
const HOURS_MOST: u64 = 48;
const EVENTS_DEFAULT: u32 = 10;
const EVENTS_MOST: u64 = 256;
const EXPLAINED_MOST: u64 = 256;
/// Messages that wait for one slow reader.
const WATCH_QUEUE: usize = 4;
const WATCH_INTERVAL_DEFAULT_MS: u32 = 100;
const RELEASE_MOST_MS: u64 = 86_400_000;

type Watched<T> = Until<ReceiverStream<Result<T, Status>>>;

/// The service.
pub(super) struct Node {
    parts: Parts,
    started: Instant,
}

impl Node {
    pub(super) fn new(parts: &Parts) -> Self {
        Self { parts: parts.clone(), started: Instant::now() }
    }

    fn watched<T>(&self, messages: mpsc::Receiver<Result<T, Status>>) -> Response<Watched<T>> {
        Response::new(Until::new(self.parts.stopping.clone(), ReceiverStream::new(messages)))
    }

    /// The engine asked for, where one is: one that the node knows, or one of `guards`, which outlive it.
    fn engine_of<'a>(&self, engine: Option<&'a String>, guards: &[Held]) -> Result<Option<&'a str>, Status> {
        let Some(engine) = convert::not_empty(engine) else { return Ok(None) };
        check::name("engine", engine, 0, "at most 128 bytes").map_err(invalid)?;
        let engines = self.parts.handle.engine_ids();
        let guarded = guards.iter().map(|held| &*held.engine);
        let known: BTreeSet<&str> = engines.iter().map(|id| &**id).chain(guarded).collect();
        if known.contains(engine) {
            return Ok(Some(engine));
        }
        let allowed = check::one_of(known.into_iter());
        Err(Status::not_found(format!("engine: there is no {engine:?}; {allowed}")))
    }
}

#[tonic::async_trait]
impl node_server::Node for Node {
    type WatchHeadroomStream = Watched<WatchHeadroomResponse>;
    type WatchEventsStream = Watched<WatchEventsResponse>;

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let events = request.get_ref().events;
        let events = check::optional("events", events, 0..=EVENTS_MOST, "0 to 256").map_err(invalid)?;
        let events = usize::try_from(events.unwrap_or(EVENTS_DEFAULT)).unwrap_or(usize::MAX);
        let uptime = self.started.elapsed();
        Ok(Response::new(StatusResponse {
            version: env!("CARGO_PKG_VERSION").into(),
            uptime_ms: millis(uptime),
            simulated: self.parts.simulated,
            pid: Some(std::process::id()),
            tokenizers: Some(status::tokenizers(self.parts.tokens.status())),
            ..status::status(&self.parts.handle.snapshot(), uptime, events)
        }))
    }

    async fn watch_headroom(
        &self,
        request: Request<WatchHeadroomRequest>,
    ) -> Result<Response<Self::WatchHeadroomStream>, Status> {
        let request = request.into_inner();
        let every = check::optional("min_interval_ms", request.min_interval_ms, 10..=60_000, "10 to 60000");
        let every = every.map_err(invalid)?.unwrap_or(WATCH_INTERVAL_DEFAULT_MS);
        self.engine_of(request.engine.as_ref(), &[])?;
        let (sender, receiver) = mpsc::channel(WATCH_QUEUE);
        let snapshots = self.parts.handle.watch();
        let wanted = request.engine.filter(|engine| !engine.is_empty());
        tokio::spawn(watch_headroom(snapshots, wanted, Duration::from_millis(every.into()), sender));
        Ok(self.watched(receiver))
    }

    async fn watch_events(
        &self,
        request: Request<WatchEventsRequest>,
    ) -> Result<Response<Self::WatchEventsStream>, Status> {
        let watch = Watch::asked(&self.parts.handle, request.get_ref())?;
        let (sender, receiver) = mpsc::channel(WATCH_QUEUE);
        tokio::spawn(watch.run(sender));
        Ok(self.watched(receiver))
    }

    async fn explain(&self, request: Request<ExplainRequest>) -> Result<Response<ExplainResponse>, Status> {
        let uid = peer_of(&request)?.uid;
        let handle = &self.parts.handle;
        let explained = match &request.get_ref().what {
            Some(What::Last(most)) => {
                let most = check::number("last", *most, 1..=EXPLAINED_MOST, "1 to 256").map_err(invalid)?;
                handle.explain_newest(usize::try_from(most).unwrap_or(usize::MAX))
            }
            Some(What::Reservation(reference)) => {
                let of = convert::reference(Some(reference), uid).map_err(invalid)?;
                vec![handle.explain(of).ok_or_else(|| no_record(of))?]
            }
            None => return Err(invalid(check::absent("what", "one of reservation, last"))),
        };
        let clocks = Clocks::read();
        let decisions = explained.iter().map(|one| status::explained(one, clocks)).collect();
        Ok(Response::new(ExplainResponse { decisions }))
    }

    async fn report(&self, request: Request<ReportRequest>) -> Result<Response<ReportResponse>, Status> {
        let hours = request.get_ref().hours;
        let hours = check::optional("hours", hours, 1..=HOURS_MOST, "1 to 48").map_err(invalid)?;
        let hours = usize::try_from(hours.unwrap_or(HOURS_DEFAULT)).unwrap_or(usize::MAX);
        let handle = &self.parts.handle;
        let (now, clocks) = (handle.snapshot(), Clocks::read());
        let engines = handle.report(hours).iter().map(|one| report::engine(one, &now, clocks)).collect();
        Ok(Response::new(ReportResponse { engines, uptime_ms: millis(self.started.elapsed()) }))
    }

    async fn release_gpu(
        &self,
        request: Request<ReleaseGpuRequest>,
    ) -> Result<Response<ReleaseGpuResponse>, Status> {
        let duration = request.get_ref().duration_ms;
        if duration != 0 {
            let allowed = "0, or 1000 to 86400000";
            check::number("duration_ms", duration, 1_000..=RELEASE_MOST_MS, allowed).map_err(invalid)?;
        }
        let release: &ReleaseGpu = self.parts.release_gpu.as_ref().ok_or_else(|| {
            Status::failed_precondition(
                "the driver is not held: NVML is not read (nvml.enabled is false, or the node is simulated); nothing needs \
                 to be released",
            )
        })?;
        let released = release(Duration::from_millis(duration)).await;
        Ok(Response::new(ReleaseGpuResponse { released }))
    }

    async fn list_guards(
        &self,
        request: Request<ListGuardsRequest>,
    ) -> Result<Response<ListGuardsResponse>, Status> {
        let held = self.parts.handle.guards();
        let engine = self.engine_of(request.get_ref().engine.as_ref(), &held)?;
        let wanted = held.into_iter().filter(|held| engine.is_none_or(|engine| *held.engine == *engine));
        Ok(Response::new(ListGuardsResponse { guards: wanted.map(|held| status::guard(&held)).collect() }))
    }

    async fn clear_guards(
        &self,
        request: Request<ClearGuardsRequest>,
    ) -> Result<Response<ClearGuardsResponse>, Status> {
        let guards = self.parts.handle.guards();
        let engine = self.engine_of(request.get_ref().engine.as_ref(), &guards)?;
        let cleared = self.parts.handle.clear_guards(engine);
        Ok(Response::new(ClearGuardsResponse { cleared: u32::try_from(cleared).unwrap_or(u32::MAX) }))
    }
}

/// There is no record of a decision.
fn no_record(of: Reference<'_>) -> Status {
    let of = admission::named(of);
    Status::not_found(format!(
        "reservation: there is no record of {of}; the newest {RECORDS} decisions are kept"
    ))
}

/// Sends the headroom of the engines watched whenever it has changed, at most once in `every`.
async fn watch_headroom(
    mut snapshots: watch::Receiver<Arc<Snapshot>>,
    wanted: Option<String>,
    every: Duration,
    to: mpsc::Sender<Result<WatchHeadroomResponse, Status>>,
) {
    let mut told: Option<Vec<EngineHeadroom>> = None;
    loop {
        let engines = status::engine_headrooms(&snapshots.borrow_and_update(), wanted.as_deref());
        // The engine asked for is there, but may be newer than the snapshot.
        let awaited = wanted.is_some() && told.is_none() && engines.is_empty();
        if !awaited && told.as_ref().is_none_or(|told| changed(told, &engines)) {
            let message = WatchHeadroomResponse { engines: engines.clone() };
            if to.send(Ok(message)).await.is_err() {
                return;
            }
            told = Some(engines);
            tokio::select! {
                () = sleep(every) => {}
                () = to.closed() => return,
            }
        }
        tokio::select! {
            changed = snapshots.changed() => if changed.is_err() { return },
            () = to.closed() => return,
        }
    }
}

/// Whether something else than the age of figures has changed.
fn changed(before: &[EngineHeadroom], now: &[EngineHeadroom]) -> bool {
    let figures = |one: &EngineHeadroom| {
        one.headroom.as_ref().map(|room| (room.blocks, room.blocks_lower, room.tokens, room.tokens_lower))
    };
    let same = |a: &EngineHeadroom, b: &EngineHeadroom| {
        a.engine == b.engine && a.state == b.state && figures(a) == figures(b)
    };
    before.len() != now.len() || !before.iter().zip(now).all(|(a, b)| same(a, b))
}
