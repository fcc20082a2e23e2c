//! How large a model's weights are: as its files say, else estimated from its configuration, else unknown.

use std::{fs, path::Path};

use serde_json::{Map, Value};

use super::{
    PlanError,
    config::{self, Config},
    families::Attention,
    layers::{Kind, kinds},
    model::{head_width, heads, hidden, kv_heads},
};

/// Most files of a model folder that are looked at.
const MAX_FILES: usize = 4096;
/// The list of a model's files; its `metadata.total_size` is the size of the weights, bytes.
const INDEX: &str = "model.safetensors.index.json";

/// The size of a model's weights, bytes, over all GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weights {
    /// Sum of its `.safetensors` files.
    Files(u64),
    /// As the index of its files says.
    Indexed(u64),
    /// Given by the caller.
    Given(u64),
    /// Estimated from the configuration, within some percent.
    Estimated(u64),
}

impl Weights {
    /// Bytes.
    pub(crate) const fn bytes(self) -> u64 {
        match self {
            Self::Files(bytes) | Self::Indexed(bytes) | Self::Given(bytes) | Self::Estimated(bytes) => bytes,
        }
    }

    /// How they were found.
    pub(crate) const fn origin(self) -> &'static str {
        match self {
            Self::Files(_) => "size of the files",
            Self::Indexed(_) => "index of the files",
            Self::Given(_) => "as given",
            Self::Estimated(_) => "estimated from config.json",
        }
    }

    /// From the files beside `path` where they are there, else from `config`.
    pub(crate) fn find(path: &Path, config: &Config, value_bytes: u64) -> Result<Self, PlanError> {
        let folder = if path.is_dir() { Some(path) } else { path.parent() };
        if let Some(bytes) = folder.and_then(files) {
            return Ok(Self::Files(bytes));
        }
        match folder.map(|folder| folder.join(INDEX)).filter(|index| index.exists()) {
            Some(index) => indexed(&index).map(Self::Indexed),
            None => estimate(config, value_bytes).map(Self::Estimated),
        }
    }
}

fn indexed(file: &Path) -> Result<u64, PlanError> {
    let total = config::json(file)?.pointer("/metadata/total_size").and_then(Value::as_u64);
    total.filter(|bytes| *bytes > 0).ok_or_else(|| PlanError::Malformed {
        path: file.to_owned(),
        why: "metadata.total_size is absent or no whole number; give the size with --weights".into(),
    })
}

/// Bytes of the `.safetensors` files in a folder; `None` without any. Of a folder that holds the weights twice
/// (Mistral's `consolidated…` beside the shards), the shards alone count.
fn files(folder: &Path) -> Option<u64> {
    let entries = fs::read_dir(folder).ok()?.take(MAX_FILES).filter_map(Result::ok);
    let sizes: Vec<(bool, u64)> = entries
        .filter(|entry| entry.path().extension().is_some_and(|extension| extension == "safetensors"))
        // The size of what a link points to: the Hugging Face cache is made of links.
        .filter_map(|entry| {
            let doubled = entry.file_name().to_string_lossy().starts_with("consolidated");
            Some((doubled, fs::metadata(entry.path()).ok()?.len()))
        })
        .collect();
    let sum =
        |doubled: bool| sizes.iter().filter(|(one, _)| *one == doubled).map(|(_, size)| size).sum::<u64>();
    Some(if sum(false) > 0 { sum(false) } else { sum(true) }).filter(|bytes| *bytes > 0)
}

/// Parameters of the matrices, 128 bits: sums of products of three numbers of up to 2^32.
#[derive(Clone, Copy, Debug, Default)]
struct Parameters {
    /// Embeddings and output layer, which stay in the model's type.
    embeddings: u128,
    /// What mixes tokens.
    mixers: u128,
    /// Feed-forward layers.
    feed_forward: u128,
}

fn estimate(config: &Config, value_bytes: u64) -> Result<u64, PlanError> {
    let parameters = parameters(config)?;
    let bits = layer_bits(config, value_bytes)?;
    // GPT-OSS: only the experts have 4 bits.
    let experts_only =
        config.quantization().and_then(|table| table.get("quant_method")) == Some(&"mxfp4".into());
    let bits_of_mixers = if experts_only { u128::from(value_bytes) * 800 } else { bits };
    let layers = parameters.mixers * bits_of_mixers + parameters.feed_forward * bits;
    let bytes = parameters.embeddings * u128::from(value_bytes) + layers / 800;
    u64::try_from(bytes).map_err(|_| PlanError::Weights("numbers that are too large".into()))
}

/// Hundredths of bits per parameter of the layers.
fn layer_bits(config: &Config, value_bytes: u64) -> Result<u128, PlanError> {
    let Some(table) = config.quantization() else { return Ok(u128::from(value_bytes) * 800) };
    let word = |key: &str| table.get(key).and_then(Value::as_str).unwrap_or_default();
    let bits = match word("quant_method") {
        "fp8" | "fbgemm_fp8" => Some(800),
        // 4 bits and a scale of 8 bits per 32 values.
        "mxfp4" => Some(425),
        // A scale of 16 bits per 128 values.
        "awq" | "gptq" => bits(table, "bits").map(|bits| bits * 100 + 12),
        "bitsandbytes" if table.get("load_in_4bit") == Some(&Value::Bool(true)) => Some(450),
        "compressed-tensors" => compressed(table),
        _ => None,
    };
    let unknown = || PlanError::Weights(format!("quantization {:?}", word("quant_method")));
    bits.map(u128::from).ok_or_else(unknown)
}

fn bits(table: &Map<String, Value>, key: &str) -> Option<u64> {
    table.get(key)?.as_u64().filter(|bits| (1..=16).contains(bits))
}

fn compressed(table: &Map<String, Value>) -> Option<u64> {
    let group = table.get("config_groups")?.as_object()?.values().next()?;
    bits(group.get("weights")?.as_object()?, "num_bits").map(|bits| bits * 100)
}

fn parameters(config: &Config) -> Result<Parameters, PlanError> {
    let family = config.family();
    let unknown =
        |part: &str| PlanError::Weights(format!("{part} of model_type {:?}", config.word("model_type")));
    let matrices = family.matrices.ok_or_else(|| unknown("the feed-forward layers"))?;
    if config.has_other_parts() {
        return Err(unknown("the parts beside the language model"));
    }
    let width = u128::from(hidden(config)?);
    let tied = config.flag("tie_word_embeddings").unwrap_or(family.tied);
    let vocabulary = u128::from(config.needed("vocab_size", "the size of the weights")?);
    let embeddings = vocabulary * width * if tied { 1 } else { 2 };
    let (dense, experts) = feed_forward(config, width, u128::from(matrices))?;
    let mut parameters = Parameters { embeddings, ..Parameters::default() };
    for (index, kind) in (0u64..).zip(kinds(config)?) {
        parameters.mixers += mixer(config, kind, width)?;
        parameters.feed_forward += experts.filter(|_| has_experts(config, index)).or(dense).unwrap_or(0);
    }
    Ok(parameters)
}

/// Parameters of what mixes tokens.
fn mixer(config: &Config, kind: Kind, width: u128) -> Result<u128, PlanError> {
    let count = |key: &'static str| config.needed(key, "the size of the weights").map(u128::from);
    if kind == Kind::Delta {
        let keys = count("linear_num_key_heads")? * count("linear_key_head_dim")?;
        let value_heads = count("linear_num_value_heads")?;
        let values = value_heads * count("linear_value_head_dim")?;
        return Ok(width * (2 * keys + 2 * values + 2 * value_heads) + values * width);
    }
    let heads = u128::from(heads(config)?);
    if config.family().attention == Attention::Heads {
        let queries = heads * u128::from(head_width(config)?);
        let keys = u128::from(kv_heads(config)?) * u128::from(head_width(config)?);
        // The attention of Qwen3-Next and Qwen3.5 has a gate beside its queries.
        let gate = if config.family().state == Some(Kind::Delta) { queries } else { 0 };
        return Ok(width * (2 * queries + 2 * keys + gate));
    }
    let (rank, rotary) = (count("kv_lora_rank")?, count("qk_rope_head_dim")?);
    let (key, value) = (count("qk_nope_head_dim")?, count("v_head_dim")?);
    let queries = match config.count("q_lora_rank")?.map(u128::from) {
        Some(rank) => width * rank + rank * heads * (key + rotary),
        None => width * heads * (key + rotary),
    };
    Ok(queries + width * (rank + rotary) + rank * heads * (key + value) + heads * value * width)
}

/// Parameters of a dense feed-forward layer of so many matrices, and of one with experts where there are any.
fn feed_forward(
    config: &Config,
    width: u128,
    matrices: u128,
) -> Result<(Option<u128>, Option<u128>), PlanError> {
    let number = |key: &str| Ok::<_, PlanError>(config.count(key)?.map(u128::from));
    // The families with two matrices have four times the width by default.
    let inner = number("intermediate_size")?.or((matrices == 2).then_some(4 * width));
    // Llama 4 has a size of its own for its dense layers.
    let dense = number("intermediate_size_mlp")?.or(inner).map(|inner| matrices * width * inner);
    let of_expert = number("moe_intermediate_size")?.or(inner);
    let mut shared = number("shared_expert_intermediate_size")?.unwrap_or(0);
    if let (Some(number), Some(of_expert)) = (number("n_shared_experts")?, of_expert) {
        shared += number * of_expert;
    }
    // Each of Llama 4's layers with experts has a shared one.
    if config.word("model_type") == "llama4_text" {
        shared += inner.unwrap_or(0);
    }
    let sparse = number("num_experts")?
        .zip(of_expert)
        .map(|(experts, inner)| matrices * width * (experts * inner + shared) + width * experts);
    if dense.or(sparse).is_none() {
        let key = config.name("intermediate_size").to_owned();
        return Err(PlanError::Absent { key, needed_for: "the size of the weights; or give --weights" });
    }
    Ok((dense, sparse))
}

/// Whether a layer has experts, where the model has any.
fn has_experts(config: &Config, layer: u64) -> bool {
    let number = |key: &str| config.count(key).ok().flatten();
    let dense = config.list("mlp_only_layers").is_some_and(|list| list.contains(&Value::from(layer)));
    let first = number("first_k_dense_replace").unwrap_or(0);
    let step = number("decoder_sparse_step").or_else(|| number("interleave_moe_layer_step")).unwrap_or(1);
    !dense && layer >= first && (layer + 1).is_multiple_of(step)
}
