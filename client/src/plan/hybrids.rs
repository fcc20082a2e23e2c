//! Families with latent attention, with states, or with layers of unlike sizes.

use super::{
    families::{Attention, EXPERTS, Family, LOCAL_EXPERTS, Layers, PLAIN, StateType},
    layers::Kind,
};

const MAMBA: Family = Family { layers: Layers::Listed, state: Some(Kind::Mamba2), matrices: None, ..PLAIN };
const DELTA: Family = Family {
    layers: Layers::Every { key: "full_attention_interval", full: 4, others: Kind::Delta },
    state: Some(Kind::Delta),
    ..PLAIN
};
const LATENT: Family =
    Family { layers: Layers::Full, attention: Attention::Latent, spelled: &[EXPERTS], ..PLAIN };

/// Families whose layers are unlike each other, or keep something else than keys and values.
pub(super) static HYBRIDS: &[Family] = &[
    Family {
        types: &["qwen3_next"],
        architectures: &["Qwen3NextForCausalLM"],
        defaults: &[("head_dim", 256)],
        ..DELTA
    },
    Family {
        types: &["qwen3_5_text", "qwen3_5_moe_text"],
        architectures: &["Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"],
        state_type: StateType::Key("mamba_ssm_dtype"),
        defaults: &[("head_dim", 256)],
        ..DELTA
    },
    Family {
        types: &["gemma3n_text"],
        architectures: &["Gemma3nForCausalLM"],
        layers: Layers::Every { key: "", full: 5, others: Kind::Sliding },
        defaults: &[("head_dim", 256), ("sliding_window", 512), ("num_kv_shared_layers", 15)],
        matrices: None,
        ..PLAIN
    },
    Family {
        types: &["deepseek_v2", "deepseek_v3", "kimi_k2"],
        architectures: &["DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"],
        refused: &["index_topk"],
        ..LATENT
    },
    Family {
        types: &["deepseek_v32"],
        architectures: &["DeepseekV32ForCausalLM"],
        attention: Attention::Indexed,
        refused: &["index_topk_pattern", "index_topk_freq"],
        ..LATENT
    },
    Family { types: &["glm4_moe_lite"], architectures: &["Glm4MoeLiteForCausalLM"], ..LATENT },
    Family {
        types: &["longcat_flash"],
        architectures: &["LongcatFlashForCausalLM"],
        layers: Layers::Twice,
        matrices: None,
        ..LATENT
    },
    Family {
        types: &["jamba"],
        architectures: &["JambaForCausalLM"],
        layers: Layers::Period,
        state: Some(Kind::Mamba),
        defaults: &[("attn_layer_period", 8), ("attn_layer_offset", 4)],
        ..MAMBA
    },
    Family { types: &["falcon_h1"], architectures: &["FalconH1ForCausalLM"], layers: Layers::Both, ..MAMBA },
    Family { types: &["granitemoehybrid"], architectures: &["GraniteMoeHybridForCausalLM"], ..MAMBA },
    Family {
        types: &["nemotron_h"],
        architectures: &["NemotronHForCausalLM"],
        layers: Layers::Letters,
        state_type: StateType::KeyOrFloat32("mamba_ssm_cache_dtype"),
        spelled: &[
            ("mamba_n_heads", "mamba_num_heads"),
            ("mamba_d_head", "mamba_head_dim"),
            ("mamba_d_state", "ssm_state_size"),
            ("mamba_n_groups", "n_groups"),
            ("mamba_d_conv", "conv_kernel"),
        ],
        defaults: &[("head_dim", 128)],
        refused: &["block_configs", "sliding_window"],
        ..MAMBA
    },
    Family {
        types: &["lfm2", "lfm2_moe"],
        architectures: &["Lfm2ForCausalLM", "Lfm2MoeForCausalLM"],
        state: Some(Kind::ShortConvolution),
        ..MAMBA
    },
    Family {
        types: &["llama4_text"],
        architectures: &["Llama4ForCausalLM"],
        layers: Layers::Chunks,
        spelled: &[LOCAL_EXPERTS],
        defaults: &[("num_key_value_heads", 8), ("head_dim", 128), ("attention_chunk_size", 8192)],
        ..PLAIN
    },
    Family {
        types: &["nemotron-nas"],
        architectures: &["DeciLMForCausalLM"],
        layers: Layers::Blocks,
        matrices: None,
        ..PLAIN
    },
    Family {
        types: &["mimo_v2_flash", "mimo_v2"],
        architectures: &["MiMoV2FlashForCausalLM", "MiMoV2ForCausalLM"],
        layers: Layers::Ones,
        own: &[
            (Kind::Full, "v_head_dim", "v_head_dim"),
            (Kind::Sliding, "num_key_value_heads", "swa_num_key_value_heads"),
            (Kind::Sliding, "head_dim", "swa_head_dim"),
            (Kind::Sliding, "v_head_dim", "swa_v_head_dim"),
            (Kind::Sliding, "sliding_window", "sliding_window_size"),
        ],
        matrices: None,
        ..PLAIN
    },
    Family {
        types: &["step3p5"],
        architectures: &["Step3p5ForCausalLM"],
        layers: Layers::Listed,
        spelled: &[("num_key_value_heads", "num_attention_groups")],
        defaults: &[("max_seq_len", 4096)],
        own: &[
            (Kind::Sliding, "num_key_value_heads", "attention_other_setting.num_attention_groups"),
            (Kind::Sliding, "head_dim", "attention_other_setting.head_dim"),
        ],
        matrices: None,
        ..PLAIN
    },
];
