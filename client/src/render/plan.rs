//! A plan of a KV cache, as text and as JSON.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{
    numbers::{bytes, count, counted, or_unknown},
    paint::{Mood, Paint},
    text::{flow, safe, sentence},
};
use crate::plan::{
    budget::Budget,
    fit::{Load, Pool},
    layout::Layout,
    model::{Layer, Reach},
    weights::Weights,
};

/// All that is shown.
pub(crate) struct Report {
    /// Model type.
    pub(crate) model: String,
    /// What its layers keep.
    pub(crate) layers: Vec<Layer>,
    /// GPUs that share every layer.
    pub(crate) gpus: u64,
    /// Where the memory goes; `None`: the cache's size was given.
    pub(crate) budget: Option<Budget>,
    /// Weights, where they matter.
    pub(crate) weights: Option<Weights>,
    /// Whether the rest of the budget was given, and is no estimate.
    pub(crate) other_given: bool,
    /// Memory of the cache on one GPU.
    pub(crate) cache_bytes: u64,
    /// Bytes that one more token takes on one GPU.
    pub(crate) bytes_per_token: u64,
    /// Groups of layers.
    pub(crate) layout: Layout,
    /// The pool.
    pub(crate) pool: Pool,
    /// Context window.
    pub(crate) window: u64,
    /// Requests by length.
    pub(crate) rows: Vec<Row>,
    /// What was asked for.
    pub(crate) load: Load,
    /// Whether it fits.
    pub(crate) fits: bool,
    /// What to change otherwise.
    pub(crate) advice: Vec<Advice>,
    /// A running engine to compare with.
    pub(crate) running: Option<Running>,
}

/// Requests of one length.
pub(crate) struct Row {
    /// Tokens of each.
    pub(crate) tokens: u64,
    /// Blocks of each.
    pub(crate) blocks: u64,
    /// How many fit at once.
    pub(crate) requests: u64,
}

/// A change that makes the load fit.
pub(crate) enum Advice {
    /// An 8-bit cache.
    CacheType,
    /// More GPUs.
    TensorParallel(u64),
    /// More of each.
    Utilization(f64),
    /// Shorter requests.
    Context { tokens: u64, requests: u64 },
    /// Fewer requests.
    Concurrency { requests: u64, tokens: u64 },
}

/// What a running engine reports.
pub(crate) struct Running {
    /// Its id.
    pub(crate) id: String,
    /// Blocks that can hold tokens, of one rank.
    pub(crate) blocks: Option<u64>,
    /// Tokens per block.
    pub(crate) block_size: Option<u64>,
    /// Context window.
    pub(crate) window: Option<u64>,
}

impl Running {
    /// What blocks of the plan are more than those reported, in percent of the latter.
    fn difference(&self, pool: &Pool) -> Option<f64> {
        // The null block is left out of what is reported.
        let reported = f64::from(u32::try_from(self.blocks?).ok()?) + 1.0;
        Some((f64::from(u32::try_from(pool.blocks).ok()?) / reported - 1.0) * 100.0)
    }
}

impl Advice {
    fn text(&self) -> String {
        match self {
            Self::CacheType => "--kv-cache-dtype fp8: half the bytes per token".into(),
            Self::TensorParallel(gpus) => format!("--tensor-parallel-size {gpus}"),
            Self::Utilization(share) => format!("--gpu-memory-utilization {share}"),
            Self::Context { tokens, requests } => {
                format!("--max-model-len {tokens}: {} so long fit at once", counted(*requests, "request"))
            }
            Self::Concurrency { requests, tokens } => {
                format!("--max-num-seqs {requests}: so many of {} fit at once", counted(*tokens, "token"))
            }
        }
    }
}

impl Report {
    /// For a person.
    pub(crate) fn text(&self, paint: Paint) -> String {
        let gpus = counted(self.gpus, "GPU");
        let mut text = flow("model     ", ", ", &[safe(&self.model), gpus]);
        text += &flow("layers    ", ", ", &self.layer_kinds());
        if let Some(budget) = &self.budget {
            text += &flow("memory    ", ", ", &self.memory(budget));
        }
        let groups = counted(count_of(&self.layout.groups), "group");
        let per_token = match self.bytes_per_token {
            0 => "no more per token beyond the layers' windows".into(),
            more => format!("{} per token", bytes(more)),
        };
        let block = format!("{} per block in {groups}", bytes(self.layout.block_bytes));
        text +=
            &flow("KV cache  ", ", ", &[format!("{} per GPU", bytes(self.cache_bytes)), per_token, block]);
        let tokens = format!("{} at {} each", counted(self.pool.tokens, "token"), count(self.window));
        text += &flow("pool      ", ", ", &[counted(self.pool.blocks, "block"), tokens]);
        text += "\n      tokens each        blocks each   requests at once\n";
        for row in &self.rows {
            text += &format!(
                "{:>17}  {:>17}  {:>17}\n",
                count(row.tokens),
                count(row.blocks),
                count(row.requests)
            );
        }
        text += "\n";
        text += &self.verdict(paint);
        if let Some(running) = &self.running {
            text += &self.comparison(running);
        }
        text
    }

    fn verdict(&self, paint: Paint) -> String {
        let Load { tokens, requests } = self.load;
        let asked = format!("{} of {} at once", counted(requests, "request"), counted(tokens, "token"));
        if self.fits {
            return format!("{} {asked}\n", paint.text(Mood::Good, "fits:"));
        }
        let mut text = format!("{} {asked}\n", paint.text(Mood::Bad, "does not fit:"));
        for advice in &self.advice {
            text += &sentence("  or  ", &advice.text());
        }
        if self.advice.is_empty() {
            text += "  no single change makes it fit: use GPUs with more memory, or a smaller model\n";
        }
        text
    }

    fn memory(&self, budget: &Budget) -> Vec<String> {
        let origin = self.weights.map_or("", Weights::origin);
        let other = if self.other_given { "as given" } else { "estimated" };
        vec![
            format!("{} usable per GPU", bytes(budget.usable_bytes)),
            format!("weights {} ({origin})", bytes(budget.weights_bytes)),
            format!("other {} ({other})", bytes(budget.other_bytes)),
        ]
    }

    fn layer_kinds(&self) -> Vec<String> {
        let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
        for layer in &self.layers {
            *kinds.entry(kind(layer)).or_default() += 1;
        }
        kinds.into_iter().map(|(kind, number)| format!("{} {kind}", count(number))).collect()
    }

    fn comparison(&self, running: &Running) -> String {
        let reported = or_unknown(running.blocks, |blocks| counted(blocks.saturating_add(1), "block"));
        let size = or_unknown(running.block_size, |size| format!("{size} tokens per block"));
        let window = or_unknown(running.window, |tokens| format!("window {}", count(tokens)));
        let difference = or_unknown(running.difference(&self.pool), |percent| format!("{percent:+.1} %"));
        let fields =
            [format!("{reported} with the null block"), size, window, format!("the plan has {difference}")];
        flow(&format!("{}  ", safe(&running.id)), ", ", &fields)
    }

    /// For a program.
    pub(crate) fn json(&self) -> Value {
        let rows = self.rows.iter();
        json!({
            "model_type": self.model,
            "tensor_parallel_size": self.gpus,
            "memory": self.budget.map(|budget| json!({
                "usable_bytes": budget.usable_bytes,
                "weights_bytes": budget.weights_bytes,
                "weights_origin": self.weights.map(Weights::origin),
                "other_bytes": budget.other_bytes,
                "other_estimated": !self.other_given,
            })),
            "kv_cache_bytes": self.cache_bytes,
            "bytes_per_token": self.bytes_per_token,
            "bytes_per_block": self.layout.block_bytes,
            "groups": self.layout.groups.iter().map(|group| json!({
                "layers": group.layers,
                "block_size": group.block_size,
            })).collect::<Vec<_>>(),
            "blocks": self.pool.blocks,
            "tokens": self.pool.tokens,
            "max_model_len": self.window,
            "requests": rows.map(|row| json!({
                "tokens": row.tokens,
                "blocks": row.blocks,
                "at_once": row.requests,
            })).collect::<Vec<_>>(),
            "asked": { "tokens": self.load.tokens, "requests": self.load.requests },
            "fits": self.fits,
            "advice": self.advice.iter().map(Advice::text).collect::<Vec<_>>(),
            "engine": self.running.as_ref().map(|running| json!({
                "id": running.id,
                "blocks": running.blocks.map(|blocks| blocks.saturating_add(1)),
                "block_size": running.block_size,
                "max_model_len": running.window,
                "difference_percent": running.difference(&self.pool),
            })),
        })
    }
}

fn kind(layer: &Layer) -> String {
    match layer {
        Layer::Heads { reach: Reach::All, heads, .. } => format!("with {}", counted(*heads, "KV head")),
        Layer::Heads { reach: Reach::Window(window), heads, .. } => {
            format!("with {} and a window of {}", counted(*heads, "KV head"), count(*window))
        }
        Layer::Heads { reach: Reach::Chunk(chunk), heads, .. } => {
            format!("with {} and chunks of {}", counted(*heads, "KV head"), count(*chunk))
        }
        Layer::Latent { width } => format!("latent of {width} values"),
        Layer::Indexer { .. } => "with an index of sparse attention".into(),
        Layer::State { .. } => "with a state".into(),
    }
}

fn count_of<T>(items: &[T]) -> u64 {
    u64::try_from(items.len()).unwrap_or(u64::MAX)
}
