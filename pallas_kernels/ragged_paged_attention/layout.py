"""Which pool layout a back end reads: the plain one of `pool`, or its own. Axis 0 is the block in each."""

from typing import Any

import jax

from pallas_kernels.ragged_paged_attention import pool, tpu_pool
from pallas_kernels.ragged_paged_attention.pool import ArraySpec, KVLayer


def kv_layer_spec(
    num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: Any, backend: str = "xla"
) -> dict[str, ArraySpec]:
    """Shape, dtype and logical axes of each array of a back end's KVLayer; the pool is allocated from this."""
    layout = tpu_pool if backend == "pallas_tpu" else pool
    return layout.kv_layer_spec(num_blocks, block_size, num_kv_heads, head_dim, dtype)


def write(kv: KVLayer, k: jax.Array, v: jax.Array, slot_mapping: jax.Array, backend: str = "xla") -> KVLayer:
    """Puts new keys and values [T, K, H] into their slots int32[T] of the back end's pool; see pool.write."""
    return (tpu_pool if backend == "pallas_tpu" else pool).write(kv, k, v, slot_mapping)


def by_token(stored: jax.Array, head_dim: int, backend: str = "xla") -> jax.Array:
    """A pool's keys or values as [P, K, C, H]. Copies: for tests and export."""
    if backend == "pallas_tpu":
        return tpu_pool.unpack(stored, head_dim)
    return stored.reshape(*stored.shape[:2], -1, head_dim)


def check_pool(kv: KVLayer, num_kv_heads: int, head_dim: int, backend: str) -> None:
    """Raises ValueError unless the arrays are shaped as kv_layer_spec says for some number and size of blocks."""
    if backend == "pallas_tpu":
        per_block = kv.k.shape[2] * tpu_pool.streams(head_dim) if kv.k.ndim == 4 else 0
    else:
        per_block = kv.k.shape[2] // head_dim if kv.k.ndim == 3 else 0
    spec = kv_layer_spec(kv.k.shape[0], per_block, num_kv_heads, head_dim, kv.k.dtype, backend)
    for name, (shape, _, _) in spec.items():
        found = getattr(kv, name)
        if found is None or found.shape != shape:
            raise ValueError(
                f"the pool's {name} {None if found is None else found.shape} is not {backend}'s layout for "
                f"K={num_kv_heads} and H={head_dim}, {shape}; allocate it by kv_layer_spec(..., backend={backend!r})"
            )
