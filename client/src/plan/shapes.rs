//! Public models by the numbers of their config.json, against what follows from these by hand; and the small models of
//! the tests against what a real vLLM said when it started with them.

use super::{
    PlanError,
    cache_type::cache_bytes,
    config::Config,
    fit::{Load, Pool},
    layout::{Group, Keeps, Layout, Serving},
    model::{Layer, Model, Reach},
    weights::Weights,
};

/// 16 bits per value, blocks of 16 tokens, one GPU, two batches of 8,192 tokens in flight.
const SERVING: Serving = Serving {
    tensor_parallel: 1,
    value_bytes: 2,
    cache_bytes: 2,
    block_size: 16,
    in_flight: 16_384,
    prefix_caching: true,
};

const LLAMA_3_1_8B: &str = r#"{"model_type":"llama","hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,
    "num_attention_heads":32,"num_key_value_heads":8,"vocab_size":128256,"max_position_embeddings":131072,
    "tie_word_embeddings":false}"#;

fn config(json: &str) -> Result<Config, PlanError> {
    Config::of(serde_json::from_str(json).unwrap())
}

fn model(json: &str) -> Model {
    Model::of(&config(json).unwrap()).unwrap()
}

fn per_token(json: &str) -> u64 {
    Layout::bytes_per_token(&model(json).layers, &SERVING)
}

fn weights(json: &str) -> u64 {
    let nowhere = std::path::Path::new("/nonexistent/config.json");
    Weights::find(nowhere, &config(json).unwrap(), 2).unwrap().bytes()
}

fn window(layers: u64, block_size: u64, tokens: u64) -> Group {
    Group { layers, block_size, keeps: Keeps::Tokens(Reach::Window(tokens)) }
}

fn full(layers: u64, block_size: u64) -> Group {
    Group { layers, block_size, keeps: Keeps::Tokens(Reach::All) }
}

#[test]
fn llama_3_1_8b_has_grouped_heads() {
    // 32 layers × 2 × 8 KV heads × 128 values × 2 bytes.
    assert_eq!(per_token(LLAMA_3_1_8B), 131_072);
    // Embeddings 2 × 128,256 × 4,096 = 1,050,673,152. A layer: queries and output 2 × 4,096², keys and values
    // 2 × 4,096 × 1,024, feed-forward 3 × 4,096 × 14,336 = 218,103,808; 32 of them 6,979,321,856. Two bytes each.
    assert_eq!(weights(LLAMA_3_1_8B), 16_059_990_016);
    // 40 GiB / (16 × 131,072 B) = 20,480 blocks; one is the null block; a request of 8,192 tokens takes 512.
    let layout = Layout::of(&model(LLAMA_3_1_8B).layers, &SERVING);
    let pool = Pool::of(&layout, 40 << 30, 131_072);
    assert_eq!(pool, Pool { blocks: 20_480, tokens: 327_680 });
    assert_eq!(pool.requests(&layout, 8192), 39);
    assert_eq!(pool.longest(&layout, 100, 131_072), 204 * 16);
    assert!(!pool.fits(&layout, &Load { tokens: 8192, requests: 40 }));
}

#[test]
fn llama_3_1_70b_is_divided_among_gpus() {
    let json = r#"{"model_type":"llama","hidden_size":8192,"intermediate_size":28672,"num_hidden_layers":80,
        "num_attention_heads":64,"num_key_value_heads":8,"vocab_size":128256}"#;
    // 80 × 2 × 8 × 128 × 2; a quarter of it on each of four GPUs, and an eighth on each of eight. On 16 GPUs every
    // head is kept twice: no less than on eight.
    assert_eq!(per_token(json), 327_680);
    let of =
        |gpus| Layout::bytes_per_token(&model(json).layers, &Serving { tensor_parallel: gpus, ..SERVING });
    assert_eq!([of(4), of(8), of(16)], [81_920, 40_960, 40_960]);
    // 2 × 128,256 × 8,192 + 80 × (2 × 8,192² + 2 × 8,192 × 1,024 + 3 × 8,192 × 28,672) = 70,552,387,584 parameters.
    assert_eq!(weights(json), 2 * 70_552_387_584);
}

#[test]
fn llama_2_7b_has_a_kv_head_for_every_head() {
    let json = r#"{"model_type":"llama","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32}"#;
    // 32 × 2 × 32 × 128 × 2.
    assert_eq!(per_token(json), 524_288);
}

#[test]
fn qwen_2_5_7b_has_a_window_that_it_does_not_use() {
    let json = r#"{"model_type":"qwen2","hidden_size":3584,"num_hidden_layers":28,"num_attention_heads":28,
        "num_key_value_heads":4,"sliding_window":131072,"max_window_layers":28,"use_sliding_window":false}"#;
    // 28 × 2 × 4 × 128 × 2.
    assert_eq!(per_token(json), 57_344);
}

#[test]
fn mistral_7b_v0_1_looks_back_4096_tokens_in_every_layer() {
    let json = r#"{"model_type":"mistral","hidden_size":4096,"num_hidden_layers":32,"num_attention_heads":32,
        "num_key_value_heads":8,"sliding_window":4096}"#;
    let layout = Layout::of(&model(json).layers, &SERVING);
    assert_eq!(layout.groups, [window(32, 16, 4096)]);
    assert_eq!(layout.block_bytes, 16 * 131_072);
    // (4,095 + 16,384) / 16 = 1,279.9, and one block for a window that begins within a block.
    assert_eq!(layout.blocks_for(32_768), 1281);
    assert_eq!(layout.blocks_for(1024), 65);
}

#[test]
fn deepseek_v3_keeps_one_latent_vector_on_every_gpu() {
    let json = r#"{"model_type":"deepseek_v3","hidden_size":7168,"intermediate_size":18432,"moe_intermediate_size":2048,
        "num_hidden_layers":61,"num_attention_heads":128,"num_key_value_heads":128,"kv_lora_rank":512,
        "q_lora_rank":1536,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"vocab_size":129280,
        "n_routed_experts":256,"n_shared_experts":1,"first_k_dense_replace":3,"num_experts_per_tok":8,
        "quantization_config":{"quant_method":"fp8"}}"#;
    // 61 × (512 + 64) × 2, also on each of eight GPUs.
    assert_eq!(per_token(json), 70_272);
    let on_eight = Serving { tensor_parallel: 8, ..SERVING };
    assert_eq!(Layout::bytes_per_token(&model(json).layers, &on_eight), 70_272);
    // Attention: 7,168 × 1,536 + 1,536 × 128 × 192 + 7,168 × 576 + 512 × 128 × 256 + 128 × 128 × 7,168 = 187,105,280.
    // Feed-forward: dense 3 × 7,168 × 18,432 = 396,361,728; with experts 3 × 7,168 × 2,048 × 257 + 7,168 × 256
    // = 11,320,164,352. 61 × attention + 3 × dense + 58 × sparse = 669,172,039,680 of one byte;
    // embeddings 2 × 129,280 × 7,168 of two.
    assert_eq!(weights(json), 669_172_039_680 + 2 * 1_853_358_080);
}

#[test]
fn gemma_3_27b_has_five_windows_to_one_full_layer() {
    let json = r#"{"model_type":"gemma3","text_config":{"model_type":"gemma3_text","hidden_size":5376,
        "num_hidden_layers":62,"num_attention_heads":32,"num_key_value_heads":16,"head_dim":128,"sliding_window":1024,
        "sliding_window_pattern":6}}"#;
    // Layers 6, 12, … 60 are full: 10 of 62. In groups of ten the 52 others make six: 9, 9, 9, 9, 8, 8.
    let layout = Layout::of(&model(json).layers, &SERVING);
    let mut groups = vec![full(10, 16)];
    groups.extend([9, 9, 9, 9, 8, 8].map(|layers| window(layers, 16, 1024)));
    assert_eq!(layout.groups, groups);
    // A page is 16 tokens × 2 × 16 × 128 × 2 bytes = 131,072; a block ten of them.
    assert_eq!(layout.block_bytes, 1_310_720);
    // 131,072 / 16 for the full group; (1,023 + 16,384) / 16 = 1,087.9, + 1, for each of six.
    assert_eq!(layout.blocks_for(131_072), 8192 + 6 * 1089);
}

#[test]
fn gpt_oss_20b_alternates() {
    let types = ["\"sliding_attention\",\"full_attention\""; 12].join(",");
    let json = format!(
        r#"{{"model_type":"gpt_oss","hidden_size":2880,"intermediate_size":2880,"num_hidden_layers":24,
        "num_attention_heads":64,"num_key_value_heads":8,"head_dim":64,"sliding_window":128,"vocab_size":201088,
        "num_local_experts":32,"num_experts_per_tok":4,"quantization_config":{{"quant_method":"mxfp4"}},
        "layer_types":[{types}]}}"#
    );
    let layout = Layout::of(&model(&json).layers, &SERVING);
    assert_eq!(layout.groups, [full(12, 16), window(12, 16, 128)]);
    // 16 tokens × 2 × 8 × 64 × 2 bytes × 12 layers.
    assert_eq!(layout.block_bytes, 393_216);
    // The files have 13.8 GB.
    assert!((11_000_000_000..14_500_000_000).contains(&weights(&json)), "{}", weights(&json));
}

#[test]
fn qwen_3_next_80b_keeps_a_state_in_three_of_four_layers() {
    let json = r#"{"model_type":"qwen3_next","hidden_size":2048,"num_hidden_layers":48,"num_attention_heads":16,
        "num_key_value_heads":2,"head_dim":256,"full_attention_interval":4,"linear_num_key_heads":16,
        "linear_num_value_heads":32,"linear_key_head_dim":128,"linear_value_head_dim":128,"linear_conv_kernel_dim":4}"#;
    // All in 16 bits, as `mamba_ssm_cache_dtype` auto has it (mamba_utils.py, `_mamba_state_dtype`): convolution
    // 3 × (2 × 128 × 16 + 128 × 32) × 2 bytes = 49,152; state 32 × 128 × 128 × 2 = 1,048,576. A token of a full layer:
    // 2 × 2 × 256 × 2 = 2,048. So 1,097,728 / (16 × 2,048) = 33.5 steps of 16 tokens: 544 tokens a block.
    let layout = Layout::of(&model(json).layers, &SERVING);
    let state = Group { layers: 12, block_size: 544, keeps: Keeps::State(2) };
    assert_eq!(layout.groups, [full(12, 544), state, state, state]);
    assert_eq!(layout.block_bytes, 12 * 544 * 2048);
    // 262,144 / 544 = 481.9; two states for each of three groups.
    assert_eq!(layout.blocks_for(262_144), 482 + 6);
    // Blocks of 32 tokens are raised in steps of 32 (platforms/interface.py, `_align_hybrid_block_size`): 16.8 steps.
    let of_32 = Layout::of(&model(json).layers, &Serving { block_size: 32, ..SERVING });
    assert_eq!(of_32.block_bytes, 12 * 544 * 2048);
}

#[test]
fn qwen_3_5_keeps_its_state_in_the_type_that_it_names() {
    // As Qwen3-Next, but `mamba_ssm_dtype` counts (vLLM 0.32, models/config.py, Qwen3_5ForConditionalGenerationConfig):
    // 49,152 + 32 × 128 × 128 × 4 = 2,146,304 bytes; / (16 × 2,048) = 65.5 steps of 16 tokens: 1,056 tokens a block.
    let json = r#"{"model_type":"qwen3_5_moe","text_config":{"model_type":"qwen3_5_moe_text","hidden_size":2048,
        "num_hidden_layers":40,"num_attention_heads":16,"num_key_value_heads":2,"head_dim":256,
        "linear_num_key_heads":16,"linear_num_value_heads":32,"linear_key_head_dim":128,"linear_value_head_dim":128,
        "linear_conv_kernel_dim":4,"full_attention_interval":4,"mamba_ssm_dtype":"float32"}}"#;
    let layout = Layout::of(&model(json).layers, &SERVING);
    let state = Group { layers: 10, block_size: 1056, keeps: Keeps::State(2) };
    assert_eq!(layout.groups, [full(10, 1056), state, state, state]);
}

#[test]
fn nemotron_h_8b_has_four_attention_layers_of_52() {
    let json = r#"{"model_type":"nemotron_h","hidden_size":4096,"num_hidden_layers":52,"num_attention_heads":32,"num_key_value_heads":8,
        "head_dim":128,"hybrid_override_pattern":"M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
        "mamba_num_heads":128,"mamba_head_dim":64,"ssm_state_size":128,"n_groups":8,"conv_kernel":4}"#;
    // Four full layers × 2 × 8 × 128 × 2 bytes.
    assert_eq!(per_token(json), 16_384);
    let layers = model(json).layers;
    // Convolution 3 × 128 × 64 values, and 3 × 2 × 128 per group; state 128 × 64 × 128 of float32.
    let state = Layer::State {
        convolution: 24_576,
        groups: 8,
        of_group: 768,
        recurrent: 1_048_576,
        recurrent_bytes: Some(4),
        checkpoints: 2,
    };
    assert_eq!(layers.iter().filter(|layer| **layer == state).count(), 24);
    // (61,440 + 4,194,304) / (16 × 4,096) = 64.9 steps: 1,040 tokens a block. Groups of four: one and six.
    let layout = Layout::of(&layers, &SERVING);
    assert_eq!((layout.groups.len(), layout.block_bytes), (7, 4 * 1040 * 4096));
}

#[test]
fn mixtral_8x7b_has_experts() {
    let json = r#"{"model_type":"mixtral","hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,
        "num_attention_heads":32,"num_key_value_heads":8,"vocab_size":32000,"num_local_experts":8,
        "sliding_window":null}"#;
    assert_eq!(per_token(json), 131_072);
    // 2 × 32,000 × 4,096 + 32 × (41,943,040 + 8 × 3 × 4,096 × 14,336 + 4,096 × 8) = 46,702,526,464 parameters.
    assert_eq!(weights(json), 2 * 46_702_526_464);
}

#[test]
fn falcon_7b_has_one_kv_head() {
    let json = r#"{"model_type":"falcon","hidden_size":4544,"num_hidden_layers":32,"num_attention_heads":71,
        "multi_query":true}"#;
    // 32 × 2 × 1 × 64 × 2.
    assert_eq!(per_token(json), 8192);
}

#[test]
fn llama_4_scout_looks_at_chunks_in_three_of_four_layers() {
    let rotary = ["1,1,1,0"; 12].join(",");
    let json = format!(
        r#"{{"model_type":"llama4","text_config":{{"model_type":"llama4_text","hidden_size":5120,"num_hidden_layers":48,
        "num_attention_heads":40,"num_key_value_heads":8,"head_dim":128,"attention_chunk_size":8192,
        "no_rope_layers":[{rotary}]}}}}"#
    );
    let layout = Layout::of(&model(&json).layers, &SERVING);
    let chunk = Group { layers: 12, block_size: 16, keeps: Keeps::Tokens(Reach::Chunk(8192)) };
    assert_eq!(layout.groups, [full(12, 16), chunk, chunk, chunk]);
    assert_eq!(layout.block_bytes, 12 * 16 * 2 * 8 * 128 * 2);
    // The same without a list: one layer in four.
    let unlisted = json.replace(&format!("[{rotary}]"), "[]");
    assert_eq!(Layout::of(&model(&unlisted).layers, &SERVING), layout);
    // 1,048,576 / 16; (8,192 + 16,384) / 16 for each of three.
    assert_eq!(layout.blocks_for(1_048_576), 65_536 + 3 * 1536);
}

#[test]
fn deepseek_v3_2_keeps_an_index_beside_the_latent_vector() {
    let json = r#"{"model_type":"deepseek_v32","hidden_size":7168,"num_hidden_layers":61,"num_attention_heads":128,
        "kv_lora_rank":512,"qk_rope_head_dim":64,"index_head_dim":128}"#;
    // 61 × (576 × 2 + 128 + 4), in one group.
    assert_eq!(per_token(json), 78_324);
    assert_eq!(Layout::of(&model(json).layers, &SERVING).groups, [full(122, 16)]);
}

/// What vLLM 0.32 (CPU) said of the models of `tests/vllm/model.py` with 1 GiB, blocks of 32 tokens and a window of
/// 2,048: `num_gpu_blocks` and `kv_cache_size_tokens` of its `cache_config_info`.
#[test]
fn a_real_vllm_says_the_same() {
    let llama = |layers: u64, heads: u64, kv_heads: u64, width: u64| {
        format!(
            r#"{{"model_type":"llama","hidden_size":{},"num_hidden_layers":{layers},"num_attention_heads":{heads},
            "num_key_value_heads":{kv_heads},"head_dim":{width}}}"#,
            heads * width
        )
    };
    let gemma = r#"{"model_type":"gemma3_text","hidden_size":128,"num_hidden_layers":14,"num_attention_heads":4,
        "num_key_value_heads":1,"head_dim":64,"sliding_window":256,"sliding_window_pattern":6}"#;
    let said = [
        (llama(2, 4, 2, 32), (65_536, 2_097_152)),
        (llama(8, 12, 4, 64), (4096, 131_072)),
        (llama(3, 4, 4, 32), (21_845, 699_040)),
        (gemma.to_owned(), (65_536, 295_633)),
    ];
    for (json, (blocks, tokens)) in said {
        let layout = Layout::of(&model(&json).layers, &Serving { block_size: 32, ..SERVING });
        assert_eq!(Pool::of(&layout, 1 << 30, 2048), Pool { blocks, tokens }, "{json}");
    }
    // On the CPU latent attention takes blocks of 16 tokens only.
    let deepseek = r#"{"model_type":"deepseek_v2","num_hidden_layers":3,"num_attention_heads":4,"kv_lora_rank":512,
        "qk_rope_head_dim":64}"#;
    let layout = Layout::of(&model(deepseek).layers, &SERVING);
    assert_eq!(Pool::of(&layout, 1 << 30, 2048), Pool { blocks: 19_418, tokens: 310_688 });
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    for (json, says) in [
        (r#"{"model_type":"mamba2","num_hidden_layers":2,"num_attention_heads":2}"#, "model_type \"mamba2\""),
        (r#"{"model_type":"t5","is_encoder_decoder":true}"#, "encoder-decoder"),
        (r#"{"num_attention_heads":8}"#, "model_type is absent"),
        (r#"{"model_type":"deepseek_v4","compress_ratios":[0,4],"head_dim":512}"#, "with compress_ratios"),
        (r#"{"model_type":"x","layer_types":["full_attention"]}"#, "model_type \"x\" with layer_types"),
        (r#"{"model_type":"llama","architectures":["LlamaModel"]}"#, "architectures: \"LlamaModel\""),
        (r#"{"model_type":"llama","num_attention_heads":8,"hidden_size":64}"#, "num_hidden_layers is absent"),
        (
            r#"{"model_type":"qwen2","num_hidden_layers":2,"num_attention_heads":8,"hidden_size":64}"#,
            "num_key_value_heads is absent",
        ),
        (
            r#"{"model_type":"dbrx","n_layers":2,"n_heads":8,"d_model":64}"#,
            "attn_config.kv_n_heads is absent",
        ),
        (r#"{"model_type":"qwen2","num_hidden_layers":2,"use_sliding_window":true}"#, "use_sliding_window"),
        (
            r#"{"model_type":"llama","num_hidden_layers":1,"layer_types":["retention"]}"#,
            "layer_types: \"retention\"",
        ),
        (
            r#"{"model_type":"llama","num_hidden_layers":2,"layer_types":["full_attention"]}"#,
            "layer_types: 1 is not allowed",
        ),
        (r#"{"model_type":"nemotron_h","block_configs":[{"block_type":"moe"}]}"#, "block_configs"),
        (
            r#"{"model_type":"nemotron-nas","num_hidden_layers":1,"block_configs":[{"attention":{"n_heads_in_group":null}}]}"#,
            "block_configs",
        ),
        (
            r#"{"model_type":"llama","num_hidden_layers":1,"num_attention_heads":4294967296,"head_dim":4294967296}"#,
            "at most 2^40",
        ),
        (r#"{"model_type":"llama","num_attention_heads":1,"num_hidden_layers":4294967296}"#, "at most 4096"),
    ] {
        let error = config(json).and_then(|config| Model::of(&config)).unwrap_err().to_string();
        assert!(error.starts_with("config.json: ") && error.contains(says), "{says}: {error}");
    }
}

#[test]
fn a_key_that_vllm_does_not_read_changes_nothing() {
    let json = LLAMA_3_1_8B
        .replace("{\"model_type\"", "{\"num_attention_groups\":2,\"full_attn_idxs\":[1],\"model_type\"");
    assert_eq!(per_token(&json), 131_072);
}

#[test]
fn the_checkpoint_may_give_the_type_of_the_cache() {
    let of = |quantization: &str| {
        cache_bytes(
            &config(&format!("{{\"model_type\":\"llama\",\"quantization_config\":{quantization}}}")).unwrap(),
        )
    };
    let scheme = r#"{"num_bits":8,"type":"float","dynamic":false}"#;
    for (quantization, bytes) in [
        (format!(r#"{{"quant_method":"compressed-tensors","kv_cache_scheme":{scheme}}}"#), Some(1)),
        (r#"{"quant_method":"compressed-tensors","kv_cache_scheme":null}"#.to_owned(), None),
        (r#"{"quant_method":"modelopt","quantization":{"kv_cache_quant_algo":"FP8"}}"#.to_owned(), Some(1)),
        (r#"{"quant_method":"awq","bits":4}"#.to_owned(), None),
    ] {
        assert_eq!(of(&quantization).unwrap(), bytes, "{quantization}");
    }
    let error = of(r#"{"quant_method":"modelopt","kv_cache_quant_algo":"NVFP4"}"#).unwrap_err().to_string();
    assert!(error.contains("quantization_config.kv_cache_quant_algo: \"NVFP4\""), "{error}");
}

#[test]
fn heads_without_a_width_and_heads_that_do_not_divide_are_refused() {
    let llama = |more: &str| {
        let json = format!(
            r#"{{"model_type":"llama","num_hidden_layers":2,"num_attention_heads":32,"max_position_embeddings":8192,{more}}}"#
        );
        Model::of(&config(&json).unwrap())
    };
    assert!(llama(r#""hidden_size":4096,"num_key_value_heads":8"#).is_ok());
    for (more, key) in [
        (r#""hidden_size":16,"num_key_value_heads":8"#, "hidden_size"),
        (r#""hidden_size":4096,"num_key_value_heads":5"#, "num_key_value_heads"),
        (r#""hidden_size":4096,"num_key_value_heads":64"#, "num_key_value_heads"),
        (
            r#""hidden_size":4096,"num_key_value_heads":8,"rope_scaling":{"type":"linear","factor":0}"#,
            "rope_scaling.factor",
        ),
        (
            r#""hidden_size":4096,"num_key_value_heads":8,"rope_scaling":{"type":"linear","factor":"4"}"#,
            "rope_scaling.factor",
        ),
    ] {
        let refused = llama(more).unwrap_err().to_string();
        assert!(refused.contains(key), "{refused}");
    }
    // vLLM scales by the factor of every kind that does not have it in the window already.
    let ntk = r#""hidden_size":4096,"num_key_value_heads":8,"rope_scaling":{"type":"ntk","factor":4.0}"#;
    assert_eq!(llama(ntk).unwrap().window, Some(32_768));
}
