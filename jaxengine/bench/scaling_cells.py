"""What one device does in a step of a model on a mesh, from the step lowered for as many fake devices.

Run as a program it reads cells from standard input, one JSON object a line, and prints each one's StepWork, or
why there is none as {"refused": str}. No array is allocated: shapes alone are compiled.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from jaxengine.bench.collectives import Collective, collectives
from jaxengine.bench.model import read_published
from jaxengine.bench.prediction import Exchange, StepWork
from jaxengine.config import EngineConfig, ParallelConfig
from jaxengine.engine.ledger import Key
from jaxengine.engine.load import engine_mesh
from jaxengine.engine.memory import abstract_pool
from jaxengine.engine.runner import Runner
from jaxengine.models.registry import family
from sharding import abstract_params

BLOCK_SIZE = 16
LAYERS = (1, 2)      # compiled; layers are alike, so what the second adds is what each further one adds
VERSION = 1          # of what is kept: raise it where the meaning of a cell's figures changes


@dataclass(frozen=True)
class Cell:
    """A step of `model` on data x tensor devices.

    decode: `batch` sequences on all shards together, each of `tokens` tokens. prefill: in each shard one prompt of
    `tokens` tokens, all in this step.
    """

    model: str
    data: int
    tensor: int
    step: str
    batch: int
    tokens: int

    @property
    def rows(self) -> int:
        """Tokens that a shard computes."""
        return self.batch // self.data if self.step == "decode" else self.tokens

    @property
    def id(self) -> str:
        """The same for the same work, whatever the config's file is called."""
        resolved = asdict(self) | {"model": read_published(self.model), "version": VERSION}
        return sha256(json.dumps(resolved, sort_keys=True).encode()).hexdigest()[:12]


def step_work(cell: Cell) -> StepWork:
    """Raises ValueError where the model's heads or widths cannot be split over the mesh."""
    published = read_published(cell.model)
    module = family(published)
    cfg = module.Config.from_published(published)
    mesh = engine_mesh(ParallelConfig(cell.tensor, cell.data), cfg.num_heads, cfg.num_kv_heads)
    params = abstract_params(module.param_specs(cfg), _dtype(published), mesh)
    runner = _runner(module, published, cell, mesh)
    pool = _device_bytes(abstract_pool(cfg, runner.memory, mesh, runner.backend))
    body, body_bytes = _matmul_weights(params.layers)
    head, head_bytes = _matmul_weights(params.embed if params.lm_head is None else params.lm_head)
    decode = cell.step == "decode"
    sampled = cell.rows if decode else 1
    seqs = cell.rows if decode else 1
    pairs = cell.rows * cell.tokens if decode else cell.tokens * (cell.tokens + 1) // 2      # (query, key) of a layer
    heads = cfg.num_heads // cell.tensor
    return StepWork(
        weight_bytes=_device_bytes(params),
        read_bytes=body_bytes + head_bytes,
        matmul_flops=2.0 * (cell.rows * body + sampled * head),
        pool_bytes=pool,
        kv_read_bytes=seqs * cell.tokens * pool / (runner.memory.num_blocks * BLOCK_SIZE),
        attention_flops=4.0 * pairs * heads * cfg.head_dim * cfg.num_layers,
        exchanges=_exchanges(module, published, cfg.num_layers, cell, mesh),
    )


def _runner(module: Any, published: dict[str, Any], cell: Cell, mesh: Mesh, num_layers: int | None = None) -> Runner:
    """Lists the cell's steps; without weights or pool."""
    decode = cell.step == "decode"
    seqs = cell.rows if decode else 2
    if num_layers is not None:
        published = published | {"num_hidden_layers": num_layers}
    config = EngineConfig.from_options(
        dtype="auto", max_num_seqs=seqs, max_num_batched_tokens=max(cell.rows, seqs), max_model_len=cell.tokens,
        num_blocks=(seqs if decode else 1) * -(-cell.tokens // BLOCK_SIZE) + 1, block_size=BLOCK_SIZE,
        decode_buckets=[seqs], token_buckets=[max(cell.rows, seqs)], attention_backend="xla", cache_dir="",
    )
    cfg = module.Config.from_published(published)
    return Runner(module, cfg, config, mesh, _dtype(published), cell.tokens)


def _dtype(published: dict[str, Any]) -> Any:
    return jnp.dtype(published.get("torch_dtype", "bfloat16"))


def _exchanges(
    module: Any, published: dict[str, Any], num_layers: int, cell: Cell, mesh: Mesh
) -> tuple[Exchange, ...]:
    """Collectives of a whole step, from those of models of one and of two layers."""
    dtype = _dtype(published)
    one, two = (_count(_runner(module, published, cell, mesh, layers), cell, mesh, dtype) for layers in LAYERS)
    return tuple(
        replace(exchange, times=one[exchange] + (num_layers - 1) * (two[exchange] - one[exchange]))
        for exchange in two
    )


def _count(runner: Runner, cell: Cell, mesh: Mesh, activations: Any) -> Counter[Exchange]:
    buckets = runner.buckets
    forward = Key("decode", buckets.decode[-1]) if cell.step == "decode" else Key("mixed", buckets.mixed[-1])
    head = Key("greedy", buckets.greedy[-1])
    counts: Counter[Exchange] = Counter()
    for key in (forward, head):
        for found in collectives(runner.ledger.entries[key].lower().compile().as_text(), mesh.shape):
            counts[_exchange(found, mesh, activations)] += 1
    runner.close()
    return counts


def _exchange(found: Collective, mesh: Mesh, activations: Any) -> Exchange:
    # The CPU's compiler sums bfloat16 as float32; an accelerator's does not.
    halved = found.kind == "all-reduce" and found.dtype == "f32" and activations == jnp.bfloat16
    size = found.num_bytes // 2 if halved else found.num_bytes
    return Exchange(found.kind, size, prod(mesh.shape[axis] for axis in found.axes), 0)


def _matmul_weights(tree: Any) -> tuple[int, int]:
    """Of matrices on one device: numbers, and bytes."""
    matrices = [x for x in jax.tree.leaves(tree) if x.ndim >= 2]
    return sum(prod(x.sharding.shard_shape(x.shape)) for x in matrices), _device_bytes(matrices)


def _device_bytes(tree: Any) -> int:
    return sum(
        prod(x.sharding.shard_shape(x.shape)) * np.dtype(x.dtype).itemsize for x in jax.tree.leaves(tree)
    )


def main(lines: Iterable[str]) -> None:
    for line in lines:
        try:
            answer = asdict(step_work(Cell(**json.loads(line))))
        except ValueError as error:
            answer = {"refused": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(sys.stdin)
