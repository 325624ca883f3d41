"""The least time a step can take on this machine: bytes over read bandwidth, or operations over the matmul rate.

Both are measured in the run that uses them. A floor leaves out everything but the weights' matmuls and one read of
weights and KV cache, so no engine reaches it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxengine.bench.environment import num_cores

BUFFER_BYTES = 1 << 29      # far above any cache
DOTS = 64                   # in one timed call
TRIES = 7


@dataclass(frozen=True)
class ModelSize:
    """Weights that matmuls read: in the layers, and in the head (V x D)."""

    body_params: int
    head_params: int
    bytes_per_param: int
    kv_bytes_per_token: float
    widest: tuple[int, int]     # (outputs, inputs) of a layer's largest matmul

    @property
    def weight_bytes(self) -> int:
        return (self.body_params + self.head_params) * self.bytes_per_param


def model_size(engine: Any) -> ModelSize:
    params, cfg, memory = engine.runner.params, engine.runner.cfg, engine.memory_plan
    body = sum(_matmul_params(layer) for layer in params.layers)
    first = [x.shape for x in jax.tree.leaves(params.layers[0]) if x.ndim >= 2]
    outputs, inputs = max((math.prod(shape[:-1]), shape[-1]) for shape in first)
    return ModelSize(
        body, cfg.vocab_size * cfg.hidden_size, params.embed.dtype.itemsize,
        memory.block_bytes / memory.block_size, (outputs, inputs),
    )


def _matmul_params(tree: Any) -> int:
    return sum(x.size for x in jax.tree.leaves(tree) if x.ndim >= 2)      # vectors are norms and biases


@dataclass(frozen=True)
class Floor:
    """read: bytes a second. rates: floating-point operations a second by rows of the matmul."""

    size: ModelSize
    read: float
    rates: dict[int, float]

    def decode_s(self, streams: int, kv_tokens: float) -> float:
        """Seconds of a decode step of `streams` sequences that hold `kv_tokens` tokens together."""
        size = self.size
        flops = 2 * streams * (size.body_params + size.head_params)
        compute = flops / self.rates[streams]
        return max(size.weight_bytes / self.read, compute) + kv_tokens * size.kv_bytes_per_token / self.read

    def prefill_s(self, tokens: int, rows: int) -> float:
        """Seconds to compute `tokens` prompt tokens in steps of `rows`, without head and attention."""
        return 2 * tokens * self.size.body_params / self.rates[rows]


def measure_floor(engine: Any, rows: list[int]) -> Floor:
    size = model_size(engine)
    dtype = engine.runner.params.embed.dtype
    return Floor(size, read_bandwidth(), {n: matmul_rate(n, size.widest, dtype) for n in rows})


def read_bandwidth() -> float:
    """Bytes a second that all cores read together from memory: the best of two ways, each its best try."""
    x = jnp.ones((64, BUFFER_BYTES // 256), jnp.float32)
    reduce = jax.jit(lambda x: x.max(axis=1))
    seconds = [_best(lambda: jax.block_until_ready(reduce(x)))]
    if jax.devices()[0].platform == "cpu":
        cores = num_cores()
        parts = np.array_split(np.asarray(x).reshape(-1), cores)
        with ThreadPoolExecutor(cores) as pool:      # numpy releases the interpreter while it reduces
            seconds.append(_best(lambda: list(pool.map(np.maximum.reduce, parts))))
    return x.nbytes / min(seconds)


def matmul_rate(rows: int, shape: tuple[int, int], dtype: Any) -> float:
    """Operations a second of x[rows, D] @ w[N, D]^T with weights that stay in the cache: the arithmetic alone.

    Dots depend on one another, as layers do. One row is computed as two, which XLA does much faster.
    """
    outputs, inputs = shape
    padded = max(2, rows)
    w = (jax.random.normal(jax.random.key(0), shape) / math.sqrt(inputs)).astype(dtype)
    x = jax.random.normal(jax.random.key(1), (padded, inputs)).astype(dtype)

    @jax.jit
    def chain(x: jax.Array, w: jax.Array) -> jax.Array:
        for _ in range(DOTS):
            y = jnp.einsum("bk,nk->bn", x, w)
            x = y[:, :inputs] if outputs >= inputs else jnp.pad(y, ((0, 0), (0, inputs - outputs)))
        return x

    seconds = _best(lambda: jax.block_until_ready(chain(x, w)))
    return 2 * DOTS * rows * outputs * inputs / seconds


def _best(call: Callable[[], Any]) -> float:
    """Seconds of the fastest of several calls: a floor is what the machine can do, not what it did on average."""
    call()
    times = []
    for _ in range(TRIES):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)
