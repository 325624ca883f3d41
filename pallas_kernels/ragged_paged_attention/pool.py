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
from jax import lax

QUANTIZED = (np.dtype(jnp.int8), np.dtype(jnp.float8_e4m3fn))

# Dtypes whose scatter XLA's CPU compiler does in a wider type: it would widen, and copy, the whole pool. A loop of
# small updates stays in place. (0.10.2 does so for bfloat16, too.)
SCATTER_COPIES = {np.dtype(jnp.float8_e4m3fn)}
if jax.__version_info__ < (0, 11):
    SCATTER_COPIES.add(np.dtype(jnp.bfloat16))

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
    """Puts new keys and values [T, K, H] into their slots int32[T], quantising them where the pool is.

    In place where the pool is donated.
    """
    k_scale, v_scale = kv.k_scale, kv.v_scale
    if k_scale is not None and v_scale is not None:
        (k, new_k_scale), (v, new_v_scale) = quantize(k, kv.k.dtype), quantize(v, kv.v.dtype)
        k_scale = _put(k_scale, new_k_scale[..., None], slot_mapping)
        v_scale = _put(v_scale, new_v_scale[..., None], slot_mapping)
    return KVLayer(_put(kv.k, k, slot_mapping), _put(kv.v, v, slot_mapping), k_scale, v_scale)


def _put(pool: jax.Array, new: jax.Array, slot_mapping: jax.Array) -> jax.Array:
    """pool [P, K, C * W] with its slots' entries replaced by new [T, K, W]. The reshape of the pool is free."""
    T, K, W = new.shape
    slots = pool.reshape(*pool.shape[:2], -1, W)
    C = slots.shape[2]
    block, offset = slot_mapping // C, slot_mapping % C
    new = new.astype(pool.dtype)

    def scatter(slots: jax.Array) -> jax.Array:
        return slots.at[block, :, offset, :].set(new)

    def put(i, slots):
        row = lax.dynamic_index_in_dim(new, i, keepdims=False).reshape(1, K, 1, W)
        return lax.dynamic_update_slice(slots, row, (block[i], 0, offset[i], 0))

    def one_by_one(slots: jax.Array) -> jax.Array:
        return lax.fori_loop(0, T, put, slots)

    if pool.dtype not in SCATTER_COPIES:
        return scatter(slots).reshape(pool.shape)
    return lax.platform_dependent(slots, cpu=one_by_one, default=scatter).reshape(pool.shape)


def quantize(x: jax.Array, dtype: Any) -> tuple[jax.Array, jax.Array]:
    """x [T, K, H] -> (values in dtype, f32 scales [T, K]), one scale per token and head.

    The largest value of a head maps to the type's largest, so int8 errs by at most 1/254 of it and
    fp8_e4m3 by 1/16 of each value. On normal data of unit variance, attention outputs differ from those of
    a float32 pool by 0.02 at most and 0.004 root mean square (int8), 0.2 and 0.02 (fp8_e4m3); the largest
    where few tokens are seen. tests/kernels holds these bounds.
    """
    whole = jnp.issubdtype(dtype, jnp.integer)
    limit = float(jnp.iinfo(dtype).max if whole else jnp.finfo(dtype).max)
    x = x.astype(jnp.float32)
    scale = jnp.maximum(jnp.max(jnp.abs(x), axis=-1), 1e-12) / limit
    scaled = x / scale[..., None]
    return (jnp.round(scaled) if whole else jnp.clip(scaled, -limit, limit)).astype(dtype), scale
