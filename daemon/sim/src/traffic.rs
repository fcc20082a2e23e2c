//! Traffic: clients behind a gateway that asks for admission, and some that do not ask.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use tokio::{
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::{
    live::{Ask, Live, Stream},
    mishap,
    number::len,
    random::Random,
    scenario::{EngineSpec, Incident, Traffic},
    stats::Finish,
};

/// Requests under way at once; arrivals beyond are turned away.
pub const MAX_IN_FLIGHT: usize = 2048;
/// Pause between two reports of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(2);

/// A request that a gateway asks admission for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimRequest {
    /// Counts from 1.
    pub number: u64,
    /// Model.
    pub model: Arc<str>,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Output limit, where the client sets one.
    pub max_tokens: Option<u64>,
}

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gated {
    /// Send it.
    Admitted {
        /// Names the promise.
        ticket: u64,
        /// Name of the engine to send it to.
        engine: Arc<str>,
        /// Output limit granted; `None`: none is imposed.
        max_tokens: Option<u64>,
    },
    /// Turn it away.
    Denied,
}

/// How a request came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The engine finished it.
    Finished {
        /// Tokens it generated.
        output_tokens: u64,
    },
    /// The engine died or dropped it.
    EngineError,
    /// The engine did not take it.
    NotSent,
}

/// Who is asked for admission.
pub trait Gate: Send + Sync + 'static {
    /// May it go in?
    fn admit(&self, request: &SimRequest) -> impl Future<Output = Gated> + Send;

    /// It has generated so many tokens.
    fn progress(&self, ticket: u64, generated: u64) -> impl Future<Output = ()> + Send;

    /// It has ended.
    fn complete(&self, ticket: u64, ended: Ended) -> impl Future<Output = ()> + Send;
}

/// What became of the requests so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficCounts {
    /// All that arrived.
    pub arrived: u64,
    /// Went to an engine without asking.
    pub bypassed: u64,
    /// Admitted.
    pub admitted: u64,
    /// Denied.
    pub denied: u64,
    /// Finished by an engine.
    pub finished: u64,
    /// Not taken, dropped, or lost with an engine.
    pub failed: u64,
    /// Turned away by this generator's own limit.
    pub over_limit: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    arrived: AtomicU64,
    bypassed: AtomicU64,
    admitted: AtomicU64,
    denied: AtomicU64,
    finished: AtomicU64,
    failed: AtomicU64,
    over_limit: AtomicU64,
}

impl Counters {
    pub(crate) fn read(&self) -> TrafficCounts {
        TrafficCounts {
            arrived: self.arrived.load(Relaxed),
            bypassed: self.bypassed.load(Relaxed),
            admitted: self.admitted.load(Relaxed),
            denied: self.denied.load(Relaxed),
            finished: self.finished.load(Relaxed),
            failed: self.failed.load(Relaxed),
            over_limit: self.over_limit.load(Relaxed),
        }
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// One arrival, drawn before anything happens to it, so that the same seed gives the same requests.
struct Arrival {
    request: SimRequest,
    bypass: bool,
    lost: bool,
    /// Picks the engine of a request that does not ask.
    dice: u64,
}

/// Lets requests arrive until dropped; those under way end with it.
pub(crate) async fn drive<G: Gate>(
    traffic: Traffic,
    seed: u64,
    engines: Arc<[Arc<Live>]>,
    counters: Arc<Counters>,
    gate: Arc<G>,
) {
    if traffic.requests_per_second <= 0.0 {
        return;
    }
    let mut random = Random::new(seed);
    let models = models(&engines);
    let mut requests = JoinSet::new();
    let mut due = Instant::now();
    for number in 1.. {
        let gap = Duration::try_from_secs_f64(random.exponential() / traffic.requests_per_second);
        due += gap.unwrap_or(Duration::MAX / 1024);
        sleep_until(due).await;
        while requests.try_join_next().is_some() {}
        count(&counters.arrived);
        let Some(arrival) = draw(&traffic, &models, number, &mut random) else { return };
        if requests.len() >= MAX_IN_FLIGHT {
            count(&counters.over_limit);
            continue;
        }
        let (engines, counters, gate) = (Arc::clone(&engines), Arc::clone(&counters), Arc::clone(&gate));
        requests.spawn(async move {
            if arrival.bypass {
                bypass(&engines, &counters, &arrival).await;
            } else {
                ask(&engines, &counters, &arrival, &*gate).await;
            }
        });
    }
}

/// When more requests come than usual.
#[derive(Debug)]
pub(crate) struct Bursts {
    pub(crate) start: Instant,
    pub(crate) incidents: Vec<Incident>,
}

/// Time between two looks for a burst.
const BURST_LOOK: Duration = Duration::from_millis(100);
/// Sets the requests of bursts apart from the usual ones.
const BURST_SEED: u64 = 0x0b07_5715;

/// Lets the requests of bursts arrive, past admission, until dropped.
pub(crate) async fn burst(
    traffic: Traffic,
    bursts: Bursts,
    seed: u64,
    engines: Arc<[Arc<Live>]>,
    counters: Arc<Counters>,
) {
    if !bursts.incidents.iter().any(|incident| matches!(incident, Incident::Burst { .. })) {
        return;
    }
    let mut random = Random::new(seed ^ BURST_SEED);
    let models = models(&engines);
    let mut requests = JoinSet::new();
    for number in 1.. {
        let rate = mishap::burst(&bursts.incidents, bursts.start.elapsed());
        let gap = Duration::try_from_secs_f64(random.exponential() / rate).unwrap_or(BURST_LOOK);
        sleep(gap.min(BURST_LOOK)).await;
        while requests.try_join_next().is_some() {}
        if gap >= BURST_LOOK || requests.len() >= MAX_IN_FLIGHT {
            continue;
        }
        count(&counters.arrived);
        let Some(arrival) = draw(&traffic, &models, number, &mut random) else { return };
        let (engines, counters) = (Arc::clone(&engines), Arc::clone(&counters));
        requests.spawn(async move { bypass(&engines, &counters, &arrival).await });
    }
}

/// Each model once, with the smallest window among its engines.
fn models(engines: &[Arc<Live>]) -> Vec<(Arc<str>, u64)> {
    let mut models: Vec<(Arc<str>, u64)> = Vec::new();
    for EngineSpec { model, max_model_len, .. } in engines.iter().map(|engine| &engine.spec) {
        match models.iter_mut().find(|(known, _)| **known == **model) {
            Some((_, window)) => *window = (*window).min(*max_model_len),
            None => models.push((model.as_str().into(), *max_model_len)),
        }
    }
    models
}

fn draw(traffic: &Traffic, models: &[(Arc<str>, u64)], number: u64, random: &mut Random) -> Option<Arrival> {
    let (model, window) = pick(models, random.bits())?;
    // A client keeps its prompt and limit within the window.
    let prompt_tokens = traffic.prompt_tokens.draw(random).min(window - 1);
    let limit = traffic.max_tokens.min(window - prompt_tokens);
    let max_tokens = (!random.chance(traffic.without_max_tokens)).then_some(limit);
    let request = SimRequest { number, model: Arc::clone(model), prompt_tokens, max_tokens };
    let (bypass, lost) = (random.chance(traffic.bypass), random.chance(traffic.lost_completions));
    Some(Arrival { request, bypass, lost, dice: random.bits() })
}

fn pick<T>(among: &[T], dice: u64) -> Option<&T> {
    let position = dice.checked_rem(len(among.len()))?;
    among.get(usize::try_from(position).ok()?)
}

async fn bypass(engines: &[Arc<Live>], counters: &Counters, arrival: &Arrival) {
    count(&counters.bypassed);
    let serving: Vec<_> =
        engines.iter().filter(|engine| *engine.spec.model == *arrival.request.model).collect();
    let Some(engine) = pick(&serving, arrival.dice) else { return };
    let ended = match send(engine, &arrival.request, arrival.request.max_tokens) {
        Some(mut stream) => ended(stream.end().await),
        None => Ended::NotSent,
    };
    settle(counters, ended);
}

async fn ask<G: Gate>(engines: &[Arc<Live>], counters: &Counters, arrival: &Arrival, gate: &G) {
    let Gated::Admitted { ticket, engine, max_tokens } = gate.admit(&arrival.request).await else {
        return count(&counters.denied);
    };
    count(&counters.admitted);
    let engine = engines.iter().find(|known| *known.spec.name == *engine);
    let ended = match engine.and_then(|engine| send(engine, &arrival.request, max_tokens)) {
        Some(stream) => follow(stream, ticket, gate).await,
        None => Ended::NotSent,
    };
    settle(counters, ended);
    if !arrival.lost {
        gate.complete(ticket, ended).await;
    }
}

fn send(engine: &Arc<Live>, request: &SimRequest, max_tokens: Option<u64>) -> Option<Stream> {
    let ask = Ask { prompt_tokens: request.prompt_tokens, max_tokens, ignore_eos: false };
    engine.submit(ask).ok()
}

/// Reports progress until the end.
async fn follow<G: Gate>(mut stream: Stream, ticket: u64, gate: &G) -> Ended {
    loop {
        match timeout(PROGRESS_INTERVAL, stream.end()).await {
            Ok(end) => return ended(end),
            Err(_) => gate.progress(ticket, stream.progress().generated).await,
        }
    }
}

fn ended(end: Option<crate::live::Progress>) -> Ended {
    match end {
        Some(progress) if progress.finish != Some(Finish::Abort) => {
            Ended::Finished { output_tokens: progress.generated }
        }
        _ => Ended::EngineError,
    }
}

fn settle(counters: &Counters, ended: Ended) {
    match ended {
        Ended::Finished { .. } => count(&counters.finished),
        Ended::EngineError | Ended::NotSent => count(&counters.failed),
    }
}
