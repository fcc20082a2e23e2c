"""Writes a small random Llama model folder that vLLM can serve on a CPU.

usage: model.py OUT tiny|mid

tiny takes 1 to 5 ms a step, mid some 26 ms. There are no weights: serve it with --load-format dummy.
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
}
VOCABULARY = 512
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
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
            **SIZES[size],
        ),
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
