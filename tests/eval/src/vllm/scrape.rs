//! What the real engine says of itself.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};

use super::{http, load::Sent};
use crate::{engine::EngineSetup, random::hash};

/// Token ids of prompts are drawn from this range: ordinary ones of every tokenizer.
const TOKENS: std::ops::Range<u64> = 10..400;

/// The engine's figures that do not change.
#[derive(Clone, Debug)]
pub(super) struct Engine {
    model: String,
    /// Blocks that can hold tokens.
    pub(super) blocks: u64,
    pub(super) block_size: u64,
    pub(super) slots: u64,
}

/// Its figures at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    pub(super) usage: f64,
    pub(super) running: u64,
    pub(super) waiting: u64,
    pub(super) steps: u64,
    pub(super) generated: u64,
    pub(super) finished: u64,
    pub(super) preemptions: u64,
}

impl Engine {
    /// Asks the engine at `address`, which was started with so many slots.
    pub(super) fn ask(address: SocketAddr, slots: u64) -> Result<Self> {
        let metrics = http::get(address, "/metrics/?name[]=vllm:cache_config_info")?;
        let info = metrics.lines().find(|line| line.starts_with("vllm:cache_config_info"));
        let info = info.context("no vllm:cache_config_info")?;
        let label = |name: &str| -> Result<u64> {
            let rest = info.split_once(&format!("{name}=\"")).with_context(|| format!("no label {name}"))?.1;
            Ok(rest.split('"').next().unwrap_or_default().parse()?)
        };
        let models: serde_json::Value = serde_json::from_str(&http::get(address, "/v1/models")?)?;
        let model = models["data"][0]["id"].as_str().context("no model")?.to_owned();
        // One block is the null block and holds nothing.
        let (blocks, block_size) = (label("num_gpu_blocks")? - 1, label("block_size")?);
        Ok(Self { model, blocks, block_size, slots })
    }

    /// Body of a completion request whose prompt is like no other.
    pub(super) fn completion(&self, number: u32, sent: Sent) -> String {
        let width = TOKENS.end - TOKENS.start;
        let token = |position| TOKENS.start + hash(u64::from(number), position) % width;
        serde_json::json!({
            "model": self.model,
            "prompt": (0..sent.prompt).map(token).collect::<Vec<_>>(),
            "max_tokens": sent.output,
            "ignore_eos": true,
            "temperature": 0.0,
        })
        .to_string()
    }

    /// The model set up likewise.
    pub(super) fn setup(&self) -> EngineSetup {
        EngineSetup {
            max_num_seqs: self.slots,
            max_num_batched_tokens: 512,
            max_model_len: 2048,
            ..EngineSetup::with_window(self.blocks, self.block_size, true)
        }
    }
}

const NAMES: [&str; 7] = [
    "vllm:kv_cache_usage_perc",
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:iteration_tokens_total_count",
    "vllm:generation_tokens_total",
    "vllm:request_success_total",
    "vllm:num_preemptions_total",
];

/// Scrapes.
pub(super) fn sample(address: SocketAddr) -> Result<Sample> {
    let query: Vec<_> = NAMES.iter().map(|name| format!("name[]={name}")).collect();
    let text = http::get(address, &format!("/metrics/?{}", query.join("&")))?;
    let sum = |name: &str| -> f64 {
        let of_name = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        let values =
            text.lines().filter(of_name).filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        values.sum()
    };
    let [usage, running, waiting, steps, generated, finished, preemptions] = NAMES.map(sum);
    Ok(Sample {
        usage,
        running: running as u64,
        waiting: waiting as u64,
        steps: steps as u64,
        generated: generated as u64,
        finished: finished as u64,
        preemptions: preemptions as u64,
    })
}

impl Sample {
    /// Counts from `first` on.
    pub(super) fn since(&mut self, first: &Self) {
        self.steps -= first.steps;
        self.generated -= first.generated;
        self.finished -= first.finished;
        self.preemptions -= first.preemptions;
    }
}
