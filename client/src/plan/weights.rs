//! How large a model's weights are: as its files say, else reckoned from its configuration.

use std::{fs, path::Path};

use serde_json::{Map, Value};

use super::{
    PlanError,
    config::Config,
    model::{Kind, head_width, heads, hidden, kinds, kv_heads},
};

/// Most files of a model folder that are looked at.
const MAX_FILES: usize = 4096;

/// The size of a model's weights, bytes, over all GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weights {
    /// Sum of its `.safetensors` files.
    Files(u64),
    /// Given by the caller.
    Given(u64),
    /// Reckoned from the configuration, within some percent.
    Estimated(u64),
}

impl Weights {
    /// Bytes.
    pub(crate) const fn bytes(self) -> u64 {
        match self {
            Self::Files(bytes) | Self::Given(bytes) | Self::Estimated(bytes) => bytes,
        }
    }

    /// How they were found.
    pub(crate) const fn origin(self) -> &'static str {
        match self {
            Self::Files(_) => "size of the files",
            Self::Given(_) => "as given",
            Self::Estimated(_) => "estimated from config.json",
        }
    }

    /// From the files beside `path` where they are there, else from `config`.
    pub(crate) fn find(path: &Path, config: &Config, value_bytes: u64) -> Result<Self, PlanError> {
        match files(path) {
            Some(bytes) => Ok(Self::Files(bytes)),
            None => estimate(config, value_bytes).map(Self::Estimated),
        }
    }
}

/// Bytes of the `.safetensors` files beside a config.json; `None` without any. Of a folder that holds the weights twice
/// (Mistral's `consolidated…` beside the shards), the shards alone count.
fn files(path: &Path) -> Option<u64> {
    let folder = if path.is_dir() { path } else { path.parent()? };
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
    embeddings: u128,
    layers: u128,
}

fn estimate(config: &Config, value_bytes: u64) -> Result<u64, PlanError> {
    let parameters = parameters(config)?;
    let bits = layer_bits(config, value_bytes)?;
    let bytes = parameters.embeddings * u128::from(value_bytes) + parameters.layers * bits / 800;
    u64::try_from(bytes).map_err(|_| PlanError::Weights("its numbers are too large".into()))
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
    let unknown = || PlanError::Weights(format!("quantization {:?} is not known", word("quant_method")));
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
    let needed = |key: &'static str| config.needed(&[key], "the size of the weights").map(u128::from);
    let width = u128::from(hidden(config)?);
    let tied = config.flag("tie_word_embeddings") == Some(true);
    let embeddings = needed("vocab_size")? * width * if tied { 1 } else { 2 };
    let model = config.word("model_type").to_owned();
    let (dense, experts) = feed_forward(config, width)?;
    let mut layers = 0;
    for (index, kind) in kinds(config, &model)?.into_iter().enumerate() {
        layers += mixer(config, kind, width)?;
        let index = u64::try_from(index).unwrap_or(u64::MAX);
        // A Nemotron-H layer is either a mixer or a feed-forward layer.
        let has_both = config.word("hybrid_override_pattern").is_empty();
        if has_both || kind == Kind::Nothing {
            layers += experts.filter(|_| has_experts(config, index)).or(dense).unwrap_or(0);
        }
    }
    Ok(Parameters { embeddings, layers })
}

/// Parameters of what mixes tokens.
fn mixer(config: &Config, kind: Kind, width: u128) -> Result<u128, PlanError> {
    let count = |key: &'static str| config.needed(&[key], "the size of the weights").map(u128::from);
    Ok(match kind {
        Kind::Nothing => 0,
        Kind::Mamba => {
            let any = |keys: &[&'static str]| config.needed(keys, "the size of the weights").map(u128::from);
            let heads = any(&["mamba_n_heads", "mamba_num_heads"])?;
            let inner = heads * any(&["mamba_d_head", "mamba_head_dim"])?;
            let groups = any(&["mamba_n_groups", "n_groups"])? * any(&["mamba_d_state", "ssm_state_size"])?;
            width * (2 * inner + 2 * groups + heads) + inner * width
        }
        Kind::Linear => {
            let keys = count("linear_num_key_heads")? * count("linear_key_head_dim")?;
            let value_heads = count("linear_num_value_heads")?;
            let values = value_heads * count("linear_value_head_dim")?;
            width * (2 * keys + 2 * values + 2 * value_heads) + values * width
        }
        Kind::Full | Kind::Sliding | Kind::Chunked if config.count("kv_lora_rank")?.is_some() => {
            let heads = u128::from(heads(config)?);
            let (rank, rotary) = (count("kv_lora_rank")?, count("qk_rope_head_dim")?);
            let (key, value) = (count("qk_nope_head_dim")?, count("v_head_dim")?);
            let queries = match config.count("q_lora_rank")?.map(u128::from) {
                Some(rank) => width * rank + rank * heads * (key + rotary),
                None => width * heads * (key + rotary),
            };
            queries + width * (rank + rotary) + rank * heads * (key + value) + heads * value * width
        }
        Kind::Full | Kind::Sliding | Kind::Chunked => {
            let queries = u128::from(heads(config)?) * u128::from(head_width(config)?);
            let keys = u128::from(kv_heads(config)?) * u128::from(head_width(config)?);
            2 * width * queries + 2 * width * keys
        }
    })
}

/// Parameters of a dense feed-forward layer, and of one with experts where there are any.
fn feed_forward(config: &Config, width: u128) -> Result<(Option<u128>, Option<u128>), PlanError> {
    let number = |keys: &[&str]| Ok::<_, PlanError>(config.any_count(keys)?.map(u128::from));
    // Gated ones have three matrices; these old ones, and Nemotron's, two.
    let plain =
        ["gpt2", "gpt_neox", "gpt_bigcode", "falcon", "phi", "opt", "starcoder2", "nemotron", "nemotron_h"];
    let matrices = if plain.contains(&config.word("model_type")) { 2 } else { 3 };
    let inner = match number(&["intermediate_size", "n_inner", "ffn_hidden_size"])? {
        Some(inner) => Some(inner),
        None if matrices == 2 => Some(4 * width),
        None => None,
    };
    // Llama 4 has a size of its own for its dense layers.
    let dense = number(&["intermediate_size_mlp"])?.or(inner);
    let dense = dense.map(|inner| matrices * width * inner);
    let experts = number(&["n_routed_experts", "num_local_experts", "num_experts"])?;
    let of_expert = number(&["moe_intermediate_size"])?.or(inner);
    let shared = match number(&["n_shared_experts"])? {
        Some(shared) => of_expert.map(|inner| shared * inner),
        None => number(&["shared_expert_intermediate_size"])?,
    };
    let sparse = experts
        .zip(of_expert)
        .map(|(experts, inner)| matrices * width * (experts * inner + shared.unwrap_or(0)) + width * experts);
    if dense.or(sparse).is_none() {
        return Err(PlanError::Absent { key: "intermediate_size", needed_for: "the size of the weights" });
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
