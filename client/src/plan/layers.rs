//! What each layer of a model is, as its family says it.

use serde_json::Value;

use super::{
    PlanError,
    config::{Config, wrong},
    families::Layers,
};

/// Most layers.
const MAX_LAYERS: u64 = 4096;

/// What a layer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Attention to all tokens.
    Full,
    /// Attention to all tokens. The value is the number of heads that share a KV head.
    Grouped(u64),
    /// Attention to the last tokens.
    Sliding,
    /// Attention to the tokens of its own chunk.
    Chunked,
    /// Mamba 1.
    Mamba,
    /// Mamba 2.
    Mamba2,
    /// Gated delta net.
    Delta,
    /// A short convolution.
    ShortConvolution,
    /// Feed-forward only.
    Nothing,
}

/// What each layer of a model is. Falcon-H1 has two mixers per layer and LongCat two attention layers.
pub(crate) fn kinds(config: &Config) -> Result<Vec<Kind>, PlanError> {
    let family = config.family();
    match family.layers {
        Layers::Letters => return letters(config),
        Layers::Twice => return Ok(vec![Kind::Full; 2 * size(count(config, "num_layers")?)]),
        _ => {}
    }
    let count = count(config, "num_hidden_layers")?;
    let repeat = |of: Kind| Ok(vec![of; size(count)]);
    let listed = listed(config, count)?;
    match (family.layers, listed) {
        (Layers::Alike, Some(list)) => alike(config, list),
        (Layers::Alike, None) => repeat(windowed(config)?),
        (Layers::Every { .. } | Layers::Listed | Layers::Chunks, Some(list)) => Ok(list),
        (Layers::Every { key, full, others }, None) => {
            let every = if key.is_empty() { None } else { config.count(key)? }.unwrap_or(full);
            Ok((1..=count).map(|layer| if layer % every == 0 { Kind::Full } else { others }).collect())
        }
        (Layers::Listed, None) => {
            Err(PlanError::Absent { key: "layer_types".into(), needed_for: "the kinds of the layers" })
        }
        (Layers::Chunks, None) => chunks(config, count),
        (Layers::Ones, _) => ones(config, "hybrid_layer_pattern", count, Kind::Sliding),
        (Layers::Blocks, _) => blocks(config, count),
        (Layers::Period, _) => period(config, count),
        (Layers::Both, _) => Ok([Kind::Full, Kind::Mamba2].repeat(size(count))),
        (Layers::WithoutWindow, _) if config.flag("use_sliding_window") == Some(true) => Err(
            PlanError::Unknown(format!("use_sliding_window with model_type {:?}", config.word("model_type"))),
        ),
        (Layers::Full | Layers::WithoutWindow, list) => {
            match list.into_iter().flatten().find(|kind| *kind != Kind::Full) {
                Some(kind) => {
                    Err(PlanError::Unknown(format!("layer_types of the kind {kind:?} in this family")))
                }
                None => repeat(Kind::Full),
            }
        }
        (Layers::Letters | Layers::Twice, _) => repeat(Kind::Full),
    }
}

/// vLLM gives all layers the window, or as `layer_types` says where the kinds differ (0.32, engine/arg_utils.py).
fn alike(config: &Config, list: Vec<Kind>) -> Result<Vec<Kind>, PlanError> {
    let window = windowed(config)?;
    if list.contains(&Kind::Sliding) && window == Kind::Full {
        return Err(PlanError::Absent { key: "sliding_window".into(), needed_for: "layers with a window" });
    }
    Ok(list)
}

fn windowed(config: &Config) -> Result<Kind, PlanError> {
    Ok(if config.count("sliding_window")?.is_some() { Kind::Sliding } else { Kind::Full })
}

fn size(count: u64) -> usize {
    usize::try_from(count).unwrap_or_default()
}

fn count(config: &Config, key: &'static str) -> Result<u64, PlanError> {
    let count = config.needed(key, "everything")?;
    if count > MAX_LAYERS {
        return Err(wrong(config.name(key), &Value::from(count), "at most 4096"));
    }
    Ok(count)
}

/// The first `count` of `layer_types`; vLLM ignores the rest.
fn listed(config: &Config, count: u64) -> Result<Option<Vec<Kind>>, PlanError> {
    let key = if config.value("layer_types").is_some() { "layer_types" } else { "layers_block_type" };
    let Some(list) = config.list(key) else { return Ok(None) };
    let list = first(key, list, count)?;
    list.iter().map(|value| named(config, key, value)).collect::<Result<_, _>>().map(Some)
}

/// The first `count` of a list that must be as long.
fn first<'a>(key: &str, list: &'a [Value], count: u64) -> Result<&'a [Value], PlanError> {
    let short = || wrong(key, &Value::from(list.len()), "as many entries as there are layers");
    list.get(..size(count)).ok_or_else(short)
}

fn named(config: &Config, key: &str, value: &Value) -> Result<Kind, PlanError> {
    let state = config.family().state;
    match (value.as_str().unwrap_or_default(), state) {
        ("full_attention" | "attention", _) => Ok(Kind::Full),
        ("sliding_attention", _) => Ok(Kind::Sliding),
        ("chunked_attention", _) => Ok(Kind::Chunked),
        ("linear_attention" | "mamba" | "conv", Some(state)) => Ok(state),
        ("mlp" | "moe", Some(Kind::Mamba2)) => Ok(Kind::Nothing),
        _ => Err(wrong(key, value, "a kind of layer that vLLM knows in this family")),
    }
}

/// Nemotron-H: M is Mamba 2, * attention, - and E feed-forward layers. A list of kinds comes first.
fn letters(config: &Config) -> Result<Vec<Kind>, PlanError> {
    for key in ["layer_types", "layers_block_type"] {
        if let Some(list) = config.list(key) {
            return list.iter().map(|value| named(config, key, value)).collect();
        }
    }
    let letter = |letter: char| match letter {
        '*' => Ok(Kind::Full),
        'M' => Ok(Kind::Mamba2),
        '-' | 'E' => Ok(Kind::Nothing),
        other => Err(wrong("hybrid_override_pattern", &Value::from(other.to_string()), "M, *, - and E")),
    };
    match config.word("hybrid_override_pattern") {
        "" => Err(PlanError::Absent {
            key: "hybrid_override_pattern".into(),
            needed_for: "the kinds of the layers",
        }),
        pattern => pattern.chars().map(letter).collect(),
    }
}

/// A list in which 1 marks a layer of the kind `marked`, and 0 one with full attention.
fn ones(config: &Config, key: &'static str, count: u64, marked: Kind) -> Result<Vec<Kind>, PlanError> {
    let list = config
        .list(key)
        .ok_or(PlanError::Absent { key: key.into(), needed_for: "the kinds of the layers" })?;
    let kind = |value: &Value| match value.as_u64() {
        Some(1) => Ok(marked),
        Some(0) => Ok(Kind::Full),
        _ => Err(wrong(key, value, "0 or 1")),
    };
    first(key, list, count)?.iter().map(kind).collect()
}

/// Llama 4: an empty list means that layers without rotary embedding come at a fixed interval (transformers,
/// `Llama4TextConfig`).
fn chunks(config: &Config, count: u64) -> Result<Vec<Kind>, PlanError> {
    if config.list("no_rope_layers").is_some() {
        return ones(config, "no_rope_layers", count, Kind::Chunked);
    }
    let every = config.count("no_rope_layer_interval")?.unwrap_or(4);
    Ok((1..=count).map(|layer| if layer % every == 0 { Kind::Full } else { Kind::Chunked }).collect())
}

/// Nemotron-NAS: a block may do without attention (model_executor/models/nemotron_nas.py).
fn blocks(config: &Config, count: u64) -> Result<Vec<Kind>, PlanError> {
    let key = "block_configs";
    let list = config
        .list(key)
        .ok_or(PlanError::Absent { key: key.into(), needed_for: "the kinds of the layers" })?;
    let kind = |block: &Value| {
        let attention = block.get("attention").unwrap_or(block);
        if attention.get("no_op") == Some(&Value::Bool(true)) {
            return Ok(Kind::Nothing);
        }
        let group = attention.get("n_heads_in_group").and_then(Value::as_u64);
        group
            .filter(|group| *group > 0)
            .map(Kind::Grouped)
            .ok_or_else(|| wrong(key, attention, "a table with n_heads_in_group"))
    };
    first(key, list, count)?.iter().map(kind).collect()
}

/// Jamba: layers with attention come at a fixed interval (transformers, `JambaConfig.layers_block_type`).
fn period(config: &Config, count: u64) -> Result<Vec<Kind>, PlanError> {
    let period = config.needed("attn_layer_period", "the kinds of the layers")?;
    let offset = config.count("attn_layer_offset")?.unwrap_or(0);
    Ok((0..count).map(|layer| if layer % period == offset { Kind::Full } else { Kind::Mamba }).collect())
}
