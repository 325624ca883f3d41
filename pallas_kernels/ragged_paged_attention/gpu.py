"""The back end for NVIDIA Hopper: Pallas kernels lowered by Mosaic GPU.

Rows of decodes go through the decode kernel, all others through the prefill kernel, in a mixed batch too, so a row's
bits do not depend on what else is in the batch, on how its prompt was cut into chunks, or on other rows' splits. (A
chunk of one token that the scheduler counts among the decodes is a decode.)
"""

from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels.need import Need
from pallas_kernels.ragged_paged_attention.gpu_combine import combine_splits
from pallas_kernels.ragged_paged_attention.gpu_common import LOG2E, LOWEST, Scoring
from pallas_kernels.ragged_paged_attention.gpu_decode import decode_splits
from pallas_kernels.ragged_paged_attention.gpu_prefill import ROWS, prefill
from pallas_kernels.ragged_paged_attention.gpu_support import unsupported_shape
from pallas_kernels.ragged_paged_attention.gpu_tuning import Tiles, tiles_for
from pallas_kernels.ragged_paged_attention.gpu_work import tile_table, work_table
from pallas_kernels.ragged_paged_attention.pool import write

HALF_MAX = 65504.0       # the largest float16


def ragged_paged_attention(
    q, k, v, kv, metadata, *, scale, sliding_window=None, softcap=None, sinks=None, max_q_len=None,
    tiles: Tiles | None = None, interpret: Any = None,
):
    """See api.ragged_paged_attention. tiles: sizes instead of the tuned ones. interpret: InterpretGPUParams, in tests.

    Raises ValueError, with the reason, for what the kernels cannot serve (gpu_support).
    """
    (_, N, H), K = q.shape, k.shape[1]
    C = kv.k.shape[2] // H
    why_not = unsupported_shape(Need("gpu", H, C, kv.k.dtype, q.dtype, N // K))
    if why_not is not None:
        raise ValueError(f"backend='pallas_gpu' cannot serve this: {why_not}; use 'xla'")
    kv = write(kv, k, v, metadata.slot_mapping)
    keys, values = (kv.k.reshape(-1, K, C, H), kv.k_scale), (kv.v.reshape(-1, K, C, H), kv.v_scale)
    scoring = Scoring(scale, sliding_window, softcap)
    kernels = _Kernels(keys, values, sinks, scoring, tiles or tiles_for(H, kv.k.dtype), interpret)
    # The tensor cores read 8-bit pools as float16, which holds their values exactly; a query far outside its range
    # is none that attention could have been trained with.
    queries = q if kv.k_scale is None else jnp.clip(q, -HALF_MAX, HALF_MAX).astype(jnp.float16)
    if max_q_len == 1:
        out = kernels.decode(queries, metadata.block_tables, metadata.kv_lens)
    else:
        out = kernels.mixed(queries, metadata)
    return out.astype(q.dtype), kv


class _Kernels:
    """One call's pool and settings, and the two ways to attend over it."""

    def __init__(self, k, v, sinks, scoring: Scoring, tiles: Tiles, interpret: Any) -> None:
        self.k, self.v = k, v                           # [P, K, C, H] and scales f32[P, K, C] or None
        self.sinks = sinks                              # f32[N] or None
        self.scoring, self.tiles, self.interpret = scoring, tiles, interpret

    def decode(self, q: jax.Array, tables: jax.Array, kv_lens: jax.Array) -> jax.Array:
        """q [B, N, H], the last token of each sequence -> [B, N, H]; zeros where kv_lens is 0."""
        (B, N, H), (_, K, C, _) = q.shape, self.k[0].shape
        G, tile, window = N // K, self.tiles.decode, self.scoring.sliding_window
        starts = jnp.zeros_like(kv_lens) if window is None else jnp.maximum(kv_lens - window, 0)
        max_splits = -(-tables.shape[1] * C // tile.split)
        if window is not None:
            max_splits = min(max_splits, -(-window // tile.split) + 1)
        work = work_table(starts, kv_lens, tile.split, max_splits)
        rows = ((0, 0), (0, 0), (0, -G % 8), (0, 0))
        parts, lse = decode_splits(
            jnp.pad(q.reshape(B, K, G, H), rows), self.k, self.v, tables, work,
            tile=tile, scoring=self.scoring, interpret=self.interpret,
        )
        sinks = None if self.sinks is None else jnp.pad(self._sinks(K), rows[1:3])
        out = combine_splits(
            parts, lse, work.first, work.count, sinks, group=G, dtype=q.dtype, interpret=self.interpret
        )
        return out.reshape(B, N, H)

    def mixed(self, q: jax.Array, metadata: Any) -> jax.Array:
        """q [T, N, H] -> [T, N, H]; zeros for padding tokens."""
        (T, N, _), K = q.shape, self.k[0].shape[1]
        B = min(T, metadata.kv_lens.shape[0])           # sequences that may decode
        decodes = metadata.num_decodes
        decoded = self.decode(
            q[:B], metadata.block_tables[:B], jnp.where(jnp.arange(B) < decodes, metadata.kv_lens[:B], 0)
        )

        tile, Q = self.tiles.prefill, self.tiles.prefill.tokens(N // K)
        queries = jnp.pad(q, ((0, max(Q - T, 0)), (0, 0), (0, 0)))
        work = tile_table(
            metadata.cu_q_lens, metadata.kv_lens, decodes, queries.shape[0], Q, tile.kv_tile,
            self.scoring.sliding_window,
        )
        sinks = None
        if self.sinks is not None:                      # one for each row of a tile
            spread = jnp.repeat(self._sinks(K), Q, axis=1)
            sinks = jnp.pad(spread, ((0, 0), (0, tile.warpgroups * ROWS - spread.shape[1])))
        prefilled = prefill(
            queries, self.k, self.v, metadata.block_tables, work, sinks,
            tile=tile, scoring=self.scoring, interpret=self.interpret,
        )[:T]
        token = jnp.arange(T).reshape(T, 1, 1)
        rest = jnp.where(token < metadata.cu_q_lens[-1], prefilled, 0)
        return jnp.where(token < decodes, jnp.pad(decoded, ((0, T - B), (0, 0), (0, 0))), rest)

    def _sinks(self, K: int) -> jax.Array:
        """In base 2, f32[K, G]."""
        return jnp.maximum(self.sinks.astype(jnp.float32) * LOG2E, LOWEST).reshape(K, -1)
