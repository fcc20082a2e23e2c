"""Writes a small random Llama model folder that vLLM can serve on a CPU.

usage: model.py OUT tiny|mid|mha|window|latent

tiny takes 1 to 5 ms a step, mid some 26 ms; both have grouped heads. mha has as many KV heads as heads; window has
sliding windows in five of six layers (Gemma 3); latent has multi-head latent attention (DeepSeek V2). There are no
weights: serve it with --load-format dummy.
"""

import json
import pathlib
import random
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SIZES = {
    "tiny": dict(
        num_hidden_layers=2,
        hidden_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=256,
    ),
    "mid": dict(
        num_hidden_layers=8,
        hidden_size=768,
        num_attention_heads=12,
        num_key_value_heads=4,
        head_dim=64,
        intermediate_size=2048,
    ),
    "mha": dict(
        num_hidden_layers=3,
        hidden_size=128,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=32,
        intermediate_size=256,
    ),
    "window": dict(
        architectures=["Gemma3ForCausalLM"],
        model_type="gemma3_text",
        num_hidden_layers=14,
        hidden_size=128,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=64,
        intermediate_size=256,
        sliding_window=256,
        sliding_window_pattern=6,
        query_pre_attn_scalar=64,
        hidden_activation="gelu_pytorch_tanh",
    ),
    "latent": dict(
        architectures=["DeepseekV2ForCausalLM"],
        model_type="deepseek_v2",
        num_hidden_layers=3,
        hidden_size=128,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=256,
        kv_lora_rank=512,
        q_lora_rank=None,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        first_k_dense_replace=3,
        n_routed_experts=4,
        n_shared_experts=1,
        moe_intermediate_size=128,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
    ),
}
VOCABULARY = 512
CHAT_TEMPLATE = (
    "{% for tool in tools or [] %}tool: {{ tool | tojson }}\n{% endfor %}"
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] or '' }}"
    "{% for call in m.get('tool_calls') or [] %}"
    "{{ call['function']['name'] }}({{ call['function']['arguments'] | tojson }})"
    "{% endfor %}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def tokenizer():
    """A byte-level BPE tokenizer trained on random words: any text can be encoded."""
    random.seed(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(random.choices(letters, k=random.randint(2, 8))) for _ in range(220)]
    text = [" ".join(random.choices(words, k=40)) for _ in range(400)]
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        text,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=["<s>", "</s>", "<pad>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    return made


def main(out, size):
    folder = pathlib.Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(folder / "tokenizer.json"))
    special = dict(bos_token_id=0, eos_token_id=1, pad_token_id=2)
    files = {
        "config.json": dict(
            architectures=["LlamaForCausalLM"],
            model_type="llama",
            vocab_size=VOCABULARY,
            max_position_embeddings=4096,
            rms_norm_eps=1e-5,
            rope_theta=10000.0,
            hidden_act="silu",
            tie_word_embeddings=False,
            attention_bias=False,
            mlp_bias=False,
            torch_dtype="bfloat16",
            **special,
        )
        | SIZES[size],
        "tokenizer_config.json": dict(
            tokenizer_class="PreTrainedTokenizerFast",
            bos_token="<s>",
            eos_token="</s>",
            pad_token="<pad>",
            model_max_length=4096,
            clean_up_tokenization_spaces=False,
            chat_template=CHAT_TEMPLATE,
        ),
        "generation_config.json": special,
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
