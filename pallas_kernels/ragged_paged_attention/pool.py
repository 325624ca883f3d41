"""One layer's paged keys and values: layout, writing, quantisation.

Axis 0 is the block, the only axis that anyone outside the op may index. The rest suits the XLA back end: a
row is one block of one KV head, so gathering rows yields [K, tokens, H] in order, without a transpose.

Legend: T flat tokens · K KV heads · H head width · P blocks in the pool · C tokens per block.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

QUANTIZED = (np.dtype(jnp.int8), np.dtype(jnp.float8_e4m3fn))

ArraySpec = tuple[tuple[int, ...], Any, tuple[str | None, ...]]      # shape, dtype, logical axes


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KVLayer:
    """One layer's share of the KV pool.

    Block 0 is the null block: padding writes there and its content is never used.
    The scales exist for int8 and fp8 pools only: one per token and KV head, value = stored * scale.
    """

    k: jax.Array                          # [P, K, C * H]
    v: jax.Array                          # [P, K, C * H]
    k_scale: jax.Array | None = None      # f32[P, K, C]
    v_scale: jax.Array | None = None      # f32[P, K, C]


def kv_layer_spec(
    num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: Any
) -> dict[str, ArraySpec]:
    """Shape, dtype and logical axes of each array of a KVLayer; the pool is allocated from this."""
    axes = ("blocks", "kv_heads", None)
    data = ((num_blocks, num_kv_heads, block_size * head_dim), dtype, axes)
    spec: dict[str, ArraySpec] = {"k": data, "v": data}
    if np.dtype(dtype) in QUANTIZED:
        scale = ((num_blocks, num_kv_heads, block_size), jnp.float32, axes)
        spec |= {"k_scale": scale, "v_scale": scale}
    return spec


def write(kv: KVLayer, k: jax.Array, v: jax.Array, slot_mapping: jax.Array) -> KVLayer:
    """Scatters new keys and values [T, K, H] into their slots int32[T], quantising them where the pool is.

    In place where the pool is donated: the reshape around the scatter is free.
    """
    K, H = k.shape[1:]
    C = kv.k.shape[2] // H
    block, offset = slot_mapping // C, slot_mapping % C

    def put(pool, scales, new):
        if scales is not None:
            new, scale = quantize(new, pool.dtype)
            scales = scales.at[block, :, offset].set(scale)
        rows = pool.reshape(pool.shape[0], K, C, H).at[block, :, offset, :].set(new.astype(pool.dtype))
        return rows.reshape(pool.shape), scales

    new_k, k_scale = put(kv.k, kv.k_scale, k)
    new_v, v_scale = put(kv.v, kv.v_scale, v)
    return KVLayer(new_k, new_v, k_scale, v_scale)


def quantize(x: jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """x [T, K, H] -> (values in dtype, f32 scales [T, K]), one scale per token and head.

    The largest value of a head maps to the type's largest, so int8 errs by at most 1/254 of it and
    fp8_e4m3 by 1/16 of each value. On normal data of unit variance that leaves attention outputs within
    0.02 (int8) and 0.08 (fp8_e4m3) of a float32 pool; tests/kernels holds these bounds.
    """
    whole = jnp.issubdtype(dtype, jnp.integer)
    limit = float(jnp.iinfo(dtype).max if whole else jnp.finfo(dtype).max)
    x = x.astype(jnp.float32)
    scale = jnp.maximum(jnp.max(jnp.abs(x), axis=-1), 1e-12) / limit
    scaled = x / scale[..., None]
    return (jnp.round(scaled) if whole else jnp.clip(scaled, -limit, limit)).astype(dtype), scale
