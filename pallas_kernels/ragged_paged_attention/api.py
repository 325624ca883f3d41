"""The contract that every back end serves.

Legend: B sequences · T flat tokens · N query heads · K KV heads · G = N / K · H head width ·
P blocks in the pool · C tokens per block · M blocks per sequence.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.ragged_paged_attention import reference

QUANTIZED = (jnp.int8, jnp.float8_e4m3fn)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KVLayer:
    """One layer's share of the KV pool. Axis 0 is the block; the rest is the back end's own layout.

    Block 0 is the null block: padding writes there and its content is never used.
    The scales exist for int8 and fp8 pools only: one per token and KV head.
    """

    k: jax.Array                          # [P, K, C * H]
    v: jax.Array                          # [P, K, C * H]
    k_scale: jax.Array | None = None      # f32[P, K, C]
    v_scale: jax.Array | None = None      # f32[P, K, C]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AttentionMetadata:
    """Where each sequence's tokens and blocks are; the same for all layers of a step.

    Sequence i owns the flat queries [cu_q_lens[i], cu_q_lens[i+1]), which are the last of its kv_lens[i]
    tokens. The first `num_decodes` sequences have one query each. Padding sequences have kv_lens 0.
    """

    slot_mapping: jax.Array   # int32[T], block * C + offset where each new token's KV goes
    block_tables: jax.Array   # int32[B, M]
    kv_lens: jax.Array        # int32[B], including the new tokens
    cu_q_lens: jax.Array      # int32[B + 1]
    num_decodes: jax.Array    # int32[]


def kv_layer_spec(
    num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int, dtype: Any
) -> dict[str, tuple[tuple[int, ...], Any, tuple[str | None, ...]]]:
    """Shape, dtype and logical axes of each array of a KVLayer; the pool is allocated from this."""
    axes = ("blocks", "kv_heads", None)
    data = ((num_blocks, num_kv_heads, block_size * head_dim), dtype, axes)
    spec = {"k": data, "v": data}
    if dtype in QUANTIZED:
        scale = ((num_blocks, num_kv_heads, block_size), jnp.float32, axes)
        spec |= {"k_scale": scale, "v_scale": scale}
    return spec


def ragged_paged_attention(
    q: jax.Array,                       # [T, N, H]
    k: jax.Array,                       # [T, K, H] keys of the new tokens
    v: jax.Array,                       # [T, K, H]
    kv: KVLayer,
    metadata: AttentionMetadata,
    *,
    scale: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    sinks: jax.Array | None = None,     # f32[N], an extra logit per head that takes part in the softmax only
    max_q_len: int | None = None,
    backend: str = "reference",
) -> tuple[jax.Array, KVLayer]:
    """Writes the new keys and values into the pool, then attends causally over each sequence's blocks.

    Query j of a sequence sees the tokens at positions p with p <= position(j), and with
    p > position(j) - sliding_window where a window is given. Scores are q.k * scale, then
    softcap * tanh(score / softcap) where given. `max_q_len` is static: the number of queries of every
    sequence where all have the same (1 in a decode step, so T = B), None for a mixed batch.

    Returns (out [T, N, H] in q's dtype, the updated pool). Rows of padding tokens are unspecified but finite.
    """
    return reference.ragged_paged_attention(
        q, k, v, kv, metadata, scale=scale, sliding_window=sliding_window, softcap=softcap, sinks=sinks
    )
