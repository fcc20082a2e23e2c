//! gpuadmit itself: the node of `gpuadmit-core`, through its public API only.

use std::{collections::HashMap, time::Duration};

use gpuadmit_core::{
    node::Node,
    observation::{
        EngineFacts, EngineProcess, EngineReading, Observation, ProcessRole, RankReading, ServedModel,
    },
    parts::Parts,
    request::{Class, Completion, Prompt, Reference, Request as Question, ReservationId, Verdict},
    settings::Settings,
    units::{Mono, Span, Tokens},
};

use super::{Answer, Ask, End, Estimate, Policy};
use crate::{
    engine::{EngineSetup, RequestId},
    situation::{self, Situation},
    time::{MILLISECOND, Nanos},
};

const ENGINE: &str = "engine";
const MODEL: &str = "model";

pub(crate) struct Gpuadmit {
    node: Node,
    /// Whether the gateway reports first tokens and progress.
    first_tokens: bool,
    /// Whether callers name their objective.
    named: bool,
    class: Class,
    reservations: HashMap<RequestId, ReservationId>,
    /// Time between scrapes.
    interval: Nanos,
}

/// The daemon's own interval: 1.2 ms of the engine's CPU per reading, and no more than one per cent of a core.
const INSTALLED: Nanos = 120 * MILLISECOND;

impl Gpuadmit {
    /// As `situation` has it.
    pub(crate) fn new(situation: &Situation, parts: Parts) -> Self {
        let mut settings = Settings { parts, ..Settings::default() };
        settings.tenant_default.pool_share =
            situation.tenant_share.unwrap_or(settings.tenant_default.pool_share);
        Self {
            node: Node::new(settings, 1),
            first_tokens: situation.gateway.first_tokens,
            named: situation.objective.named,
            class: class(situation.objective.class()),
            reservations: HashMap::new(),
            interval: situation.telemetry.interval,
        }
    }

    /// At the interval that the daemon takes by itself where a filtered reading costs what vLLM 0.32 takes for it.
    pub(crate) fn as_installed(situation: &Situation, parts: Parts) -> Self {
        Self { interval: INSTALLED, ..Self::new(situation, parts) }
    }

    /// Behind a gateway that reports nothing but ends.
    pub(crate) fn ends_only(situation: &Situation, parts: Parts) -> Self {
        Self { first_tokens: false, ..Self::new(situation, parts) }
    }

    /// Does what has become due by now.
    fn tick(&mut self, at: Nanos) {
        while self.node.poll_timeout().is_some_and(|due| due <= mono(at)) {
            let due = self.node.poll_timeout().unwrap_or_default();
            self.node.handle_timeout(due.max(mono(0)));
            if self.node.poll_timeout() == Some(due) {
                break;
            }
        }
    }
}

/// The run's time on the node's clock, which starts well after zero.
pub(crate) const fn mono(at: Nanos) -> Mono {
    Mono(1_000_000_000_000 + at)
}

impl Policy for Gpuadmit {
    fn started(&mut self, at: Nanos, setup: &EngineSetup, reading: RankReading) {
        self.node.observe(mono(at), Observation::Engine(Box::new(facts(at, setup))));
        let span = Span::at(mono(at));
        let ranks = vec![reading];
        let interval = Duration::from_nanos(self.interval);
        let reading = EngineReading { span, ranks, interval, ..EngineReading::default() };
        self.scraped(at, &reading);
    }

    fn decide(&mut self, ask: &Ask<'_>) -> Answer {
        self.tick(ask.at);
        let tenant = ask.request.tenant.to_string();
        let session = ask.request.content.session().map(|session| session.to_string());
        let question = Question {
            model: MODEL,
            engine: None,
            prompt: Prompt::Tokens(Tokens(ask.request.prompt)),
            max_tokens: ask.request.max_tokens.map(Tokens),
            n: 1,
            has_stop: false,
            class: self.class,
            tenant: &tenant,
            session_key: session.as_deref(),
            ttft_objective: self.named.then(|| Duration::from_nanos(ask.deadline())),
            pace_objective: None,
            wait: Duration::ZERO,
            request_id: None,
            peer_uid: 0,
            session: None,
            forwards_rank: false,
        };
        let decision = self.node.admit(mono(ask.at), &question).expect("a valid request");
        match decision.verdict {
            Verdict::Admit(admit) => {
                self.reservations.insert(ask.request.id, admit.reservation);
                Answer::Admit { max_tokens: admit.max_tokens.map(|tokens| tokens.0) }
            }
            Verdict::Deny(deny) => {
                Answer::Deny { retry_after: deny.retry_after, reason: deny.reason.as_str() }
            }
        }
    }

    fn scraped(&mut self, at: Nanos, reading: &EngineReading) {
        self.tick(at);
        let reading = Box::new(reading.clone());
        self.node.observe(mono(at), Observation::Reading { engine: ENGINE.into(), reading });
    }

    fn first_token(&mut self, at: Nanos, id: RequestId) {
        self.progressed(at, id, 1);
    }

    fn progressed(&mut self, at: Nanos, id: RequestId, generated: u64) {
        if !self.first_tokens {
            return;
        }
        self.tick(at);
        if let Some(reservation) = self.reservations.get(&id) {
            self.node.progress(mono(at), Reference::Id(*reservation), Tokens(generated));
        }
    }

    fn completed(&mut self, at: Nanos, id: RequestId, end: &End) {
        self.tick(at);
        if let Some(reservation) = self.reservations.remove(&id) {
            let output_tokens = Some(Tokens(end.generated));
            let completion = Completion { outcome: end.outcome, output_tokens, prompt_tokens: None };
            self.node.complete(mono(at), Reference::Id(reservation), completion);
        }
    }

    fn interval(&self) -> Option<Nanos> {
        Some(self.interval)
    }

    fn held(&self) -> Option<usize> {
        Some(self.node.reservations())
    }

    fn estimate(&mut self, at: Nanos) -> Option<Estimate> {
        self.tick(at);
        let snapshot = self.node.snapshot(mono(at));
        let (low, middle, high) = snapshot.engines.first()?.pools.first()?.corrected?;
        Some(Estimate { low: low.0, middle: middle.0, high: high.0 })
    }
}

const fn class(of: situation::Class) -> Class {
    match of {
        situation::Class::Interactive => Class::Interactive,
        situation::Class::Standard => Class::Standard,
        situation::Class::Batch => Class::Batch,
    }
}

fn facts(at: Nanos, setup: &EngineSetup) -> EngineFacts {
    let max_model_len = Some(Tokens(setup.max_model_len));
    EngineFacts {
        engine: ENGINE.into(),
        address: "http://127.0.0.1:8000".into(),
        span: Span::at(mono(at)),
        version: Some("vllm 0.32.0".into()),
        version_known: true,
        models: vec![ServedModel { name: MODEL.into(), max_model_len }],
        adapters_at_runtime: false,
        processes: vec![EngineProcess { pid: 100, start_ticks: 1, role: ProcessRole::ApiServer }],
        block_size: Some(setup.block_size),
        max_num_seqs: Some(setup.max_num_seqs),
        max_num_batched_tokens: Some(setup.max_num_batched_tokens),
        gpu_memory_utilization: Some(0.9),
        data_parallel_size: 1,
        model_source: None,
        obstacle: None,
        statistics_off: false,
        metrics_filtered: None,
    }
}
