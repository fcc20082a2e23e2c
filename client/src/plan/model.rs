//! What each layer of a model keeps per request, told from its configuration.

use serde_json::Value;

use super::{
    PlanError,
    config::{Config, wrong},
};

/// Most layers.
const MAX_LAYERS: u64 = 4096;

/// How far back a layer looks, and so which tokens it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Reach {
    /// All of them.
    All,
    /// The last so many.
    Window(u64),
    /// Those of its own chunk of so many.
    Chunk(u64),
}

/// What one layer keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Layer {
    /// A key and a value per KV head and token (MHA, GQA, MQA).
    Heads {
        /// KV heads, over all GPUs.
        heads: u64,
        /// Values per head and token: key and value together.
        width: u64,
        /// Which tokens.
        reach: Reach,
    },
    /// One compressed vector per token, the same on every GPU (MLA).
    Latent {
        /// Values per token.
        width: u64,
    },
    /// Keys by which sparse attention picks its tokens, in a format of their own (DeepSeek V3.2).
    Indexer {
        /// Bytes per token.
        bytes: u64,
    },
    /// A state of fixed size per sequence (Mamba 2, gated delta net).
    State {
        /// Channels of the convolution × remembered steps, over all GPUs.
        convolution: u64,
        /// Values of the recurrent state, over all GPUs.
        recurrent: u64,
        /// Bytes per value of the recurrent state.
        recurrent_bytes: u64,
    },
}

/// A model as far as its memory goes.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    /// `model_type`.
    pub(crate) kind: String,
    /// Attention heads.
    pub(crate) heads: u64,
    /// Context window it was made for; `None`: not told.
    pub(crate) window: Option<u64>,
    /// What its layers keep. A layer that keeps nothing is none.
    pub(crate) layers: Vec<Layer>,
}

impl Model {
    /// What `config` tells.
    pub(crate) fn of(config: &Config) -> Result<Self, PlanError> {
        let kind = config.word("model_type").to_owned();
        if config.flag("is_encoder_decoder") == Some(true) {
            return Err(PlanError::Unsupported(format!("{kind}, an encoder-decoder")));
        }
        let heads = heads(config)?;
        let kinds = kinds(config, &kind)?;
        // Gemma 3n: the last layers use the keys and values of earlier ones.
        let shared = config.count("num_kv_shared_layers")?.unwrap_or(0);
        let own = kinds.len().saturating_sub(usize::try_from(shared).unwrap_or(usize::MAX));
        let mut layers = Vec::new();
        for kind in kinds.into_iter().take(own) {
            layers.extend(kept(config, kind)?.into_iter().flatten());
        }
        if layers.is_empty() {
            return Err(PlanError::Unsupported(format!("{kind}, which has no attention layer")));
        }
        let window =
            config.any_count(&["max_position_embeddings", "n_positions", "max_seq_len", "seq_length"])?;
        Ok(Self { kind, heads, window, layers })
    }
}

/// Attention heads.
pub(crate) fn heads(config: &Config) -> Result<u64, PlanError> {
    config.needed(&["num_attention_heads", "n_head", "n_heads"], "the size of a head")
}

/// Width of the model.
pub(crate) fn hidden(config: &Config) -> Result<u64, PlanError> {
    config.needed(&["hidden_size", "n_embd", "d_model"], "the size of a head")
}

/// Values per head.
pub(crate) fn head_width(config: &Config) -> Result<u64, PlanError> {
    Ok(match config.count("head_dim")? {
        Some(width) => width,
        None => hidden(config)? / heads(config)?,
    })
}

/// KV heads: as told, one under multi-query attention, else as many as attention heads.
pub(crate) fn kv_heads(config: &Config) -> Result<u64, PlanError> {
    let told = config.any_count(&["num_key_value_heads", "num_kv_heads", "n_head_kv"])?;
    let single =
        config.flag("multi_query") == Some(true) && config.flag("new_decoder_architecture") != Some(true);
    Ok(match told {
        _ if single => 1,
        Some(heads) => heads,
        None => heads(config)?,
    })
}

/// Kind of a layer as configurations name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Full,
    Sliding,
    Chunked,
    /// Mamba 2.
    Mamba,
    /// Gated delta net.
    Linear,
    /// Feed-forward only.
    Nothing,
}

/// Kind of each layer.
pub(crate) fn kinds(config: &Config, model: &str) -> Result<Vec<Kind>, PlanError> {
    if let Some(list) = config.list("layer_types").or_else(|| config.list("layers_block_type")) {
        return list.iter().map(named).collect();
    }
    let pattern = config.word("hybrid_override_pattern");
    if !pattern.is_empty() {
        return pattern.chars().map(lettered).collect();
    }
    let count = config.needed(&["num_hidden_layers", "n_layer", "n_layers", "num_layers"], "everything")?;
    if count > MAX_LAYERS {
        let value = Value::from(count);
        return Err(wrong("num_hidden_layers", &value, "at most 4096"));
    }
    let kind = by_rule(config, model)?;
    (0..count).map(|layer| Ok(kind(layer))).collect()
}

type Rule = Box<dyn Fn(u64) -> Kind>;

/// The rule by which the layers of a model without a list alternate.
fn by_rule(config: &Config, model: &str) -> Result<Rule, PlanError> {
    let one_in = |every: u64, it: Kind, others: Kind| -> Rule {
        Box::new(move |layer| if (layer + 1).is_multiple_of(every) { it } else { others })
    };
    if matches!(
        model,
        "mamba" | "mamba2" | "falcon_mamba" | "falcon_h1" | "zamba" | "zamba2" | "jamba" | "rwkv"
    ) {
        return Err(PlanError::Unsupported(format!("layers of {model} without layer_types")));
    }
    if let Some(every) = config.count("full_attention_interval")? {
        return Ok(one_in(every, Kind::Full, Kind::Linear));
    }
    if let Some(attention) = config.list("attn_layer_indices") {
        let attention: Vec<u64> = attention.iter().filter_map(Value::as_u64).collect();
        return Ok(Box::new(move |layer| if attention.contains(&layer) { Kind::Full } else { Kind::Mamba }));
    }
    if config.count("attention_chunk_size")?.is_some() {
        return Ok(chunked(config)?.unwrap_or_else(|| one_in(4, Kind::Full, Kind::Chunked)));
    }
    let window = config.count("sliding_window")?;
    if window.is_none() || config.flag("use_sliding_window") == Some(false) {
        return Ok(Box::new(|_| Kind::Full));
    }
    let pattern = config.any_count(&["sliding_window_pattern", "_sliding_window_pattern"])?;
    Ok(match (model, pattern) {
        (_, Some(every)) => one_in(every, Kind::Full, Kind::Sliding),
        ("gemma3" | "gemma3_text", None) => one_in(6, Kind::Full, Kind::Sliding),
        ("gemma2" | "gpt_oss", None) => one_in(2, Kind::Full, Kind::Sliding),
        ("cohere2", None) => one_in(4, Kind::Full, Kind::Sliding),
        // Qwen 2 has the key but uses it only where told to.
        ("qwen2" | "qwen2_moe" | "qwen3" | "qwen3_moe", None)
            if config.flag("use_sliding_window").is_none() =>
        {
            Box::new(|_| Kind::Full)
        }
        _ => Box::new(|_| Kind::Sliding),
    })
}

/// Llama 4: layers with rotary embedding look at their chunk only.
fn chunked(config: &Config) -> Result<Option<Rule>, PlanError> {
    let Some(rotary) = config.list("no_rope_layers") else { return Ok(None) };
    let rotary: Vec<bool> = rotary.iter().map(|value| value.as_u64() == Some(1)).collect();
    let of = move |layer: u64| usize::try_from(layer).ok().and_then(|layer| rotary.get(layer).copied());
    Ok(Some(Box::new(move |layer| if of(layer) == Some(true) { Kind::Chunked } else { Kind::Full })))
}

fn named(value: &Value) -> Result<Kind, PlanError> {
    match value.as_str().unwrap_or_default() {
        "full_attention" | "attention" | "global_attention" | "full" => Ok(Kind::Full),
        "sliding_attention" | "sliding_window_attention" | "local_attention" => Ok(Kind::Sliding),
        "chunked_attention" => Ok(Kind::Chunked),
        "linear_attention" => Ok(Kind::Linear),
        "mamba" | "mamba2" => Ok(Kind::Mamba),
        "mlp" | "moe" => Ok(Kind::Nothing),
        _ => Err(wrong("layer_types", value, "kinds of attention that this program knows")),
    }
}

/// Nemotron-H: M is Mamba 2, * attention, - and E feed-forward layers.
fn lettered(letter: char) -> Result<Kind, PlanError> {
    match letter {
        '*' => Ok(Kind::Full),
        'M' => Ok(Kind::Mamba),
        '-' | 'E' => Ok(Kind::Nothing),
        other => Err(wrong("hybrid_override_pattern", &Value::from(other.to_string()), "M, *, - and E")),
    }
}

/// What a layer of this kind keeps; two caches at most.
fn kept(config: &Config, kind: Kind) -> Result<[Option<Layer>; 2], PlanError> {
    Ok(match kind {
        Kind::Nothing => [None, None],
        Kind::Mamba => [Some(mamba(config)?), None],
        Kind::Linear => [Some(linear(config)?), None],
        Kind::Full => match latent(config)? {
            Some(latent) => [Some(latent), indexer(config)?],
            None => [Some(attention(config, Reach::All)?), None],
        },
        Kind::Sliding => {
            let window = config.needed(&["sliding_window"], "layers with a sliding window")?;
            [Some(attention(config, Reach::Window(window))?), None]
        }
        Kind::Chunked => {
            let chunk = config.needed(&["attention_chunk_size"], "layers that look at their chunk")?;
            [Some(attention(config, Reach::Chunk(chunk))?), None]
        }
    })
}

fn attention(config: &Config, reach: Reach) -> Result<Layer, PlanError> {
    // Gemma 4: layers without a window have heads of their own size and number.
    let global = matches!(reach, Reach::All);
    let width = config.count("global_head_dim")?.filter(|_| global);
    let heads = config.count("num_global_key_value_heads")?.filter(|_| global);
    let width = width.map_or_else(|| head_width(config), Ok)?;
    let heads = heads.map_or_else(|| kv_heads(config), Ok)?;
    let value = config.count("v_head_dim")?.unwrap_or(width);
    product(&[heads, width.saturating_add(value)])?;
    Ok(Layer::Heads { heads, width: width.saturating_add(value), reach })
}

fn latent(config: &Config) -> Result<Option<Layer>, PlanError> {
    let Some(rank) = config.count("kv_lora_rank")? else { return Ok(None) };
    let rotary = config.needed(&["qk_rope_head_dim"], "the cache of latent attention")?;
    Ok(Some(Layer::Latent { width: rank + rotary }))
}

/// vLLM 0.32 keeps the key in 8 bits and a scale of 4 bytes per 128 of them (deepseek_v2.py, DeepseekV32IndexerCache).
fn indexer(config: &Config) -> Result<Option<Layer>, PlanError> {
    let width = config.count("index_head_dim")?;
    Ok(width.map(|width| Layer::Indexer { bytes: width + width.div_ceil(128) * 4 }))
}

/// Mamba 2 (vLLM 0.32 mamba_utils.py, `mamba2_state_shape`): the convolution's last steps over its channels and both
/// groups, and a matrix per head.
fn mamba(config: &Config) -> Result<Layer, PlanError> {
    let what = "the state of Mamba layers";
    let heads = config.needed(&["mamba_n_heads", "mamba_num_heads"], what)?;
    let width = config.needed(&["mamba_d_head", "mamba_head_dim"], what)?;
    let state = config.needed(&["mamba_d_state", "ssm_state_size"], what)?;
    let groups = config.needed(&["mamba_n_groups", "n_groups"], what)?;
    let kernel = config.needed(&["mamba_d_conv", "conv_kernel"], what)?;
    let channels = product(&[heads, width])?.saturating_add(product(&[2, groups, state])?);
    Ok(Layer::State {
        convolution: product(&[kernel.saturating_sub(1), channels])?,
        recurrent: product(&[heads, width, state])?,
        recurrent_bytes: recurrent_bytes(config),
    })
}

/// Gated delta net (mamba_utils.py, `gated_delta_net_state_shape`).
fn linear(config: &Config) -> Result<Layer, PlanError> {
    let what = "the state of linear attention";
    let key_heads = config.needed(&["linear_num_key_heads"], what)?;
    let value_heads = config.needed(&["linear_num_value_heads"], what)?;
    let key = config.needed(&["linear_key_head_dim"], what)?;
    let value = config.needed(&["linear_value_head_dim"], what)?;
    let kernel = config.needed(&["linear_conv_kernel_dim"], what)?;
    let channels = product(&[2, key, key_heads])?.saturating_add(product(&[value, value_heads])?);
    Ok(Layer::State {
        convolution: product(&[kernel.saturating_sub(1), channels])?,
        recurrent: product(&[value_heads, value, key])?,
        recurrent_bytes: recurrent_bytes(config),
    })
}

/// 4 (float32) is vLLM's default (0.32, config/cache.py, `mamba_ssm_cache_dtype`).
fn recurrent_bytes(config: &Config) -> u64 {
    let told = ["mamba_ssm_cache_dtype", "mamba_ssm_dtype"].map(|key| config.word(key));
    let halved = told.into_iter().any(|word| matches!(word, "float16" | "bfloat16"));
    if halved { 2 } else { 4 }
}

/// A product within 2^40: no layer keeps more values than that.
fn product(factors: &[u64]) -> Result<u64, PlanError> {
    let all = factors.iter().try_fold(1u64, |product, factor| product.checked_mul(*factor));
    all.filter(|product| *product <= 1 << 40).ok_or_else(|| {
        let value = Value::from(format!("{factors:?}"));
        wrong("the product of a layer's sizes", &value, "at most 2^40")
    })
}
