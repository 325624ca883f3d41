"""The TPU's pool layout: whole 128-lane rows, so that a block is one copy and no relayout stands before a dot.

A row of the pool holds one token where heads are wider than 64, and two where they are not: in the two halves of
its lanes lie tokens r and r + C / 2 of the block ("streams" 0 and 1). Heads of other widths are padded with zeros.
Scales fill 128 lanes as well: lane j has the scale of token j mod C, so that blocks of any size join without a shift.

Legend: T flat tokens · K KV heads · H head width · W padded head width · P blocks · C tokens per block ·
R = C / streams rows per block.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from pallas_kernels.ragged_paged_attention.pool import QUANTIZED, ArraySpec, KVLayer, quantize

LANES = 128
MIN_ROWS = 8                        # of a block: a tile's sublanes
BLOCK_SIZES = (8, 16, 32, 64, 128)  # divisors of LANES with at least a tile's rows
DTYPES = (np.dtype(jnp.float32), np.dtype(jnp.bfloat16), *QUANTIZED)


def streams(head_dim: int) -> int:
    """Tokens that share a row of the pool."""
    return 2 if head_dim <= LANES // 2 else 1


def padded_width(head_dim: int) -> int:
    return LANES // 2 if streams(head_dim) == 2 else -(-head_dim // LANES) * LANES


def why_not(head_dim: int, block_size: int, dtype: Any) -> str | None:
    """Why this layout cannot serve such a pool; None where it can."""
    if np.dtype(dtype) not in DTYPES:
        return f"the TPU kernel has no {np.dtype(dtype).name} pool; use one of {', '.join(d.name for d in DTYPES)}"
    fitting = [size for size in BLOCK_SIZES if size // streams(head_dim) >= MIN_ROWS]
    if block_size not in fitting:
        return (f"the TPU kernel has no block_size={block_size} at head width {head_dim}; "
                f"use one of {', '.join(map(str, fitting))}")
    return None


def kv_layer_spec(
    num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: Any
) -> dict[str, ArraySpec]:
    """See layout.kv_layer_spec. Data are [P, K, R, streams * W], scales f32[P, K, LANES]."""
    rows, row_width = block_size // streams(head_dim), streams(head_dim) * padded_width(head_dim)
    data: ArraySpec = (num_blocks, num_kv_heads, rows, row_width), dtype, ("blocks", "kv_heads", None, None)
    spec: dict[str, ArraySpec] = {"k": data, "v": data}
    if np.dtype(dtype) in QUANTIZED:
        scale: ArraySpec = (num_blocks, num_kv_heads, LANES), jnp.float32, ("blocks", "kv_heads", None)
        spec |= {"k_scale": scale, "v_scale": scale}
    return spec


def block_size_of(pool: jax.Array, head_dim: int) -> int:
    return pool.shape[2] * streams(head_dim)


def write(kv: KVLayer, k: jax.Array, v: jax.Array, slot_mapping: jax.Array) -> KVLayer:
    """Puts new keys and values [T, K, H] into their slots int32[T], quantising them where the pool is."""
    block_size = block_size_of(kv.k, k.shape[2])
    block, offset = slot_mapping // block_size, slot_mapping % block_size
    k_scale, v_scale = kv.k_scale, kv.v_scale
    if k_scale is not None and v_scale is not None:
        (k, new_k_scale), (v, new_v_scale) = quantize(k, kv.k.dtype), quantize(v, kv.v.dtype)
        k_scale = _put_scales(k_scale, new_k_scale, block, offset, block_size)
        v_scale = _put_scales(v_scale, new_v_scale, block, offset, block_size)
    return KVLayer(_put(kv.k, k, block, offset), _put(kv.v, v, block, offset), k_scale, v_scale)


def _put(pool: jax.Array, new: jax.Array, block: jax.Array, offset: jax.Array) -> jax.Array:
    """pool [P, K, R, lanes] with new [T, K, H] at each token's row and stream, padded to its share of the lanes."""
    rows, width = pool.shape[2], padded_width(new.shape[2])
    new = jnp.pad(new, ((0, 0), (0, 0), (0, width - new.shape[2]))).astype(pool.dtype)
    start = jnp.stack([block, offset % rows, offset // rows * width], axis=1)
    place = lax.ScatterDimensionNumbers(
        update_window_dims=(1, 2), inserted_window_dims=(0, 2), scatter_dims_to_operand_dims=(0, 2, 3)
    )
    return lax.scatter(pool, start, new, place, mode="promise_in_bounds")


def _put_scales(pool: jax.Array, new: jax.Array, block: jax.Array, offset: jax.Array, block_size: int) -> jax.Array:
    """pool f32[P, K, LANES] with new f32[T, K] at every lane that repeats the token's slot."""
    copies = LANES // block_size
    lanes = offset[:, None] + block_size * jnp.arange(copies)[None, :]                # [T, copies]
    blocks = jnp.broadcast_to(block[:, None], lanes.shape)
    return pool.at[blocks, :, lanes].set(jnp.broadcast_to(new[:, None, :], (*lanes.shape, new.shape[1])))


def unpack(pool: jax.Array, head_dim: int) -> jax.Array:
    """pool [P, K, R, lanes] -> [P, K, C, H] in the order of the tokens. Copies: for tests and export."""
    P, K, R, _ = pool.shape
    split = pool.reshape(P, K, R, streams(head_dim), padded_width(head_dim))
    return split.swapaxes(2, 3).reshape(P, K, -1, split.shape[-1])[..., :head_dim]
