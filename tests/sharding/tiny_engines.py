"""Engines over tiny random checkpoints of every family, on any mesh. Imported by scripts that have several devices."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

sys.path.insert(0, str(Path(__file__).parent.parent / "models"))

from golden_models import TinyCheckpoint

from jaxengine.checkpoint import load_params
from jaxengine.checkpoint.plan import parameter_path, published_shape
from jaxengine.config import EngineConfig
from jaxengine.engine.engine import Engine
from jaxengine.engine.load import engine_mesh
from jaxengine.engine.runner import Runner
from jaxengine.models.registry import family
from jaxengine.models.weights import source
from jaxengine.types import RequestOutput, SamplingParams
from sharding import ParamSpec, check_mesh

VOCAB = 96       # twelve ids a device of eight: a multiple of neither 32 nor 128
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 8,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
}
# (query heads, KV heads): eight tensor-parallel devices take 8 x 1, 4 x 2, 2 x 4 and 1 x 8 of kv x group.
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"num_attention_heads": 16, "num_key_value_heads": 4},
    "qwen2": {"num_attention_heads": 8, "num_key_value_heads": 8},
    "qwen3": {"num_attention_heads": 16, "num_key_value_heads": 2},
    "gemma2": {"num_attention_heads": 8, "num_key_value_heads": 4, "sliding_window": 8, "query_pre_attn_scalar": 8},
    "gemma3": {"num_attention_heads": 8, "num_key_value_heads": 1, "sliding_window": 8, "query_pre_attn_scalar": 8},
}
ARCHITECTURES = {
    "llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM", "gemma3": "Gemma3ForCausalLM",
}
OPTIONS: dict[str, Any] = {
    "dtype": "float32", "max_num_seqs": 4, "max_num_batched_tokens": 48, "max_model_len": 128, "num_blocks": 48,
    "block_size": 4, "decode_buckets": [4], "token_buckets": [48],
}


def published(name: str, **changes: Any) -> dict[str, Any]:
    """A config.json's content. `name` is a family of FAMILIES."""
    model_type = "gemma3_text" if name == "gemma3" else name
    tied = {"tie_word_embeddings": True} if name.startswith("gemma") else {}
    return COMMON | tied | FAMILIES[name] | {
        "architectures": [ARCHITECTURES[name]], "model_type": model_type
    } | changes


def checkpoint(config: dict[str, Any]) -> TinyCheckpoint:
    """Random weights, made as they are read."""
    module = family(config)
    cfg = module.Config.from_published(config)
    names = module.name_map(cfg)
    shapes: dict[str, list[int]] = {}
    for path, spec in flat_specs(module.param_specs(cfg)).items():
        made_of = source(names[path])
        shapes |= {name: list(published_shape(spec, len(made_of.names))) for name in made_of.names}
    return TinyCheckpoint("tiny", config, shapes)


def flat_specs(specs: Any) -> dict[str, ParamSpec]:
    flat = jax.tree_util.tree_flatten_with_path(specs, is_leaf=lambda x: isinstance(x, ParamSpec))[0]
    return {parameter_path(keys): spec for keys, spec in flat}


def engine(config: dict[str, Any], data: int = 1, tensor: int = 1, **options: Any) -> Engine:
    settings = EngineConfig.from_options(
        **(OPTIONS | {"data_parallel_size": data, "tensor_parallel_size": tensor} | options)
    )
    module = family(config)
    cfg = module.Config.from_published(config)
    mesh = engine_mesh(settings.parallel, cfg.num_heads, cfg.num_kv_heads)
    check_mesh(module.param_specs(cfg), mesh)
    runner = Runner(module, cfg, settings, mesh, jnp.dtype("float32"), OPTIONS["max_model_len"])
    runner.load(load_params(checkpoint(config), module, cfg, mesh, "float32", progress=False))
    assert runner.mesh.size == data * tensor == math.prod(mesh.shape.values())
    return Engine(runner, settings, OPTIONS["max_model_len"])


def run(made: Engine, requests: list[tuple[list[int], SamplingParams]]) -> list[RequestOutput]:
    """All at once, to their ends; blocks are checked after each step, and must all come back."""
    ids = [made.add_request(prompt, params, output_kind="final_only") for prompt, params in requests]
    done: dict[str, RequestOutput] = {}
    while made.has_unfinished:
        done |= {output.request_id: output for output in made.step() if output.finished}
        made.blocks.check(made.scheduler.running)
    assert made.blocks.num_used == 0
    return [done[request_id] for request_id in ids]


def tokens(outputs: list[RequestOutput]) -> list[list[list[int]]]:
    return [[c.token_ids for c in output.outputs] for output in outputs]
