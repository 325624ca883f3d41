"""The attention op in large decode and prefill steps, beside its floor, XLA's form and PyTorch's SDPA."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp

from jaxengine.bench.chip.rates import Rates, seconds_in_loop
from pallas_kernels.ragged_paged_attention import AttentionMetadata, KVLayer, kv_layer_spec, ragged_paged_attention


@dataclass(frozen=True)
class Shape:
    """`num_seqs` sequences of kv_len tokens, the last q_len of which are queries."""

    num_seqs: int
    kv_len: int
    q_len: int = 1
    num_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    block_size: int = 16
    kv_dtype: Any = jnp.bfloat16

    def __str__(self) -> str:
        kind = "decode" if self.q_len == 1 else "prefill"
        dtype = "" if self.kv_dtype == jnp.bfloat16 else f" {jnp.dtype(self.kv_dtype).name}"
        return f"{kind} {self.num_seqs} x {self.kv_len}{dtype}"

    @property
    def num_bytes(self) -> int:
        """Of keys and values, read once."""
        itemsize = jnp.dtype(self.kv_dtype).itemsize
        return 2 * self.num_seqs * self.kv_len * self.num_kv_heads * self.head_dim * itemsize

    @property
    def flops(self) -> int:
        pairs = self.q_len * self.kv_len - self.q_len * (self.q_len - 1) // 2
        return 4 * self.num_seqs * pairs * self.num_heads * self.head_dim


DECODE_SIZES = (
    (1, 1024), (1, 4096), (1, 32768), (8, 1024), (8, 4096), (8, 32768), (32, 1024), (32, 4096), (32, 32768),
    (64, 8192), (128, 1024), (128, 4096), (256, 1024), (256, 4096),
)
DECODES = (
    *(Shape(n, kv_len) for n, kv_len in DECODE_SIZES),
    Shape(32, 4096, kv_dtype=jnp.float8_e4m3fn), Shape(32, 4096, kv_dtype=jnp.int8),
)
PREFILL_SIZES = (512, 1024, 2048, 4096, 8192, 16384)
PREFILLS = (*(Shape(1, n, n) for n in PREFILL_SIZES), Shape(1, 16384, 2048), Shape(4, 2048, 2048))
TINY = (
    Shape(2, 70, num_heads=4, num_kv_heads=2, head_dim=64), Shape(1, 33, 33, num_heads=4, num_kv_heads=2, head_dim=64),
)


def inputs(shape: Shape, seed: int) -> tuple[Any, ...]:
    """(q, k, v, pool, metadata) of random numbers, made on the device; blocks lie in the pool in random order."""
    T, B, C = shape.num_seqs * shape.q_len, shape.num_seqs, shape.block_size
    N, K, H, M = shape.num_heads, shape.num_kv_heads, shape.head_dim, -(-shape.kv_len // C)
    keys = iter(jax.random.split(jax.random.key(seed), 8))
    spec = kv_layer_spec(B * M + 1, C, K, H, shape.kv_dtype)

    @functools.partial(jax.jit, static_argnums=(1, 2))
    def normal(key, size, dtype):
        return jax.random.normal(key, size, jnp.bfloat16).astype(dtype)

    pool = KVLayer(**{
        name: jnp.full(size, 0.01, dtype) if "scale" in name else normal(next(keys), size, jnp.dtype(dtype))
        for name, (size, dtype, _) in spec.items()
    })
    tables = 1 + jax.random.permutation(next(keys), B * M).reshape(B, M).astype(jnp.int32)
    position = shape.kv_len - shape.q_len + jnp.arange(shape.q_len)
    slots = tables[:, position // C] * C + (position % C)[None]
    metadata = AttentionMetadata(
        slots.reshape(T).astype(jnp.int32), tables, jnp.full((B,), shape.kv_len, jnp.int32),
        jnp.arange(B + 1, dtype=jnp.int32) * shape.q_len, jnp.int32(B if shape.q_len == 1 else 0),
    )
    q, k, v = (normal(next(keys), (T, heads, H), jnp.dtype(jnp.bfloat16)) for heads in (N, K, K))
    return q, k, v, pool, metadata


def seconds(shape: Shape, backend: str, calls: int, tries: int = 3) -> float:
    """Of one call of the op, writes of the new tokens included."""
    q, k, v, pool, metadata = inputs(shape, seed=0)
    op = functools.partial(
        ragged_paged_attention, scale=shape.head_dim**-0.5, max_q_len=1 if shape.q_len == 1 else None, backend=backend
    )

    def step(state):      # each call needs the one before
        x, pool = state
        out, pool = op(x, k, v, pool, metadata)
        return (q + out / 64).astype(q.dtype), pool

    return seconds_in_loop(step, (q.copy(), pool), calls, tries)


def torch_seconds(shape: Shape, calls: int) -> float | None:
    """PyTorch's scaled_dot_product_attention over contiguous keys and values; None without PyTorch, or for 8 bits."""
    if find_spec("torch") is None or shape.kv_dtype != jnp.bfloat16:
        return None
    torch = import_module("torch")
    if not torch.cuda.is_available() or shape.q_len not in (1, shape.kv_len):
        return None

    def normal(heads: int, tokens: int) -> Any:
        return torch.randn(shape.num_seqs, heads, tokens, shape.head_dim, dtype=torch.bfloat16, device="cuda")

    q, k, v = (normal(*size) for size in (
        (shape.num_heads, shape.q_len), (shape.num_kv_heads, shape.kv_len), (shape.num_kv_heads, shape.kv_len),
    ))

    def run() -> None:
        torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=shape.q_len > 1, enable_gqa=True)

    run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / calls


def measure(shapes: tuple[Shape, ...], rates: Rates, backend: str, peers: bool, tiny: bool) -> Iterator[dict[str, Any]]:
    """A row a shape. peers: XLA's form too, where it is not hopelessly slow, and PyTorch's where that is there."""
    for shape in shapes:
        floor = rates.floor(shape.num_bytes, shape.flops)
        calls = 1 if tiny else max(3, min(50, int(0.02 / floor)))
        took = seconds(shape, backend, calls, tries=1 if tiny else 3)
        row = {
            "shape": str(shape), "us": took * 1e6, "floor us": floor * 1e6, "of floor": floor / took,
            "TB/s": shape.num_bytes / took / 1e12, "TFLOP/s": shape.flops / took / 1e12,
            "xla us": None, "sdpa us": None,
        }
        if peers and (tiny or shape.num_bytes * shape.q_len < 1 << 36):
            row["xla us"] = seconds(shape, "xla", 1 if tiny else 2, tries=1) * 1e6
        if peers:
            torch_took = torch_seconds(shape, calls)
            row["sdpa us"] = None if torch_took is None else torch_took * 1e6
        yield row
