//! What each layer of a model keeps per request, from its configuration.

use serde_json::Value;

use super::{
    PlanError,
    config::{Config, wrong},
    families::{Attention, StateType},
    layers::{Kind, kinds},
};

/// Keys that give the context window; vLLM takes the least (`derive_max_model_len_and_key`).
const WINDOWS: [&str; 8] = [
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
];

/// Largest factor of a RoPE scaling.
const MAX_FACTOR: f64 = 1024.0;

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
    /// A state of fixed size per sequence (Mamba, gated delta net, short convolution).
    State {
        /// Values of the convolution that the GPUs divide among them, of the model's type.
        convolution: u64,
        /// Groups of its other channels. A GPU has at least one whole group.
        groups: u64,
        /// Values of the convolution per group.
        of_group: u64,
        /// Values of the recurrent state, over all GPUs.
        recurrent: u64,
        /// Bytes per value of the recurrent state; `None`: as many as of the model's type.
        recurrent_bytes: Option<u64>,
        /// Further states that a request keeps where prefixes are cached.
        checkpoints: u64,
    },
}

/// A model as far as its memory goes.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    /// `model_type`.
    pub(crate) kind: String,
    /// Attention heads.
    pub(crate) heads: u64,
    /// Context window it was made for; `None`: unknown.
    pub(crate) window: Option<u64>,
    /// What its layers keep. A layer that keeps nothing is none.
    pub(crate) layers: Vec<Layer>,
}

impl Model {
    /// What `config` tells.
    pub(crate) fn of(config: &Config) -> Result<Self, PlanError> {
        let kinds = kinds(config)?;
        // Gemma 3n: the last layers use the keys and values of earlier ones.
        let shared =
            config.count("num_kv_shared_layers")?.filter(|_| config.word("model_type") == "gemma3n_text");
        let own = kinds.len().saturating_sub(usize::try_from(shared.unwrap_or(0)).unwrap_or(usize::MAX));
        let mut layers = Vec::new();
        for kind in kinds.into_iter().take(own) {
            layers.extend(kept(config, kind)?.into_iter().flatten());
        }
        let kind = config.word("model_type").to_owned();
        if layers.is_empty() {
            return Err(PlanError::Unknown(format!("model_type {kind:?} without an attention layer")));
        }
        Ok(Self { kind, heads: heads(config)?, window: window(config)?, layers })
    }

    /// Whether `gpus` can divide the heads among them (vLLM's attention layers assert it).
    pub(crate) fn divides(&self, gpus: u64) -> bool {
        let kv = |layer: &Layer| match layer {
            Layer::Heads { heads, .. } => heads.is_multiple_of(gpus) || gpus.is_multiple_of(*heads),
            _ => true,
        };
        self.heads.is_multiple_of(gpus) && self.layers.iter().all(kv)
    }
}

/// The context window that vLLM takes from config.json (0.32, config/model.py, `_get_and_verify_max_len`).
fn window(config: &Config) -> Result<Option<u64>, PlanError> {
    let mut given = None;
    for key in WINDOWS {
        let window = config.count(key)?;
        given = given.into_iter().chain(window).min();
    }
    let given = config.count("model_max_length")?.or(given);
    let table = config.value("rope_scaling").or_else(|| config.value("rope_parameters"));
    let kind =
        table.and_then(|table| table.get("rope_type").or_else(|| table.get("type"))).and_then(Value::as_str);
    match kind {
        Some("su" | "longrope") => Ok(config.count("original_max_position_embeddings")?.or(given)),
        // These are in the window already.
        None | Some("llama3" | "yarn" | "deepseek_yarn" | "deepseek_llama_scaling") => Ok(given),
        Some(_) if config.word("model_type").contains("gemma3") => Ok(given),
        Some(_) => {
            let factor = factor(table.and_then(|table| table.get("factor")))?;
            Ok(given.map(|window| scaled(window, factor)))
        }
    }
}

/// The factor of a RoPE scaling; 1 where there is none.
fn factor(value: Option<&Value>) -> Result<f64, PlanError> {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(1.0) };
    let factor = value.as_f64().filter(|factor| (1.0..=MAX_FACTOR).contains(factor));
    factor.ok_or_else(|| wrong("rope_scaling.factor", value, "a number of 1 to 1024"))
}

/// `window × factor`, rounded down.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "windows are at most 2^32 tokens, and a cast of a float saturates"
)]
fn scaled(window: u64, factor: f64) -> u64 {
    (window as f64 * factor) as u64
}

/// Attention heads.
pub(crate) fn heads(config: &Config) -> Result<u64, PlanError> {
    config.needed("num_attention_heads", "the size of a head")
}

/// Width of the model.
pub(crate) fn hidden(config: &Config) -> Result<u64, PlanError> {
    config.needed("hidden_size", "the size of a head")
}

/// Values per head.
pub(crate) fn head_width(config: &Config) -> Result<u64, PlanError> {
    Ok(match config.count("head_dim")? {
        Some(width) => width,
        None => match hidden(config)? / heads(config)? {
            0 => return Err(wrong("hidden_size", &hidden(config)?.into(), "at least num_attention_heads")),
            width => width,
        },
    })
}

/// KV heads: the configured number, one under multi-query attention, or one per attention head where the family has that.
pub(crate) fn kv_heads(config: &Config) -> Result<u64, PlanError> {
    // Falcon: `multi_query` counts in the old architecture only.
    let single =
        config.flag("multi_query") == Some(true) && config.flag("new_decoder_architecture") != Some(true);
    match config.count("num_key_value_heads")? {
        _ if single => Ok(1),
        // ChatGLM: groups count only with `multi_query_attention`.
        _ if config.flag("multi_query_attention") == Some(false) => heads(config),
        Some(heads) => Ok(heads),
        None if config.family().kv_as_heads => heads(config),
        None => config.needed("num_key_value_heads", "the KV cache"),
    }
}

/// What a layer of this kind keeps; two caches at most.
fn kept(config: &Config, kind: Kind) -> Result<[Option<Layer>; 2], PlanError> {
    Ok(match kind {
        Kind::Nothing => [None, None],
        Kind::Mamba => [Some(mamba(config)?), None],
        Kind::Mamba2 => [Some(mamba2(config)?), None],
        Kind::Delta => [Some(delta(config)?), None],
        Kind::ShortConvolution => [Some(short_convolution(config)?), None],
        Kind::Full if config.family().attention != Attention::Heads => {
            [Some(latent(config)?), indexer(config)?]
        }
        Kind::Full | Kind::Grouped(_) => [Some(attention(config, kind, Reach::All)?), None],
        Kind::Sliding => {
            let window =
                config.needed(own(config, kind, "sliding_window"), "layers with a sliding window")?;
            [Some(attention(config, kind, Reach::Window(window))?), None]
        }
        Kind::Chunked => {
            let chunk = config.needed("attention_chunk_size", "layers that look at their chunk")?;
            [Some(attention(config, kind, Reach::Chunk(chunk))?), None]
        }
    })
}

/// The key that says `key` of this kind of layer.
fn own(config: &Config, kind: Kind, key: &'static str) -> &'static str {
    let own = config.family().own.iter().find(|(of, known, _)| *of == kind && *known == key);
    own.map_or(key, |(_, _, own)| own)
}

fn attention(config: &Config, kind: Kind, reach: Reach) -> Result<Layer, PlanError> {
    let of_kind = |key: &'static str| match own(config, kind, key) {
        common if common == key => Ok(None),
        special => config.needed(special, "layers of this kind").map(Some),
    };
    let heads = match (kind, of_kind("num_key_value_heads")?) {
        (Kind::Grouped(group), _) => heads(config)? / group,
        (_, Some(heads)) => heads,
        (_, None) => kv_heads(config)?,
    };
    if heads == 0 || (kind == Kind::Full && !self::heads(config)?.is_multiple_of(heads)) {
        return Err(wrong("num_key_value_heads", &heads.into(), "a divisor of num_attention_heads"));
    }
    let width = of_kind("head_dim")?.map_or_else(|| head_width(config), Ok)?;
    // Only MiMo-V2 has values of a width of their own.
    let split = config.family().own.iter().any(|(of, key, _)| *of == kind && *key == "v_head_dim");
    let value = if split { config.count(own(config, kind, "v_head_dim"))? } else { None }.unwrap_or(width);
    product(&[heads, width.saturating_add(value)])?;
    Ok(Layer::Heads { heads, width: width.saturating_add(value), reach })
}

fn latent(config: &Config) -> Result<Layer, PlanError> {
    let what = "the cache of latent attention";
    let width = config.needed("kv_lora_rank", what)? + config.needed("qk_rope_head_dim", what)?;
    Ok(Layer::Latent { width })
}

/// vLLM 0.32 keeps the key in 8 bits and a scale of 4 bytes per 128 of them (deepseek_v2.py, DeepseekV32IndexerCache).
fn indexer(config: &Config) -> Result<Option<Layer>, PlanError> {
    if config.family().attention != Attention::Indexed {
        return Ok(None);
    }
    let width = config.needed("index_head_dim", "the index of sparse attention")?;
    Ok(Some(Layer::Indexer { bytes: width + width.div_ceil(128) * 4 }))
}

/// Mamba 1 (vLLM 0.32 mamba_utils.py, `mamba1_state_shape`).
fn mamba(config: &Config) -> Result<Layer, PlanError> {
    let what = "the state of Mamba layers";
    let inner = product(&[config.needed("mamba_expand", what)?, hidden(config)?])?;
    let remembered = config.needed("mamba_d_conv", what)?.saturating_sub(1);
    state(config, [remembered, inner], [0, 0], &[inner, config.needed("mamba_d_state", what)?])
}

/// Mamba 2 (mamba_utils.py, `mamba2_state_shape`): the convolution's last steps over its channels and both groups, and
/// a matrix per head.
fn mamba2(config: &Config) -> Result<Layer, PlanError> {
    let what = "the state of Mamba layers";
    let heads = config.needed("mamba_n_heads", what)?;
    let width = config.needed("mamba_d_head", what)?;
    let size = config.needed("mamba_d_state", what)?;
    let groups = config.needed("mamba_n_groups", what)?;
    let remembered = config.needed("mamba_d_conv", what)?.saturating_sub(1);
    let of_group = product(&[remembered, 2, size])?;
    state(config, [remembered, product(&[heads, width])?], [groups, of_group], &[heads, width, size])
}

/// Gated delta net (mamba_utils.py, `gated_delta_net_state_shape`).
fn delta(config: &Config) -> Result<Layer, PlanError> {
    let what = "the state of linear attention";
    let key_heads = config.needed("linear_num_key_heads", what)?;
    let value_heads = config.needed("linear_num_value_heads", what)?;
    let key = config.needed("linear_key_head_dim", what)?;
    let value = config.needed("linear_value_head_dim", what)?;
    let remembered = config.needed("linear_conv_kernel_dim", what)?.saturating_sub(1);
    let channels = product(&[2, key, key_heads])?.saturating_add(product(&[value, value_heads])?);
    state(config, [remembered, channels], [0, 0], &[value_heads, value, key])
}

/// LFM2 (mamba_utils.py, `short_conv_state_shape`).
fn short_convolution(config: &Config) -> Result<Layer, PlanError> {
    let remembered = config.needed("conv_L_cache", "the state of convolutions")?.saturating_sub(1);
    let channels = config.count("conv_dim")?.map_or_else(|| hidden(config), Ok)?;
    state(config, [remembered, channels], [0, 0], &[0])
}

fn state(
    config: &Config,
    convolution: [u64; 2],
    [groups, of_group]: [u64; 2],
    recurrent: &[u64],
) -> Result<Layer, PlanError> {
    product(&[groups, of_group])?;
    let convolution = product(&convolution)?;
    let recurrent_bytes = recurrent_bytes(config)?;
    // vLLM 0.32 v1/kv_cache_interface.py, MambaSpec: one more than the current state; Mamba 2 (mamba_mixer2.py) two more.
    let checkpoints = if groups == 0 { 1 } else { 2 };
    let recurrent = product(recurrent)?;
    Ok(Layer::State { convolution, groups, of_group, recurrent, recurrent_bytes, checkpoints })
}

/// Bytes per value of the recurrent state (vLLM 0.32 models/config.py; mamba_utils.py, `_mamba_state_dtype`).
fn recurrent_bytes(config: &Config) -> Result<Option<u64>, PlanError> {
    let (key, otherwise) = match config.family().state_type {
        StateType::Model => return Ok(None),
        StateType::Key(key) => (key, None),
        StateType::KeyOrFloat32(key) => (key, Some(4)),
    };
    match config.word(key) {
        "" => Ok(otherwise),
        "auto" => Ok(None),
        "float32" => Ok(Some(4)),
        "float16" | "bfloat16" => Ok(Some(2)),
        other => Err(wrong(key, &Value::from(other), "auto, float32, float16 and bfloat16")),
    }
}

/// A product within 2^40: no layer keeps more values than that.
fn product(factors: &[u64]) -> Result<u64, PlanError> {
    let all = factors.iter().try_fold(1u64, |product, factor| product.checked_mul(*factor));
    all.filter(|product| *product <= 1 << 40).ok_or_else(|| {
        let value = Value::from(format!("{factors:?}"));
        wrong("the product of a layer's sizes", &value, "at most 2^40")
    })
}
