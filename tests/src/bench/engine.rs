//! An engine that is ready, told by observations as a source would tell it.

use std::{sync::Arc, time::Duration};

use gpuadmit_core::{
    observation::{
        EngineFacts, EngineProcess, EngineReading, Observation, ProcessRole, RankReading, ServedModel,
    },
    units::{Mono, Span, Tokens},
};

/// Model that the engine serves.
pub const MODEL: &str = "bench";
/// Tokens per block.
pub const BLOCK_SIZE: u64 = 16;
/// Prompt tokens of each of its requests.
pub const PROMPT: u64 = 200;
const ENGINE: &str = "engine";
const INTERVAL: Duration = Duration::from_millis(200);
/// So long that the pool alone limits.
const WINDOW: Tokens = Tokens(1 << 24);

/// The engine.
#[derive(Debug)]
pub struct ReadyEngine {
    blocks: u64,
    steps: u64,
}

impl ReadyEngine {
    /// One whose pool has `blocks` usable blocks.
    #[must_use]
    pub const fn new(blocks: u64) -> Self {
        Self { blocks, steps: 0 }
    }

    /// It exists.
    #[must_use]
    pub fn facts(&self, now: Mono) -> Observation {
        Observation::Engine(Box::new(EngineFacts {
            engine: ENGINE.into(),
            address: "http://127.0.0.1:8000".into(),
            span: Span::at(now),
            version: Some("vllm 0.32.0".into()),
            version_known: true,
            models: vec![ServedModel { name: MODEL.into(), max_model_len: Some(WINDOW) }],
            adapters_at_runtime: false,
            processes: vec![EngineProcess { pid: 1, start_ticks: 1, role: ProcessRole::ApiServer }],
            block_size: Some(BLOCK_SIZE),
            max_num_seqs: None,
            max_num_batched_tokens: None,
            gpu_memory_utilization: None,
            data_parallel_size: 1,
            model_source: None,
            obstacle: None,
            statistics_off: false,
            metrics_filtered: None,
        }))
    }

    /// It runs `running` requests that share `used` of its pool (0 to 1), has ended `finished`, and made a step since
    /// the last reading.
    pub fn reading(&mut self, now: Mono, running: u64, used: f64, finished: u64) -> Observation {
        self.steps += 1;
        let rank = RankReading {
            kv_usage: Some(used),
            running: Some(running),
            waiting: Some(0),
            num_gpu_blocks: Some(self.blocks + 1),
            block_size: Some(BLOCK_SIZE),
            finished: Some(finished),
            steps: Some(self.steps),
            generation_tokens: Some(self.steps * 100),
            prompt_tokens: Some((finished + running) * PROMPT),
            ..RankReading::default()
        };
        let reading = EngineReading {
            span: Span::at(now),
            ranks: vec![rank],
            interval: INTERVAL,
            ..EngineReading::default()
        };
        Observation::Reading { engine: Arc::from(ENGINE), reading: Box::new(reading) }
    }
}
