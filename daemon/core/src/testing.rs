//! Small makers for the core's own tests.

use std::time::Duration;

use crate::{
    observation::{EngineFacts, EngineProcess, ProcessRole, RankReading, ServedModel},
    request::{Class, Prompt, Request},
    units::{Mono, Span, Tokens},
};

/// `seconds` on the test's clock, which starts well after zero.
pub(crate) fn at(seconds: f64) -> Mono {
    Mono(1_000_000_000_000) + Duration::from_secs_f64(seconds)
}

/// A request for model `m` with an exact prompt and no max_tokens.
pub(crate) fn request(prompt: u64) -> Request<'static> {
    Request {
        model: "m",
        engine: None,
        prompt: Prompt::Tokens(Tokens(prompt)),
        max_tokens: None,
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

/// Engine `e` serving model `m` with a window of 4,096 tokens.
pub(crate) fn facts(now: Mono) -> EngineFacts {
    EngineFacts {
        engine: "e".into(),
        address: "http://127.0.0.1:8000".into(),
        span: Span::at(now),
        version: Some("vllm 0.32.0".into()),
        version_known: true,
        models: vec![ServedModel { name: "m".into(), max_model_len: Some(Tokens(4096)) }],
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

/// A rank of 101 blocks of 16 tokens (100 usable) that uses `used` blocks.
pub(crate) fn rank(used: u64, running: u64, waiting: u64, finished: u64) -> RankReading {
    RankReading {
        rank: 0,
        kv_usage: Some(crate::units::real(used) / 100.0),
        running: Some(running),
        waiting: Some(waiting),
        num_gpu_blocks: Some(101),
        block_size: Some(16),
        finished: Some(finished),
        steps: Some(finished + running),
        generation_tokens: Some(finished * 10),
        prompt_tokens: Some(finished * 10),
        ..RankReading::default()
    }
}
