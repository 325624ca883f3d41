"""Compiled steps of the engine by themselves, with random weights: a decode step, and a chunk of a prompt.

The engine's own Runner compiles and calls them; only the scheduler is left out. Beside the floor: weights and KV cache
read once, or the matmuls' arithmetic.
"""

from __future__ import annotations

import json
import math
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxengine.bench.chip.rates import Rates
from jaxengine.config import EngineConfig
from jaxengine.engine.runner import Runner
from jaxengine.models.registry import family
from sharding import init_params, make_mesh

EXPERIMENTS = Path(__file__).resolve().parents[2] / "configs" / "experiments"
PUBLISHED_TINY = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 512, "hidden_size": 128,
    "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 64, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 4096,
    "tie_word_embeddings": True, "hidden_act": "silu", "torch_dtype": "bfloat16",
}


@dataclass(frozen=True)
class Load:
    """Sequences and tokens of each that a step finds in the cache. chunk: prompt tokens of a mixed step, or 0."""

    num_seqs: int
    kv_len: int
    chunk: int = 0

    def __str__(self) -> str:
        return f"chunk of {self.chunk} at {self.kv_len}" if self.chunk else f"decode {self.num_seqs} x {self.kv_len}"


LOADS = (Load(1, 1024), Load(32, 2048), Load(64, 4096), Load(128, 1024), Load(1, 2048, 2048), Load(1, 8192, 2048))
TINY_LOADS = (Load(2, 40), Load(1, 32, 32))


def published(model: str) -> dict[str, Any]:
    """A config.json's content, by path or by the name of one in configs/experiments; "tiny" for a toy."""
    if model == "tiny":
        return PUBLISHED_TINY
    path = EXPERIMENTS / f"{model}.toml"
    if path.is_file():
        return tomllib.loads(path.read_text())
    if Path(model).is_file():
        return json.loads(Path(model).read_text())
    raise ValueError(f"model={model!r} is neither a config.json nor in configs/experiments")


def measure(
    model: str, loads: tuple[Load, ...], rates: Rates, backend: str, repeats: int = 20
) -> Iterator[dict[str, Any]]:
    """A row a load."""
    module = family(published(model))
    cfg = module.Config.from_published(published(model))
    longest = max(load.kv_len for load in loads) + 16
    seqs = tuple(sorted({load.num_seqs for load in loads if not load.chunk}))
    chunks = tuple(sorted({load.chunk for load in loads if load.chunk}))
    config = EngineConfig.from_options(
        attention_backend=backend, block_size=16, max_model_len=longest, max_num_seqs=max(seqs),
        max_num_batched_tokens=max(chunks), num_blocks=1 + max(load.num_seqs * -(-load.kv_len // 16) for load in loads),
        decode_buckets=seqs, token_buckets=chunks, cache_dir="",
    )
    mesh = make_mesh(devices=jax.devices()[:1])
    runner = Runner(module, cfg, config, mesh, jnp.dtype("bfloat16"), longest)
    runner.load(init_params(module.param_specs(cfg), jax.random.key(0), jnp.dtype("bfloat16"), mesh))
    sizes = [x.size for x in jax.tree.leaves(runner.params)]
    read = sum(sizes) - (0 if cfg.tie_word_embeddings else runner.params.embed.size)      # its rows are few
    kv_token = runner.memory.block_bytes / runner.memory.block_size
    for load in loads:
        kind, bucket = ("mixed", load.chunk) if load.chunk else ("decode", load.num_seqs)
        took = _seconds(runner, kind, bucket, load, repeats)
        tokens = load.chunk or load.num_seqs
        attention = 4 * cfg.num_layers * cfg.num_heads * cfg.head_dim * tokens * (load.kv_len - load.chunk / 2)
        floor = rates.floor(2 * read + load.num_seqs * load.kv_len * kv_token, 2 * tokens * read + attention)
        yield {
            "model": model, "attention": runner.backend, "step": str(load), "ms": took * 1e3, "floor ms": floor * 1e3,
            "of floor": floor / took, "tok/s": tokens / took,
        }
    runner.close()


def _seconds(runner: Runner, kind: str, bucket: int, load: Load, repeats: int) -> float:
    """The mean of `repeats` steps with their greedy heads, dispatched one behind the other."""
    packed = _pack(runner, kind, bucket, load)
    rows = next(size for size in runner.buckets.greedy if size >= load.num_seqs)
    slots = np.arange(rows, dtype=np.int32) % runner.config.scheduler.max_num_seqs

    def once() -> None:
        hidden, _ = runner.forward(kind, bucket, packed)
        runner.greedy(hidden, slots)

    for _ in range(2):
        once()
    runner.wait()
    start = time.perf_counter()
    for _ in range(repeats):
        once()
    runner.wait()
    return (time.perf_counter() - start) / repeats


def _pack(runner: Runner, kind: str, bucket: int, load: Load) -> np.ndarray:
    """The step's vector, as the batch builder packs it."""
    shape, C = runner.buckets.shape(kind, bucket), runner.config.cache.block_size
    packed = np.zeros(shape.packed_size, np.int32)
    part = shape.views(packed)
    blocks = math.ceil(load.kv_len / C)
    tables = 1 + np.arange(load.num_seqs * blocks, dtype=np.int32).reshape(load.num_seqs, blocks)
    part["block_tables"][: load.num_seqs, :blocks] = tables
    q_len = load.chunk or 1
    position = np.arange(load.kv_len - q_len, load.kv_len)
    count = load.num_seqs * q_len
    part["token_ids"][:count] = 1 + np.arange(count) % 500
    part["positions"][:count] = np.tile(position, load.num_seqs)
    part["slot_mapping"][:count] = (tables[:, position // C] * C + position % C).reshape(-1)
    part["kv_lens"][: load.num_seqs] = load.kv_len
    part["cu_q_lens"][:] = np.minimum(np.arange(len(part["cu_q_lens"])), load.num_seqs) * q_len
    part["num_decodes"][:] = 0 if load.chunk else load.num_seqs
    part["rows"][: load.num_seqs] = (1 + np.arange(load.num_seqs)) * q_len - 1
    return packed
