"""Decode attention for Hopper: one query a sequence, the KV cache in splits of a fixed number of tokens.

A work item is one split of one sequence; a KV head of an item is what a block of threads does at a time. Blocks of
threads are as many as the GPU holds and stride over the items, so nothing is launched for splits that are not there,
and the copies of the next item start while this one still computes. Splits are counted from position 0 and their
size is fixed, so a row's result depends on its own sequence alone (FlashDecoding, Dao et al., 2023, with that twist).

The operands are swapped: S^T = K Q^T and O^T = V^T P^T, so that the tokens of the cache, and not a handful of query
heads, fill the 64 rows of a tensor-core product.

Legend: B, K, G, H, P, C, M as in api.py · R G rounded up to 8 · W rows of the work table · S tokens of a KV tile.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from pallas_kernels.ragged_paged_attention.gpu_common import (
    LOWEST,
    PER_COLUMN,
    WGMMA,
    Scoring,
    across,
    base2_scores,
    ceil_div,
    clear_rows,
    full,
    iota,
    matmul,
    swizzled,
    wait_if,
)
from pallas_kernels.ragged_paged_attention.gpu_ring import Ring, block_ids
from pallas_kernels.ragged_paged_attention.gpu_work import WorkTable

COMPUTE, PRODUCE = 0, 1      # the two warpgroups
Q_SLOTS = 2                  # queries of the next item arrive while this one computes


@dataclass(frozen=True)
class DecodeTile:
    """Sizes to tune: tokens of a KV tile, tiles in flight, tokens of a split, blocks of threads on the GPU."""

    kv_tile: int = 64
    stages: int = 3
    split: int = 512
    ctas: int = 264


class _Refs(NamedTuple):
    q: Any               # [B, K, R, H]
    k: Any               # [P, K, C, H], and scales f32[P, K, C] of a quantised pool
    v: Any
    tables: Any          # int32[B, M]
    items: Any
    total: Any
    out: Any             # f32[W, K, H, R], each split normalised by itself
    lse: Any             # f32[W, K, R], log2 of each split's sum of exponentials
    q_smem: Any
    k_ring: Any          # scratch of a Ring
    v_ring: Any
    p_smem: Any
    q_ready: Any
    q_free: Any

    @property
    def keys(self) -> Any:
        return self.k, self.k_ring

    @property
    def values(self) -> Any:
        return self.v, self.v_ring


class _Item(NamedTuple):
    """Work of one KV head on one split; tiles are counted from position 0."""

    row: Any
    head: Any
    seq: Any
    start: Any
    stop: Any
    first_tile: Any
    num_tiles: Any


class _Decode:
    """The kernel's body: the shapes, and what each warpgroup does."""

    def __init__(self, q, pool, tile: DecodeTile, scoring: Scoring) -> None:
        self.K, self.R, self.H = q.shape[1:]
        self.C, self.dtype = pool[0].shape[2], q.dtype
        self.tile, self.scoring = tile, scoring
        self.ring = Ring(tile.stages, tile.kv_tile, self.C, self.H, pool[0].dtype, quantized=pool[1] is not None)

    def __call__(self, *args: Any) -> None:
        refs = _Refs(*args)
        ctas = self.tile.ctas
        cta = lax.axis_index("cta")
        num_items = lax.div(jnp.maximum(refs.total[0] * self.K - cta + (ctas - 1), 0), ctas)

        def item(i: Any) -> _Item:
            row, head = lax.div(cta + i * ctas, self.K), lax.rem(cta + i * ctas, self.K)
            seq, start, stop = (refs.items[row, j] for j in range(3))
            first = lax.div(start, self.tile.kv_tile)
            return _Item(row, head, seq, start, stop, first, ceil_div(stop, self.tile.kv_tile) - first)

        pl.when(lax.axis_index("wg") == PRODUCE)(lambda: self._produce(refs, item, num_items))
        pl.when(lax.axis_index("wg") == COMPUTE)(lambda: self._compute(refs, item, num_items))

    def _produce(self, refs: _Refs, item: Any, num_items: Any) -> None:
        """Keeps the rings full; n counts the tiles of all items."""
        ring = self.ring

        def load_tile(it, t, n):
            ids = block_ids(refs.tables, it.seq, it.first_tile + t, ring.blocks, lax.div(it.stop - 1, self.C))
            ring.load(refs.keys, n, ids, it.head)
            ring.load(refs.values, n, ids, it.head)
            return n + 1

        def load_item(i, n):
            it, slot = item(i), lax.rem(i, Q_SLOTS)
            wait_if(i >= Q_SLOTS, refs.q_free.at[slot])
            plgpu.copy_gmem_to_smem(refs.q.at[it.seq, it.head], refs.q_smem.at[slot], refs.q_ready.at[slot])
            return lax.fori_loop(0, it.num_tiles, lambda t, n: load_tile(it, t, n), n)

        n = lax.fori_loop(0, num_items, load_item, jnp.int32(0))
        ring.drain(refs.keys, n)
        ring.drain(refs.values, n)
        lax.fori_loop(jnp.maximum(num_items - Q_SLOTS, 0), num_items,
                      lambda i, _: plgpu.barrier_wait(refs.q_free.at[lax.rem(i, Q_SLOTS)]), None)

    def _compute(self, refs: _Refs, item: Any, num_items: Any) -> None:
        S, R, H = self.tile.kv_tile, self.R, self.H

        def attend(i, n):
            it, slot = item(i), lax.rem(i, Q_SLOTS)
            plgpu.barrier_wait(refs.q_ready.at[slot])
            q = refs.q_smem.at[slot].transpose((1, 0))
            start = (n, full((R,), LOWEST, PER_COLUMN), full((S, R), 0, WGMMA), full((H, R), 0, WGMMA))
            n, highest, totals, acc = lax.fori_loop(
                0, it.num_tiles, lambda t, carry: self._fold(refs, q, it, t, *carry), start
            )
            plgpu.barrier_arrive(refs.q_free.at[slot])
            total = totals.sum(axis=0)
            refs.out[it.row, it.head] = acc / across(total, (H, R), 1)
            refs.lse[it.row, it.head] = highest + jnp.log2(total)
            return n

        lax.fori_loop(0, num_items, attend, jnp.int32(0))

    def _fold(self, refs: _Refs, q: Any, it: _Item, t: Any, n: Any, highest: Any, totals: Any, acc: Any) -> Any:
        """One KV tile into the online softmax. Sums stay spread over the tile's rows until the item ends."""
        S, R, H = self.tile.kv_tile, self.R, self.H
        base = (it.first_tile + t) * S
        start, stop = it.start - base, it.stop - base
        products = matmul(self.ring.take(refs.keys, n, start, stop), q, (S, R))
        self.ring.release(refs.keys, n)

        row = iota((S, R), 0)
        scores = jnp.where((row >= start) & (row < stop), base2_scores(products, self.scoring), -jnp.inf)
        new_highest = jnp.maximum(highest, scores.max(axis=0))
        decay = jnp.exp2(highest - new_highest)
        weights = jnp.exp2(scores - across(new_highest, (S, R), 1))
        totals = totals * across(decay, (S, R), 1) + weights
        refs.p_smem.transpose((1, 0))[...] = weights.astype(self.dtype)

        values = self.ring.take(refs.values, n, start, stop)
        if not self.ring.quantized:
            pl.when((start > 0) | (stop < S))(lambda: clear_rows(values, start, stop))
        plgpu.commit_smem()
        product = matmul(values.transpose((1, 0)), refs.p_smem.transpose((1, 0)), (H, R))
        self.ring.release(refs.values, n)
        return n + 1, new_highest, totals, acc * across(decay, (H, R), 1) + product


def decode_splits(
    q: jax.Array,                                # [B, K, R, H]
    k: tuple[jax.Array, jax.Array | None],       # [P, K, C, H], and scales f32[P, K, C] of a quantised pool
    v: tuple[jax.Array, jax.Array | None],
    tables: jax.Array,                           # int32[B, M]
    work: WorkTable,
    *,
    tile: DecodeTile,
    scoring: Scoring,
    interpret: Any = None,
) -> tuple[jax.Array, jax.Array]:
    """-> (f32[W, K, H, R] each split's attention, f32[W, K, R] its log2-sum-exp2); dead rows are not written.

    q is float16 where the pool is quantised.
    """
    (_, K, R, H), W, S = q.shape, work.items.shape[0], tile.kv_tile
    body = _Decode(q, k, tile, scoring)
    return plgpu.kernel(
        body,
        out_type=(jax.ShapeDtypeStruct((W, K, H, R), jnp.float32), jax.ShapeDtypeStruct((W, K, R), jnp.float32)),
        scratch_types=(
            plgpu.SMEM((Q_SLOTS, R, H), q.dtype, transforms=swizzled(q.dtype, H)),
            body.ring.scratch(), body.ring.scratch(),
            plgpu.SMEM((R, S), q.dtype, transforms=swizzled(q.dtype, S)),
            plgpu.Barrier(num_barriers=Q_SLOTS), plgpu.Barrier(num_barriers=Q_SLOTS),
        ),
        grid=(tile.ctas,), grid_names=("cta",), num_threads=2, thread_name="wg", kernel_name="decode_attention",
        compiler_params=plgpu.CompilerParams(approx_math=True), interpret=interpret,
    )(q, k, v, tables, work.items, work.total)
