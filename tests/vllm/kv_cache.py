"""Writes tests/data/plan.json: the KV cache that vLLM's own code lays out for the models listed there.

usage: kv_cache.py [NAME...]        with the python of `vllm-cpu install`; all models without a NAME

Builds each model without weights (on torch's meta device), asks its layers for their KV cache specs, and groups them as
an engine does when it starts (vLLM 0.32, v1/core/kv_cache_utils.py). Where the CPU platform answers otherwise than CUDA
with FlashAttention, the latter's answers are put in: block sizes, layouts, hybrid caches, types of states, batches in
flight. The size of the parameters on one GPU is that of the tensors that vLLM would load.
"""

import json
import os
import pathlib
import sys
import tempfile

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import vllm.distributed.parallel_state as parallel
import vllm.platforms.cpu as cpu
import vllm.v1.attention.backends.cpu_attn as cpu_attn
from transformers import AutoConfig, PretrainedConfig
from vllm.config import VllmConfig, get_layers_from_vllm_config, set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.models import registry
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.platforms import current_platform
from vllm.platforms.interface import Platform
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
from vllm.v1.core import kv_cache_utils
from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

DATA = pathlib.Path(__file__).parent.parent / "data" / "plan.json"
MEMORY = 1 << 30
KEPT = ("mamba_ssm_cache_dtype", "mamba_cache_dtype", "block_size", "enable_prefix_caching")
# Model types whose configuration class comes with their checkpoint.
GENERIC = ("nemotron-nas", "exaone", "internlm2", "internlm3")


def answer_as_cuda():
    backend, platform = cpu_attn.CPUAttentionBackend, cpu.CpuPlatform
    backend.get_supported_kernel_block_sizes = staticmethod(lambda spec=None: [MultipleOf(16)])
    backend.supported_kv_cache_layouts = classmethod(lambda cls: None)
    backend.get_supported_head_sizes = staticmethod(lambda: [])
    platform.support_hybrid_kv_cache = classmethod(lambda cls: True)
    platform.update_block_size_for_backend = classmethod(Platform.update_block_size_for_backend.__func__)
    check = platform.check_and_update_config.__func__

    def check_and_update(cls, config):
        cache = {key: getattr(config.cache_config, key) for key in KEPT}
        scheduler = config.scheduler_config
        chunked, tokens = scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens
        check(cls, config)
        for key, value in cache.items():
            setattr(config.cache_config, key, value)
        scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens = chunked, tokens

    platform.check_and_update_config = classmethod(check_and_update)
    # In this process: starting another one takes longer than all the rest.
    in_process = lambda self: registry._ModelInfo.from_model_cls(self.load_model_cls())
    registry._LazyRegisteredModel.inspect_model_cls = in_process
    # Asynchronous scheduling on one GPU has two batches in flight (config/vllm.py, max_concurrent_batches).
    VllmConfig.max_in_flight_tokens = property(lambda self: 2 * self.scheduler_config.max_num_batched_tokens)


class Part(dict):
    """A table whose keys are attributes too."""

    def __getattr__(self, key):
        try:
            return self[key]
        except KeyError:
            raise AttributeError(key) from None


def generic(name):
    """A configuration class that takes its keys as they are."""

    def init(self, **keys):
        keys.setdefault("rms_norm_eps", 1e-5)
        keys.setdefault("hidden_act", "silu")
        keys.setdefault("tie_word_embeddings", False)
        keys.setdefault("rope_parameters", {"rope_type": "default", "rope_theta": 10000.0})
        if name == "exaone":
            keys.setdefault("num_hidden_layers", keys.get("num_layers"))
        blocks = keys.pop("block_configs", [])
        if blocks:
            keys["block_configs"] = [Part({k: Part(v) for k, v in block.items()}) for block in blocks]
        PretrainedConfig.__init__(self, **keys)

    return type("Generic", (PretrainedConfig,), {"model_type": name, "__init__": init})


def start(folder, options):
    parser = EngineArgs.add_cli_args(FlexibleArgumentParser())
    given = ["--model", folder, "--load-format", "dummy", "--skip-tokenizer-init", "--enforce-eager"]
    given += ["--max-num-batched-tokens", "8192", "--enable-chunked-prefill", "--dtype", "bfloat16"]
    args = parser.parse_args(given + options)
    gpus, args.tensor_parallel_size = args.tensor_parallel_size, 1
    return EngineArgs.from_cli_args(args).create_engine_config(), gpus


def build(config, gpus):
    with set_current_vllm_config(config):
        port = 20000 + os.getpid() % 20000
        parallel.init_distributed_environment(1, 0, f"tcp://127.0.0.1:{port}", 0, "gloo")
        parallel.initialize_model_parallel(1, 1)
        parallel._TP.world_size = config.parallel_config.tensor_parallel_size = gpus
        device = torch.device(os.environ.get("DEVICE", "meta"))
        with set_default_torch_dtype(config.model_config.dtype), device:
            return initialize_model(vllm_config=config)


def laid_out(config, model, memory):
    current_platform.update_block_size_for_backend(config)
    with set_current_vllm_config(config):
        specs = get_kv_cache_spec(config)
        layers = get_layers_from_vllm_config(config, AttentionLayerBase).values()
        layouts = get_supported_kv_cache_layouts({layer.get_attn_backend() for layer in layers})
        resolve_kv_cache_layout(config, [[layout.name for layout in layouts]], specs.values())
    growing = [s for s in specs.values() if type(s).__name__ in ("FullAttentionSpec", "MLAAttentionSpec")]
    groups = kv_cache_utils.get_kv_cache_groups(config, specs)
    pool = kv_cache_utils.get_kv_cache_config_from_groups(config, groups, memory)
    return {
        "bytes_per_token": int(sum(spec.page_size_bytes / spec.block_size for spec in growing)),
        "bytes_per_block": kv_cache_utils._pool_bytes_per_block(config, groups),
        "blocks": pool.num_blocks,
        "tokens": kv_cache_utils.get_kv_cache_capacity(config, pool)[0],
        "max_model_len": config.model_config.max_model_len,
        "block_size": config.cache_config.block_size,
        "weights_bytes": sum(p.numel() * p.element_size() for p in model.parameters()),
    }


def main(names):
    answer_as_cuda()
    for name in GENERIC:
        AutoConfig.register(name, generic(name))
    models = json.loads(DATA.read_text())
    for model in models:
        if names and model["name"] not in names:
            continue
        # A process of its own: vLLM keeps much in globals.
        read, write = os.pipe()
        if (child := os.fork()) == 0:
            with tempfile.TemporaryDirectory() as folder:
                pathlib.Path(folder, "config.json").write_text(json.dumps(model["config"]))
                config, gpus = start(folder, model["options"])
                answer = laid_out(config, build(config, gpus), model["memory_bytes"])
            os.write(write, json.dumps(answer).encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as answer:
            text = answer.read()
        os.waitpid(child, 0)
        if not text:
            sys.exit(f"{model['name']}: vLLM refused it")
        model["vllm"] = json.loads(text)
        print(model["name"], model["vllm"], flush=True)
    DATA.write_text(as_text(models))


def as_text(models):
    """One line per part of a model."""
    part = lambda key, value: f'  "{key}": {json.dumps(value, separators=(",", ":"))}'
    model = lambda model: "{\n" + ",\n".join(part(*item) for item in model.items()) + "\n}"
    return "[\n" + ",\n".join(map(model, models)) + "\n]\n"


if __name__ == "__main__":
    main(sys.argv[1:])
