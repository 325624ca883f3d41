"""Whole steps of the engine, compiled for one H200 and for eight: memory, and what the devices send each other."""

import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h200
import jax
import jax.numpy as jnp

from jaxengine.bench.collectives import Collective, collectives
from jaxengine.config import EngineConfig
from jaxengine.engine.ledger import Key
from jaxengine.engine.runner import Runner
from jaxengine.models.registry import family
from sharding import abstract_params

EXPERIMENTS = Path(__file__).resolve().parents[2] / "configs" / "experiments"
STEPS = (Key("decode", 64), Key("mixed", 2048))


@dataclass(frozen=True)
class Step:
    model: str
    devices: int
    key: Key
    num_layers: int
    pool_bytes: int          # of one device
    alias_bytes: int
    temp_bytes: int
    flops: float             # of the layers' matmuls on one device
    sent: list[Collective]
    kernels: list[h200.Machine]


def compile_steps(model: str, count: int, layers: int | None = None) -> list[Step]:
    """A decode step of 64 sequences and a chunked prefill of 2,048 tokens, KV cache of 65,536 tokens a device.

    layers: fewer than the model has, to be quick.
    """
    published = tomllib.loads((EXPERIMENTS / f"{model}.toml").read_text())
    if layers:
        published["num_hidden_layers"] = layers
    module = family(published)
    cfg = module.Config.from_published(published)
    config = EngineConfig.from_options(
        attention_backend="pallas_gpu", block_size=16, num_blocks=4096 * count, max_num_seqs=64,
        max_num_batched_tokens=2048, max_model_len=8192, decode_buckets=(64,), token_buckets=(2048,), cache_dir="",
    )
    runner = Runner(module, cfg, config, h200.mesh(count), jnp.dtype("bfloat16"), 8192)
    return [_compile(runner, model, count, key) for key in STEPS]


def _compile(runner: Runner, model: str, count: int, key: Key) -> Step:
    with h200.dumped() as folder:
        compiled: Any = runner.ledger.entries[key].lower().compile()
        kernels = h200.machines(folder)
    memory = compiled.memory_analysis()
    layers = abstract_params(runner.steps.family.param_specs(runner.cfg), jnp.dtype("bfloat16"), runner.mesh).layers
    matmuls = sum(math.prod(x.shape) for x in jax.tree.leaves(layers) if len(x.shape) >= 2)
    return Step(
        model, count, key, runner.cfg.num_layers, runner.memory.pool_bytes // count, memory.alias_size_in_bytes,
        memory.temp_size_in_bytes, 2.0 * matmuls * key.bucket / count,
        collectives(compiled.as_text(), runner.mesh.shape), kernels,
    )


def problems(step: Step) -> list[str]:
    """What is not as it should be: two sums over all devices a layer, and one for the embedding, and no more."""
    found = []
    if step.alias_bytes != step.pool_bytes:
        found.append(f"{step.alias_bytes} bytes are updated in place, the pool has {step.pool_bytes}")
    if step.temp_bytes > 2**30:
        found.append(f"{step.temp_bytes} bytes of temporaries")
    kinds = [collective.kind for collective in step.sent]
    wanted = 0 if step.devices == 1 else 2 * step.num_layers + 1
    if kinds != ["all-reduce"] * wanted:
        counts = {kind: kinds.count(kind) for kind in kinds}
        found.append(f"collectives {counts}, wanted {wanted} all-reduce")
    return found
