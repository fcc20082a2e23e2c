//! A node fed by hand: makers of observations and a naive engine that tells the truth about itself.

use std::{sync::Arc, time::Duration};

use gpuadmit_core::{
    node::Node,
    observation::{
        EngineFacts, EngineProcess, EngineReading, Observation, ProcessRole, RankReading, ServedModel,
    },
    request::{
        Admit, Class, Completion, Decision, Deny, Outcome, Prompt, Reference, Request, ReservationId, Verdict,
    },
    settings::{Risk, Settings},
    units::{Mono, Span, Tokens},
};

/// Tokens per block of the engines made here.
pub const BLOCK_SIZE: u64 = 16;

/// `seconds` on a clock that starts well after zero.
#[must_use]
pub fn at(seconds: f64) -> Mono {
    Mono(1_000_000_000_000) + Duration::from_secs_f64(seconds)
}

/// What discovery tells of engine `name`, which serves model `m` with a window of `window` tokens.
#[must_use]
pub fn facts(name: &str, window: u64, now: Mono) -> EngineFacts {
    EngineFacts {
        engine: name.into(),
        address: "http://127.0.0.1:8000".into(),
        span: Span::at(now),
        version: Some("vllm 0.32.0".into()),
        version_known: true,
        models: vec![ServedModel { name: "m".into(), max_model_len: Some(Tokens(window)) }],
        adapters_at_runtime: false,
        processes: vec![EngineProcess { pid: 100, start_ticks: 1, role: ProcessRole::ApiServer }],
        block_size: None,
        max_num_seqs: None,
        max_num_batched_tokens: None,
        gpu_memory_utilization: None,
        data_parallel_size: 1,
        model_source: None,
        obstacle: None,
        statistics_off: false,
        metrics_filtered: None,
    }
}

/// A request for model `m` with an exact prompt.
#[must_use]
pub fn request(prompt: u64, max_tokens: Option<u64>) -> Request<'static> {
    Request {
        model: "m",
        engine: None,
        prompt: Prompt::Tokens(Tokens(prompt)),
        max_tokens: max_tokens.map(Tokens),
        n: 1,
        has_stop: false,
        class: Class::Standard,
        tenant: "",
        session_key: None,
        ttft_objective: None,
        pace_objective: None,
        wait: Duration::ZERO,
        request_id: None,
        peer_uid: 0,
        session: None,
        forwards_rank: false,
    }
}

/// A rank with `blocks` usable blocks, `used` of them in use.
#[must_use]
pub fn rank(rank: u32, blocks: u64, used: u64, running: u64, waiting: u64, finished: u64) -> RankReading {
    RankReading {
        rank,
        kv_usage: Some(share(used, blocks)),
        running: Some(running),
        waiting: Some(waiting),
        num_gpu_blocks: Some(blocks + 1),
        block_size: Some(BLOCK_SIZE),
        finished: Some(finished),
        generation_tokens: Some(0),
        prompt_tokens: Some(0),
        steps: Some(finished),
        ..RankReading::default()
    }
}

/// `used / blocks`, as the engine's gauge reports it.
#[must_use]
pub fn share(used: u64, blocks: u64) -> f64 {
    let small = |count: u64| f64::from(u32::try_from(count).unwrap_or(u32::MAX));
    small(used) / small(blocks)
}

/// A reading of engine `name` made at exactly `now`.
#[must_use]
pub fn reading(name: &str, now: Mono, ranks: Vec<RankReading>) -> Observation {
    let interval = Duration::from_millis(200);
    let reading = EngineReading { span: Span::at(now), ranks, interval, ..EngineReading::default() };
    Observation::Reading { engine: name.into(), reading: Box::new(reading) }
}

/// Settings under which the worst case decides.
#[must_use]
pub fn strict() -> Settings {
    Settings { risk: Risk::NONE, ..Settings::default() }
}

/// A node with one ready, idle engine `e` of `blocks` usable blocks.
#[must_use]
pub fn ready_node(settings: Settings, blocks: u64) -> Node {
    let mut node = Node::new(settings, 7);
    node.observe(at(0.0), Observation::Engine(Box::new(facts("e", blocks * BLOCK_SIZE, at(0.0)))));
    node.observe(at(0.0), reading("e", at(0.0), vec![rank(0, blocks, 0, 0, 0, 0)]));
    node
}

/// The decision's promise; panics on a denial.
#[must_use]
#[track_caller]
pub fn admitted(decision: &Decision) -> &Admit {
    match &decision.verdict {
        Verdict::Admit(admit) => admit,
        Verdict::Deny(deny) => panic!("denied: {deny:?}"),
    }
}

/// The decision's denial; panics on a promise.
#[must_use]
#[track_caller]
pub fn denied(decision: &Decision) -> &Deny {
    match &decision.verdict {
        Verdict::Admit(admit) => panic!("admitted: {admit:?}"),
        Verdict::Deny(deny) => deny,
    }
}

/// A completion that went well.
pub const OK: Completion = Completion { outcome: Outcome::Ok, output_tokens: None, prompt_tokens: None };

/// One request in the naive engine.
#[derive(Clone, Copy, Debug)]
struct Running {
    id: Option<ReservationId>,
    prompt: u64,
    most: u64,
    length: u64,
    generated: u64,
    arrives: Mono,
    there: bool,
}

/// An engine that generates at one rate for all, prefills in no time, and reports itself exactly.
#[derive(Clone, Debug)]
pub struct NaiveEngine {
    /// Usable blocks.
    pub blocks: u64,
    tokens_per_second: u64,
    requests: Vec<Running>,
    finished: u64,
    generated: u64,
    prompts: u64,
    /// Which life this is.
    life: u32,
    clock: Mono,
}

impl NaiveEngine {
    /// An idle engine at `now`.
    #[must_use]
    pub const fn new(blocks: u64, tokens_per_second: u64, now: Mono) -> Self {
        let requests = Vec::new();
        Self {
            blocks,
            tokens_per_second,
            requests,
            finished: 0,
            generated: 0,
            prompts: 0,
            life: 0,
            clock: now,
        }
    }

    /// A request will arrive at `arrives`, and generate `length` of the `most` tokens it may.
    pub fn send(&mut self, id: Option<ReservationId>, prompt: u64, most: u64, length: u64, arrives: Mono) {
        let length = length.min(most);
        self.requests.push(Running { id, prompt, most, length, generated: 0, arrives, there: false });
    }

    /// Runs until `now`; returns the ids of those that ended.
    pub fn run(&mut self, now: Mono) -> Vec<ReservationId> {
        let mut ended = Vec::new();
        for request in self.requests.iter_mut().filter(|request| request.arrives <= now) {
            let due =
                now.since(request.arrives).as_nanos() * u128::from(self.tokens_per_second) / 1_000_000_000;
            let generated = u64::try_from(due).unwrap_or(u64::MAX).min(request.length);
            self.generated += generated - request.generated;
            request.generated = generated;
            if !std::mem::replace(&mut request.there, true) {
                self.prompts += request.prompt;
            }
        }
        self.requests.retain(|request| {
            let over = request.there && request.generated >= request.length;
            if over {
                ended.extend(request.id);
                self.finished += 1;
            }
            !over
        });
        self.clock = now;
        ended
    }

    /// All processes die: nothing is left and its counters begin anew.
    pub fn restart(&mut self) {
        self.requests.clear();
        (self.finished, self.generated, self.prompts) = (0, 0, 0);
        self.life += 1;
    }

    fn there(&self) -> impl Iterator<Item = &Running> {
        self.requests.iter().filter(|request| request.there)
    }

    /// Blocks in use now.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.there().map(|request| (request.prompt + request.generated).div_ceil(BLOCK_SIZE)).sum()
    }

    /// Blocks in use if everything here or on its way grows to all it may.
    #[must_use]
    pub fn promised(&self) -> u64 {
        self.requests.iter().map(|request| (request.prompt + request.most).div_ceil(BLOCK_SIZE)).sum()
    }

    /// Requests here or on their way.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests.len().try_into().unwrap_or(u64::MAX)
    }

    /// A scrape, now.
    #[must_use]
    pub fn reading(&self) -> Observation {
        let running = self.there().count().try_into().unwrap_or(u64::MAX);
        let figures = RankReading {
            generation_tokens: Some(self.generated),
            prompt_tokens: Some(self.prompts),
            steps: Some(self.generated + self.finished),
            ..rank(0, self.blocks, self.used(), running, 0, self.finished)
        };
        let mut observation = reading("e", self.clock, vec![figures]);
        if let Observation::Reading { reading, .. } = &mut observation {
            reading.process_start = Some(f64::from(self.life) * 100.0);
        }
        observation
    }
}

/// Completes `id` well.
pub fn complete(node: &mut Node, now: Mono, id: ReservationId) -> gpuadmit_core::node::Completed {
    node.complete(now, Reference::Id(id), OK)
}

/// Engine id `e`.
#[must_use]
pub fn e() -> Arc<str> {
    "e".into()
}
