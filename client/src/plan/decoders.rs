//! Families whose layers keep keys and values only.

use super::{
    families::{EXPERTS, Family, LOCAL_EXPERTS, Layers, PLAIN},
    layers::Kind,
};

const GPT2_KEYS: [(&str, &str); 5] = [
    ("hidden_size", "n_embd"),
    ("num_attention_heads", "n_head"),
    ("num_hidden_layers", "n_layer"),
    ("max_position_embeddings", "n_positions"),
    ("intermediate_size", "n_inner"),
];

/// Families with keys and values in every layer.
pub(super) static DECODERS: &[Family] = &[
    Family {
        types: &["llama"],
        architectures: &["LlamaForCausalLM", "LLaMAForCausalLM"],
        kv_as_heads: true,
        ..PLAIN
    },
    Family { types: &["internlm3"], architectures: &["InternLM3ForCausalLM"], ..PLAIN },
    Family {
        types: &["mistral"],
        architectures: &["MistralForCausalLM"],
        defaults: &[("sliding_window", 4096), ("num_key_value_heads", 8)],
        ..PLAIN
    },
    Family {
        types: &["ministral3"],
        architectures: &["Ministral3ForCausalLM"],
        defaults: &[("head_dim", 128)],
        ..PLAIN
    },
    Family {
        types: &["mixtral"],
        architectures: &["MixtralForCausalLM"],
        spelled: &[LOCAL_EXPERTS],
        ..PLAIN
    },
    Family {
        types: &[
            "qwen2",
            "qwen2_vl",
            "qwen2_5_vl",
            "qwen2_vl_text",
            "qwen2_5_vl_text",
            "qwen2_moe",
            "qwen3_moe",
        ],
        architectures: &["Qwen2ForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"],
        layers: Layers::WithoutWindow,
        ..PLAIN
    },
    Family {
        types: &["qwen3", "qwen3_vl_text", "qwen3_vl_moe_text"],
        architectures: &["Qwen3ForCausalLM"],
        layers: Layers::WithoutWindow,
        defaults: &[("head_dim", 128)],
        ..PLAIN
    },
    Family {
        types: &["gemma"],
        architectures: &["GemmaForCausalLM"],
        layers: Layers::Full,
        defaults: &[("head_dim", 256)],
        tied: true,
        ..PLAIN
    },
    Family {
        types: &["gemma2"],
        architectures: &["Gemma2ForCausalLM"],
        layers: Layers::Every { key: "", full: 2, others: Kind::Sliding },
        defaults: &[("head_dim", 256), ("sliding_window", 4096)],
        tied: true,
        ..PLAIN
    },
    Family {
        types: &["gemma3_text"],
        architectures: &["Gemma3ForCausalLM"],
        layers: Layers::Every { key: "sliding_window_pattern", full: 6, others: Kind::Sliding },
        defaults: &[
            ("num_attention_heads", 8),
            ("num_key_value_heads", 4),
            ("head_dim", 256),
            ("sliding_window", 4096),
            ("max_position_embeddings", 131_072),
            ("vocab_size", 262_208),
        ],
        tied: true,
        refused: &["use_bidirectional_attention"],
        ..PLAIN
    },
    Family {
        types: &["gpt_oss"],
        architectures: &["GptOssForCausalLM"],
        layers: Layers::Every { key: "", full: 2, others: Kind::Sliding },
        defaults: &[("head_dim", 64), ("sliding_window", 128)],
        spelled: &[LOCAL_EXPERTS],
        ..PLAIN
    },
    Family {
        types: &["glm", "glm4"],
        architectures: &["GlmForCausalLM", "Glm4ForCausalLM"],
        layers: Layers::Full,
        defaults: &[("head_dim", 128), ("num_key_value_heads", 2)],
        ..PLAIN
    },
    Family {
        types: &["glm4_moe"],
        architectures: &["Glm4MoeForCausalLM"],
        layers: Layers::Full,
        spelled: &[EXPERTS],
        ..PLAIN
    },
    Family {
        types: &["minimax_m2"],
        architectures: &["MiniMaxM2ForCausalLM"],
        layers: Layers::Full,
        spelled: &[LOCAL_EXPERTS],
        defaults: &[("head_dim", 128)],
        ..PLAIN
    },
    Family {
        types: &["phi3", "phimoe"],
        architectures: &["Phi3ForCausalLM", "PhiMoEForCausalLM"],
        spelled: &[LOCAL_EXPERTS],
        ..PLAIN
    },
    Family {
        types: &["phi"],
        architectures: &["PhiForCausalLM"],
        kv_as_heads: true,
        matrices: Some(2),
        ..PLAIN
    },
    Family { types: &["cohere"], architectures: &["CohereForCausalLM"], tied: true, ..PLAIN },
    Family {
        types: &["cohere2"],
        architectures: &["Cohere2ForCausalLM"],
        layers: Layers::Every { key: "sliding_window_pattern", full: 4, others: Kind::Sliding },
        defaults: &[("sliding_window", 4096)],
        tied: true,
        ..PLAIN
    },
    Family { types: &["olmo"], architectures: &["OlmoForCausalLM"], kv_as_heads: true, ..PLAIN },
    Family { types: &["olmo2"], architectures: &["Olmo2ForCausalLM"], kv_as_heads: true, ..PLAIN },
    Family { types: &["olmoe"], architectures: &["OlmoeForCausalLM"], ..PLAIN },
    Family {
        types: &["olmo3"],
        architectures: &["Olmo3ForCausalLM"],
        layers: Layers::Every { key: "", full: 4, others: Kind::Sliding },
        defaults: &[("sliding_window", 4096)],
        kv_as_heads: true,
        ..PLAIN
    },
    Family { types: &["exaone4"], architectures: &["Exaone4ForCausalLM"], layers: Layers::Listed, ..PLAIN },
    Family {
        types: &["exaone"],
        architectures: &["ExaoneForCausalLM"],
        spelled: &[("num_hidden_layers", "num_layers")],
        kv_as_heads: true,
        ..PLAIN
    },
    Family {
        types: &["hunyuan_v1_dense", "hunyuan_v1_moe"],
        architectures: &["HunYuanDenseV1ForCausalLM", "HunYuanMoEV1ForCausalLM"],
        matrices: None,
        refused: &["use_cla"],
        ..PLAIN
    },
    Family {
        types: &["ernie4_5"],
        architectures: &["Ernie4_5ForCausalLM"],
        layers: Layers::Full,
        defaults: &[("head_dim", 128)],
        tied: true,
        ..PLAIN
    },
    Family {
        types: &["ernie4_5_moe"],
        architectures: &["Ernie4_5_MoeForCausalLM"],
        layers: Layers::Full,
        matrices: None,
        ..PLAIN
    },
    Family {
        types: &["gpt2"],
        architectures: &["GPT2LMHeadModel"],
        spelled: &GPT2_KEYS,
        kv_as_heads: true,
        matrices: Some(2),
        tied: true,
        ..PLAIN
    },
    Family {
        types: &["gptj"],
        architectures: &["GPTJForCausalLM"],
        spelled: &GPT2_KEYS,
        kv_as_heads: true,
        matrices: Some(2),
        ..PLAIN
    },
    Family {
        types: &["gpt_bigcode"],
        architectures: &["GPTBigCodeForCausalLM"],
        spelled: &GPT2_KEYS,
        defaults: &[("multi_query", 1)],
        kv_as_heads: true,
        matrices: Some(2),
        tied: true,
        ..PLAIN
    },
    Family {
        types: &["opt"],
        architectures: &["OPTForCausalLM"],
        spelled: &[("intermediate_size", "ffn_dim")],
        kv_as_heads: true,
        matrices: Some(2),
        tied: true,
        ..PLAIN
    },
    Family {
        types: &["falcon"],
        architectures: &["FalconForCausalLM"],
        spelled: &[("num_key_value_heads", "num_kv_heads"), ("intermediate_size", "ffn_hidden_size")],
        defaults: &[("max_position_embeddings", 2048), ("multi_query", 1)],
        kv_as_heads: true,
        matrices: Some(2),
        tied: true,
        ..PLAIN
    },
    Family {
        types: &["gpt_neox"],
        architectures: &["GPTNeoXForCausalLM"],
        kv_as_heads: true,
        matrices: Some(2),
        ..PLAIN
    },
    Family {
        types: &["starcoder2"],
        architectures: &["Starcoder2ForCausalLM"],
        matrices: Some(2),
        tied: true,
        ..PLAIN
    },
    Family { types: &["stablelm"], architectures: &["StableLmForCausalLM"], kv_as_heads: true, ..PLAIN },
    Family { types: &["internlm2"], architectures: &["InternLM2ForCausalLM"], ..PLAIN },
    Family {
        types: &["chatglm"],
        architectures: &["ChatGLMModel", "ChatGLMForConditionalGeneration"],
        spelled: &[
            ("num_hidden_layers", "num_layers"),
            ("num_key_value_heads", "multi_query_group_num"),
            ("max_position_embeddings", "seq_length"),
            ("vocab_size", "padded_vocab_size"),
            ("intermediate_size", "ffn_hidden_size"),
        ],
        ..PLAIN
    },
    Family {
        types: &["seed_oss"],
        architectures: &["SeedOssForCausalLM"],
        defaults: &[("head_dim", 128)],
        ..PLAIN
    },
    Family {
        types: &["smollm3"],
        architectures: &["SmolLM3ForCausalLM"],
        layers: Layers::WithoutWindow,
        tied: true,
        ..PLAIN
    },
    Family { types: &["arcee"], architectures: &["ArceeForCausalLM"], matrices: Some(2), ..PLAIN },
    Family {
        types: &["apertus"],
        architectures: &["ApertusForCausalLM"],
        kv_as_heads: true,
        matrices: Some(2),
        ..PLAIN
    },
    Family {
        types: &["granitemoeshared"],
        architectures: &["GraniteMoeSharedForCausalLM"],
        kv_as_heads: true,
        matrices: None,
        ..PLAIN
    },
    Family {
        types: &["granite", "granitemoe"],
        architectures: &["GraniteForCausalLM", "GraniteMoeForCausalLM"],
        spelled: &[LOCAL_EXPERTS],
        kv_as_heads: true,
        ..PLAIN
    },
    Family {
        types: &["nemotron"],
        architectures: &["NemotronForCausalLM"],
        kv_as_heads: true,
        matrices: Some(2),
        ..PLAIN
    },
    Family {
        types: &["dbrx"],
        architectures: &["DbrxForCausalLM"],
        layers: Layers::Full,
        spelled: &[
            ("hidden_size", "d_model"),
            ("num_attention_heads", "n_heads"),
            ("num_hidden_layers", "n_layers"),
            ("num_key_value_heads", "attn_config.kv_n_heads"),
            ("max_position_embeddings", "max_seq_len"),
            ("intermediate_size", "ffn_config.ffn_hidden_size"),
            ("num_experts", "ffn_config.moe_num_experts"),
            ("num_experts_per_tok", "ffn_config.moe_top_k"),
        ],
        ..PLAIN
    },
];
