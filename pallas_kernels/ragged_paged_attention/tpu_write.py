"""Writes new keys and values into the TPU's pool, in place.

XLA's own scatter would choose another layout for the pool and copy all of it there and back, and takes one token at
a time. Here a "piece" is a run of new tokens in one block: its rows are copied in, changed and copied out, while the
next piece's are under way. Padding, which goes to the null block, is left out.

Legend: T flat tokens · n tokens of a piece at most · K KV heads · R rows per block; the others as in tpu_pool.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_kernels.ragged_paged_attention import tpu_pool
from pallas_kernels.ragged_paged_attention.pool import KVLayer, quantize
from pallas_kernels.ragged_paged_attention.tpu_copy import do_copy
from pallas_kernels.ragged_paged_attention.tpu_pool import LANES


class Pieces(NamedTuple):
    """The runs of new tokens, in scalar memory."""

    number: Any     # int32[1] pieces that there are
    block: Any      # int32[pieces]
    offset: Any     # int32[pieces] of the first token in its block
    token: Any      # int32[pieces] flat index of the first token
    count: Any      # int32[pieces] tokens


def write(
    kv: KVLayer, k: jax.Array, v: jax.Array, slot_mapping: jax.Array, num_seqs: int, *,
    single: bool = False, interpret: Any = False,
) -> KVLayer:
    """The pool with k and v [T, K, H] at their slots int32[T], quantised where the pool is.

    single: no sequence has more than one new token.
    """
    block_size = tpu_pool.block_size_of(kv.k, k.shape[2])
    news, pools = [k, v], [kv.k, kv.v]
    if kv.k_scale is not None and kv.v_scale is not None:
        (k, k_scale), (v, v_scale) = quantize(k, kv.k.dtype), quantize(v, kv.v.dtype)
        # What an 8-bit type holds, bfloat16 holds exactly, and in wider rows.
        news = [k.astype(jnp.bfloat16), v.astype(jnp.bfloat16)]
        pools += [kv.k_scale, kv.v_scale]
        news = [_by_row(x, kv.k) for x in news]
        news += [jnp.broadcast_to(x[..., None], (*x.shape, LANES)) for x in (k_scale, v_scale)]
    else:
        news = [_by_row(x.astype(kv.k.dtype), kv.k) for x in news]
    tokens = 1 if single else block_size
    pieces = _pieces(slot_mapping, block_size, tokens, num_seqs)
    news = [jnp.pad(x, ((0, tokens - 1), *[(0, 0)] * (x.ndim - 1))) for x in news]
    rows = kv.k.shape[2]
    if single:                                   # no more than a tile of the block
        rows = min(rows, tpu_pool.MIN_ROWS * 4 // kv.k.dtype.itemsize)
    written = _call(pieces, news, pools, rows, tokens, block_size, interpret)
    return KVLayer(*written)


def _by_row(x: jax.Array, pool: jax.Array) -> jax.Array:
    """x [T, K, H] -> [T, K, 1, lanes] of the pool's rows, in each stream's lanes."""
    width = tpu_pool.padded_width(x.shape[2])
    x = jnp.pad(x, ((0, 0), (0, 0), (0, width - x.shape[2])))
    return jnp.concatenate([x] * (pool.shape[3] // width), axis=2)[:, :, None]


def _pieces(slots: jax.Array, block_size: int, most_tokens: int, num_seqs: int) -> Pieces:
    """Cuts the tokens where a block begins and where slots do not follow one another."""
    T = slots.shape[0]
    index = jnp.arange(T)
    block, offset = slots // block_size, slots % block_size
    follows = (index > 0) & (slots == jnp.roll(slots, 1) + 1) & (offset > 0) & (most_tokens > 1)
    real = block > 0
    starts = real & ~follows
    cut = jnp.where(starts | ~real, index, T)
    after = lax.cummin(jnp.concatenate([cut[1:], jnp.full((1,), T, cut.dtype)]), reverse=True)     # the next cut
    number = jnp.cumsum(starts)
    most = T if most_tokens == 1 else min(T, T // block_size + 2 * num_seqs)
    token = jnp.searchsorted(number, jnp.arange(1, most + 1), method="compare_all")
    token = jnp.minimum(token, T - 1)
    pieces = (number[-1:], block[token], offset[token], token, after[token] - token)
    return Pieces(*(x.astype(jnp.int32) for x in pieces))


def _call(pieces: Pieces, news, pools, rows: int, tokens: int, block_size: int, interpret):
    """The pools with the pieces' tokens in place; `rows` of a block are read and written at once."""
    K, lanes = pools[0].shape[1], pools[0].shape[3]
    streams = block_size // pools[0].shape[2]
    number = len(pools)

    def body(*refs):
        pieces, (in_sems, out_sem) = Pieces(*refs[:5]), refs[-2:]
        news, _, outs, new_buffers, buffers = (refs[5 + i * number : 5 + (i + 1) * number] for i in range(5))
        _Writer(
            pieces, news, outs, new_buffers, buffers, in_sems, out_sem, pools[0].shape[2], streams
        ).run()

    anywhere = pl.BlockSpec(memory_space=pl.ANY)
    shapes = [(K, rows, lanes)] * 2 + [(K, LANES)] * (number - 2)
    return pl.pallas_call(
        body,
        out_shape=[jax.ShapeDtypeStruct(pool.shape, pool.dtype) for pool in pools],
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(pieces), grid=(1,),
            in_specs=[anywhere] * (2 * number), out_specs=[anywhere] * number,
            scratch_shapes=[
                *(pltpu.VMEM((2, tokens, *x.shape[1:]), x.dtype) for x in news),
                *(pltpu.VMEM((2, *shape), pool.dtype) for shape, pool in zip(shapes, pools, strict=True)),
                pltpu.SemaphoreType.DMA((2,)), pltpu.SemaphoreType.DMA,
            ],
        ),
        input_output_aliases={len(pieces) + number + i: i for i in range(number)},
        interpret=interpret,
        name="write_kv_blocks",
    )(*pieces, *news, *pools)


class _Writer:
    """Traces the body over one call's refs."""

    def __init__(self, pieces, news, pools, new_buffers, buffers, in_sems, out_sem, block_rows, streams) -> None:
        self.pieces, self.news, self.pools, self.new_buffers, self.buffers = pieces, news, pools, new_buffers, buffers
        self.in_sems, self.out_sem, self.block_rows, self.streams = in_sems, out_sem, block_rows, streams
        self.rows = buffers[0].shape[2]

    def run(self) -> None:
        number = self.pieces.number[0]
        pl.when(number > 0)(lambda: self.copy_in(0, 0, start=True))

        def piece(i, slot):
            pl.when(i > 0)(lambda: self.copy_out(i - 1, 1 - slot, start=False))
            pl.when(i + 1 < number)(lambda: self.copy_in(i + 1, 1 - slot, start=True))
            self.copy_in(i, slot, start=False)
            for new, buffer in zip(self.new_buffers, self.buffers, strict=True):
                self.change(i, new.at[slot], buffer.at[slot])
            self.copy_out(i, slot, start=True)
            return 1 - slot

        slot = lax.fori_loop(0, number, piece, 0)
        pl.when(number > 0)(lambda: self.copy_out(number - 1, 1 - slot, start=False))

    def window(self, pool, i):
        """The part of the piece's block that is copied."""
        if len(pool.shape) == 3:
            return pool.at[self.pieces.block[i]]
        row = lax.rem(self.pieces.offset[i], self.block_rows)
        first = pl.multiple_of(row - lax.rem(row, self.rows), self.rows) if self.rows < self.block_rows else 0
        return pool.at[self.pieces.block[i], :, pl.ds(first, self.rows)]

    def copy_in(self, i, slot, *, start: bool) -> None:
        for new, buffer in zip(self.news, self.new_buffers, strict=True):
            tokens = pl.ds(self.pieces.token[i], buffer.shape[1])
            do_copy(start, new.at[tokens], buffer.at[slot], self.in_sems.at[slot])
        for pool, buffer in zip(self.pools, self.buffers, strict=True):
            do_copy(start, self.window(pool, i), buffer.at[slot], self.in_sems.at[slot])

    def copy_out(self, i, slot, *, start: bool) -> None:
        for pool, buffer in zip(self.pools, self.buffers, strict=True):
            do_copy(start, buffer.at[slot], self.window(pool, i), self.out_sem)

    def change(self, i, new, buffer) -> None:
        """Puts a piece's tokens into the rows (or scales: lanes) that were copied in.

        In float32, which all of a pool's types pass through unchanged: not every TPU selects in narrower ones.
        """
        offset = self.pieces.offset[i]
        lane = lax.broadcasted_iota(jnp.int32, buffer.shape, len(buffer.shape) - 1)

        def token(j, old):
            at = offset + j
            if len(buffer.shape) == 2:
                here = lane & (self.block_rows * self.streams - 1) == at
            else:
                row = lax.broadcasted_iota(jnp.int32, buffer.shape, 1)
                here = row == lax.rem(lax.rem(at, self.block_rows), self.rows)
                if self.streams == 2:
                    here &= (lane >= buffer.shape[2] // 2) == (at >= self.block_rows)
            return jnp.where(here, jnp.broadcast_to(new[j].astype(jnp.float32), buffer.shape), old)

        old = buffer[...].astype(jnp.float32)
        buffer[...] = lax.fori_loop(0, self.pieces.count[i], token, old).astype(buffer.dtype)
