//! The families of models whose KV cache this program knows, one row each: which layers they have, and how their
//! config.json spells what shapes the cache. A row says what vLLM 0.32 reads (model_executor/models, and the defaults of
//! Transformers 5.19's configuration classes); `tests/data/plan.json` holds what vLLM's own code made of a model of each.
//! Anything else is refused: a wrong figure is worse than none.

use serde_json::{Map, Value};

use super::{PlanError, decoders::DECODERS, hybrids::HYBRIDS, layers::Kind};

/// Which layers a family has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layers {
    /// Alike, and with a window where `sliding_window` gives one; or as `layer_types` says.
    Alike,
    /// All with full attention; `sliding_window` is not read.
    Full,
    /// All with full attention, unless `use_sliding_window` is set: that is refused.
    WithoutWindow,
    /// As `layer_types` says. Without it, one layer in `full` has full attention; the config may set that number by `key`.
    Every {
        /// Key that gives the number.
        key: &'static str,
        /// The number without the key.
        full: u64,
        /// What the others are.
        others: Kind,
    },
    /// As `layer_types` says, which must be there.
    Listed,
    /// Llama 4: layers with rotary embedding (1 in `no_rope_layers`) look at their own chunk only.
    Chunks,
    /// Nemotron-NAS: `block_configs`.
    Blocks,
    /// Nemotron-H: letters in `hybrid_override_pattern`.
    Letters,
    /// MiMo-V2: 1 in `hybrid_layer_pattern` is a layer with a window.
    Ones,
    /// Jamba: `attn_layer_period` and `attn_layer_offset`.
    Period,
    /// Falcon-H1: attention and a state in every layer.
    Both,
    /// LongCat: two attention layers in each of `num_layers`.
    Twice,
}

/// What a layer with full attention keeps of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attention {
    /// A key and a value per KV head.
    Heads,
    /// A latent vector (MLA).
    Latent,
    /// A latent vector and an index (DeepSeek sparse attention).
    Indexed,
}

/// The default type of the values of a recurrent state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StateType {
    /// That of the model (`mamba_ssm_cache_dtype` auto).
    Model,
    /// As this key says, else that of the model.
    Key(&'static str),
    /// As this key says, else float32.
    KeyOrFloat32(&'static str),
}

/// A family of models.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Family {
    /// `model_type`s.
    pub(super) types: &'static [&'static str],
    /// What `architectures` may name.
    pub(super) architectures: &'static [&'static str],
    /// Its layers.
    pub(crate) layers: Layers,
    /// What its attention keeps.
    pub(crate) attention: Attention,
    /// What a layer is that has a state.
    pub(crate) state: Option<Kind>,
    /// The type of the state's values.
    pub(crate) state_type: StateType,
    /// This program's name of a key, and the family's.
    pub(crate) spelled: &'static [(&'static str, &'static str)],
    /// Keys of its own that a kind of layer has, instead of the common ones.
    pub(crate) own: &'static [(Kind, &'static str, &'static str)],
    /// What vLLM takes where a key is absent.
    pub(crate) defaults: &'static [(&'static str, u64)],
    /// Whether there are as many KV heads as heads where their number is absent.
    pub(crate) kv_as_heads: bool,
    /// Matrices of a feed-forward layer; `None`: the size of its weights is not estimated.
    pub(crate) matrices: Option<u64>,
    /// Whether the embeddings serve as the output layer where `tie_word_embeddings` is absent.
    pub(crate) tied: bool,
    /// Keys that vLLM reads and this program does not model: refused unless absent, null, false, 0 or empty.
    pub(super) refused: &'static [&'static str],
}

/// A decoder whose keys are spelled as Llama spells them.
pub(super) const PLAIN: Family = Family {
    types: &[],
    architectures: &[],
    layers: Layers::Alike,
    attention: Attention::Heads,
    state: None,
    state_type: StateType::Model,
    spelled: &[],
    own: &[],
    defaults: &[],
    kv_as_heads: false,
    matrices: Some(3),
    tied: false,
    refused: &[],
};

/// How DeepSeek spells the number of experts.
pub(super) const EXPERTS: (&str, &str) = ("num_experts", "n_routed_experts");
/// How Mixtral spells it.
pub(super) const LOCAL_EXPERTS: (&str, &str) = ("num_experts", "num_local_experts");

/// Models that read text with one of the families, and keep nothing of their own per token.
const WRAPPERS: &[&str] = &[
    "Gemma3ForConditionalGeneration",
    "Gemma3nForConditionalGeneration",
    "InternVLChatModel",
    "InternVLForConditionalGeneration",
    "KimiVLForConditionalGeneration",
    "KimiK25ForConditionalGeneration",
    "Llama4ForConditionalGeneration",
    "LlavaForConditionalGeneration",
    "LlavaNextForConditionalGeneration",
    "Mistral3ForConditionalGeneration",
    "PixtralForConditionalGeneration",
    "Qwen2VLForConditionalGeneration",
    "Qwen2_5_VLForConditionalGeneration",
    "Qwen3VLForConditionalGeneration",
    "Qwen3VLMoeForConditionalGeneration",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
];

/// Keys that shape the cache of families that are not known: they make the refusal plainer.
const TELLING: &[&str] = &[
    "compress_ratios",
    "cross_attention_layers",
    "linear_attn_config",
    "is_encoder_decoder",
    "attn_type_list",
    "attn_config",
    "layer_types",
    "hybrid_override_pattern",
    "kv_lora_rank",
    "sliding_window",
];

impl Family {
    /// The family of a language model with the keys `map`, which is the whole of `outer` unless `nested`.
    pub(crate) fn of(
        map: &Map<String, Value>,
        outer: &Map<String, Value>,
        nested: bool,
    ) -> Result<&'static Self, PlanError> {
        let word =
            |map: &Map<String, Value>, key: &str| map.get(key).and_then(Value::as_str).map(str::to_owned);
        let Some(kind) = word(map, "model_type") else {
            let key = if nested { "model_type of the language model" } else { "model_type" };
            return Err(PlanError::Absent { key: key.into(), needed_for: "the KV cache" });
        };
        if outer.get("is_encoder_decoder") == Some(&Value::Bool(true)) {
            return Err(PlanError::Unknown(format!("model_type {kind:?}, an encoder-decoder")));
        }
        let Some(family) =
            DECODERS.iter().chain(HYBRIDS).find(|family| family.types.contains(&kind.as_str()))
        else {
            let why = TELLING.iter().find(|key| map.get(**key).is_some_and(is_set));
            let why = why.map_or_else(String::new, |key| format!(" with {key}"));
            return Err(PlanError::Unknown(format!("model_type {kind:?}{why}")));
        };
        let names = outer.get("architectures").and_then(Value::as_array).into_iter().flatten();
        let known = |name: &str| family.architectures.contains(&name) || WRAPPERS.contains(&name);
        if let Some(name) = names.filter_map(Value::as_str).find(|name| !known(name)) {
            return Err(PlanError::Unknown(format!("architectures: {name:?} with model_type {kind:?}")));
        }
        match family.refused.iter().find(|key| map.get(**key).is_some_and(is_set)) {
            Some(key) => Err(PlanError::Unknown(format!("{key} with model_type {kind:?}"))),
            None => Ok(family),
        }
    }
}

/// Whether a key says anything.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::Array(list) => !list.is_empty(),
        Value::Object(table) => !table.is_empty(),
        Value::String(_) | Value::Bool(true) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// vLLM for the CPU does not start these: they have tests of their own (`shapes`).
    const BY_HAND: [&str; 2] = ["deepseek_v32", "qwen3_5_text"];

    #[test]
    fn every_family_was_checked_against_vllm() {
        let models: Vec<Value> = serde_json::from_str(include_str!("../../../tests/data/plan.json")).unwrap();
        let checked: Vec<&str> =
            models.iter().map(|model| model["config"]["model_type"].as_str().unwrap()).collect();
        for family in DECODERS.iter().chain(HYBRIDS) {
            let is_checked = family.types.iter().any(|kind| checked.contains(kind) || BY_HAND.contains(kind));
            assert!(is_checked, "{:?}", family.types);
        }
    }
}
